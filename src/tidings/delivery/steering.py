"""What an operator does to a lane: pause it, let it go on, let it skip. The stream finds it as it is and goes on from there."""

from __future__ import annotations

from psycopg import Connection

from tidings.errors import OperatorError
from tidings.events.positions import Position

# A live lane's cursor is the stream's. The round that is under way may deliver to it once more: that is sent again then.
_PAUSE = """
update lanes l set state = 'paused', win = coalesce(l.win, s.win), seq = coalesce(l.seq, s.seq), since = now(), next_try = null
from stream s where s.name = 'main' and l.id = %s and l.state in ('live', 'behind', 'ready', 'backfill')
"""

_RESUME = """
update lanes set state = case when id in (select lane from backfills where told_at is null and ended_at is null)
                         then 'backfill' else 'behind' end,
       since = now(), attempts = 0, next_try = null, error = null, slow = false
where id = %s and state = 'paused' returning state
"""

_SKIP = """
with old as (select id, win, seq from lanes where id = %(lane)s and state in ('behind', 'paused') for update),
     moved as (update lanes set win = %(win)s, seq = %(seq)s, attempts = 0, next_try = null, error = null
               from old where lanes.id = old.id and (old.win, old.seq) < (%(win)s, %(seq)s) returning lanes.id)
insert into lane_log (lane, what, from_win, from_seq, to_win, to_seq, note)
select old.id, 'skipped', old.win, old.seq, %(win)s, %(seq)s, %(note)s from old join moved using (id)
returning from_win, from_seq
"""


def pause(connection: Connection, lane: int) -> None:
    """Nothing more is sent. What comes is kept, and delivered when it is resumed."""
    if not connection.execute(_PAUSE, [lane]).rowcount:
        raise _not_in(connection, lane, "live, behind, ready or backfill")


def resume(connection: Connection, lane: int) -> str:
    """Let it go on where it was; returns the state that it has now."""
    row = connection.execute(_RESUME, [lane]).fetchone()
    if row is None:
        raise _not_in(connection, lane, "paused")
    return str(row[0])


def skip(connection: Connection, lane: int, to: Position | None, note: str) -> tuple[Position, Position]:
    """Move the cursor forward without sending, and write that down; to the stream's position if none is named.

    Returns from where to where.
    """
    row = connection.execute("select win, seq from stream where name = 'main'").fetchone()
    assert row is not None
    stream = Position(*row)
    end = to or stream
    if end > stream:
        raise OperatorError(f"{end} is after the stream's position, {stream}: a lane cannot skip what is still to come.")
    values = {"lane": lane, "win": end.window, "seq": end.seq, "note": note}
    moved = connection.execute(_SKIP, values).fetchone()
    if moved is None:
        raise _not_in(connection, lane, f"behind or paused, with a cursor before {end}")
    return Position(*moved), end


def _not_in(connection: Connection, lane: int, wanted: str) -> OperatorError:
    row = connection.execute("select state, win, seq from lanes where id = %s", [lane]).fetchone()
    if row is None:
        return OperatorError(f"There is no lane {lane}: `tidings lanes list` shows them.")
    place = f" at {Position(row[1], row[2])}" if row[1] is not None else ""
    return OperatorError(f"Lane {lane} is {row[0]}{place}: this needs one that is {wanted}.")
