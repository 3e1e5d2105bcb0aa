"""Windows: stored snapshots that cut the log of changes into sets which never change again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import Connection

from tidings.db.timeline import TOKEN  # a position made elsewhere means nothing here
from tidings.errors import ForeignPosition
from tidings.events.positions import START, Position

_COLUMNS = "id, snapshot::text, pg_snapshot_xmax(snapshot)::text, array(select pg_snapshot_xip(snapshot)::text), lo, hi, n"


@dataclass(frozen=True, slots=True)
class Window:
    """One stored snapshot, with the bounds and the number of the changes that it adds."""

    id: int
    snapshot: str
    xmax: str
    xip: tuple[str, ...]
    lo: int
    hi: int
    n: int

    @property
    def end(self) -> Position:
        return Position(self.id, self.hi)


BEFORE_ALL = Window(0, "1:1:", "0", (), 0, 0, 0)
"""The window before the first: nothing is visible in it."""


def _window(row: tuple[Any, ...]) -> Window:
    return Window(row[0], row[1], row[2], tuple(row[3]), *row[4:])


def last(connection: Connection) -> Window:
    """The newest window."""
    row = connection.execute(f"select {_COLUMNS} from windows order by id desc limit 1").fetchone()
    return _window(row) if row else BEFORE_ALL


def between(connection: Connection, first: int, final: int) -> list[Window]:
    """The stored windows with ids from `first` to `final`, in order."""
    rows = connection.execute(
        f"select {_COLUMNS} from windows where id between %s and %s order by id", [first, final]
    ).fetchall()
    return [_window(row) for row in rows]


def added_by(previous: Window) -> str:
    """SQL: a change is not visible in `previous`.

    The values are literals, not parameters of a sub-select: the planner must see them to use the index on xid.
    They come from the database's own snapshot type, so there is nothing to escape.
    """
    xids = ",".join(previous.xip)
    late = f" or xid = any('{{{xids}}}'::xid8[])" if xids else ""
    return f"(xid >= '{previous.xmax}'::xid8{late})"


def cut(connection: Connection, previous: Window) -> Window | None:
    """Store a new window after `previous` if there is a change that a rule wants; the commit is its own.

    Nobody may use a snapshot that is not stored: after a crash its transaction ids are handed out again. Run it on
    an autocommit connection. Two cutters at once: the second gets the window of the first.
    """
    statement = f"""
        with added as (
            select count(*) as n, min(seq) as lo, max(seq) as hi from changes
            where rules is not null and {added_by(previous)}
              and pg_visible_in_snapshot(xid, pg_current_snapshot())
        )
        insert into windows (id, snapshot, token, lo, hi, n)
        select %s, pg_current_snapshot(), {TOKEN}, lo, hi, n from added
        where n > 0 and not pg_is_in_recovery() and pg_snapshot_xmax(pg_current_snapshot()) >= %s::xid8
        returning {_COLUMNS}
    """
    try:
        row = connection.execute(statement.encode(), [previous.id + 1, previous.xmax]).fetchone()
    except psycopg.errors.UniqueViolation:
        return last(connection)
    return _window(row) if row else None


def end_of(connection: Connection, start: Position, max_rows: int) -> tuple[Position, int]:
    """The furthest position after `start` that takes in at most `max_rows` changes, and how many they are.

    Whole windows as long as they fit, and a part of one where it does not.
    """
    end, room = start, max_rows
    previous, *ahead = _from(connection, start)
    for window in ahead:
        after = start.seq if window.id == start.window else -1
        if after < 0 and window.n <= room:
            end, room = window.end, room - window.n
        elif after < window.hi and room:
            taken, seq = _take(connection, previous, window, after, room)
            if taken == room:
                return Position(window.id, seq), max_rows
            end, room = window.end, room - taken
        previous = window
        if not room:
            break
    return end, max_rows - room


def _from(connection: Connection, start: Position, count: int = 1000) -> list[Window]:
    """The window before the one that `start` is in, that one, and up to `count` after it.

    At the end of a window the one before it no longer matters, and may be gone.
    """
    first = max(start.window - 1, 0)
    stored = between(connection, first, start.window + count)
    if first == 0 and oldest(connection) == START:
        return [BEFORE_ALL, *stored]
    if stored and (stored[0].id == first or stored[0].end == start):
        return stored
    raise ForeignPosition(f"The window before position {start} is gone: the retention has passed it.")


def readable(connection: Connection, start: Position) -> bool:
    """Whether reading can begin here: the retention has not passed it."""
    try:
        _from(connection, start, count=0)
    except ForeignPosition:
        return False
    return True


def _take(connection: Connection, previous: Window, window: Window, after: int, count: int) -> tuple[int, int]:
    """How many of the next `count` changes after seq `after` the window has, and the seq of the last of them."""
    row = connection.execute(
        f"""
        select count(*), coalesce(max(seq), %s) from (
            select seq from changes
            where rules is not null and seq between %s and %s and {added_by(previous)}
              and pg_visible_in_snapshot(xid, %s::pg_snapshot)
            order by seq limit %s
        ) as next
        """.encode(),
        [after, max(after + 1, window.lo), window.hi, window.snapshot, count],
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def oldest(connection: Connection) -> Position:
    """Where reading can begin: before everything, or after the oldest window that is kept once others were forgotten."""
    row = connection.execute("select id, hi from windows order by id limit 1").fetchone()
    return START if row is None or row[0] == 1 else Position(row[0], row[1])


def at(connection: Connection, moment: datetime) -> Position:
    """The end of the last window that was cut at or before a moment."""
    row = connection.execute("select id, hi from windows where cut_at <= %s order by id desc limit 1", [moment]).fetchone()
    return Position(row[0], row[1]) if row else START


def latest(connection: Connection) -> Position:
    """Cut a window if there is anything new, and say how far the log goes."""
    newest = last(connection)
    cut_now = cut(connection, newest)
    newest = cut_now or last(connection)
    return newest.end if newest is not BEFORE_ALL else START


def token(connection: Connection) -> str:
    row = connection.execute(f"select {TOKEN}").fetchone()
    assert row is not None
    value: str = row[0]
    return value


def check_token(connection: Connection, stored: str | None) -> str:
    """The token of this database; stops where a position was made on another one."""
    now = token(connection)
    if stored is not None and stored != now:
        raise ForeignPosition(
            f"The stored position belongs to {stored}, but this database is {now} (restored, or failed over). "
            "Run `tidings stream --rebase` to go on: everything after the restored state is delivered again."
        )
    return now
