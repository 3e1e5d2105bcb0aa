"""Positions as people write them, and the changes between two."""

from __future__ import annotations

from datetime import UTC, datetime

from psycopg import Connection

from tidings.changestream import windows
from tidings.errors import OperatorError
from tidings.events.positions import Position


def bound(connection: Connection, text: str | None, default: Position) -> Position:
    """A bound as the user wrote it: a position, or the last window that was cut at or before a time."""
    if text is None:
        return default
    window, slash, seq = text.partition("/")
    if slash and window.isdigit() and seq.isdigit():
        return Position(int(window), int(seq))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OperatorError(
            f"{text!r} is neither a position such as 12/3456 nor a time such as 2026-01-31T12:00:00Z."
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return windows.at(connection, moment)


def between(connection: Connection, start: Position, end: Position) -> str:
    """SQL: a change that some rule wanted lies in (start, end]."""
    ids = [start.window - 1, start.window, end.window - 1, end.window]
    rows = connection.execute("select id, snapshot::text, hi from windows where id = any(%s)", [ids]).fetchall()
    stored = {id_: snapshot for id_, snapshot, _ in rows}
    before, first, last_but_one, last = (stored.get(id_, windows.BEFORE_ALL.snapshot) for id_ in ids)
    if (start.window, start.seq) in ((id_, hi) for id_, _, hi in rows):
        before = first  # read to its end: the one before no longer matters, and may be gone
    return (
        f"rules is not null and xid >= pg_snapshot_xmin('{before}'::pg_snapshot)"  # for the index: what is below is visible
        f" and not pg_visible_in_snapshot(xid, '{before}')"
        f" and not (seq <= {start.seq} and pg_visible_in_snapshot(xid, '{first}'))"
        f" and pg_visible_in_snapshot(xid, '{last}')"
        f" and (seq <= {end.seq} or pg_visible_in_snapshot(xid, '{last_but_one}'))"
    )
