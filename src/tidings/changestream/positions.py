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
    stored = {window.id: window.snapshot for window in windows.between(connection, 0, end.window)}
    first, before = (stored.get(id_, windows.BEFORE_ALL.snapshot) for id_ in (start.window, start.window - 1))
    last, last_but_one = (stored.get(id_, windows.BEFORE_ALL.snapshot) for id_ in (end.window, end.window - 1))
    return (
        f"rules is not null and not pg_visible_in_snapshot(xid, '{before}')"
        f" and not (seq <= {start.seq} and pg_visible_in_snapshot(xid, '{first}'))"
        f" and pg_visible_in_snapshot(xid, '{last}')"
        f" and (seq <= {end.seq} or pg_visible_in_snapshot(xid, '{last_but_one}'))"
    )
