"""How far each lane has got, for people."""

from __future__ import annotations

from typing import Any

from psycopg import Connection
from psycopg.rows import dict_row

from tidings.changestream import windows
from tidings.events.changes import UNREAD
from tidings.events.positions import Position

_LANES = """
select l.id, p.name as project, l.destination, l.state, coalesce(l.win, s.win) as win, coalesce(l.seq, s.seq) as seq,
       l.attempts, l.next_try, l.error, l.since, l.side as replay,
       (select count(*) from dead_letters d where d.lane = l.id and d.state = 'dead') as dead_letters
from lanes l join projects p on p.public_id = l.project, stream s
where s.name = 'main' and (l.state <> 'closed' or %(all)s)
order by l.id
"""

# Between a cursor and the newest window.
_OWED = """
select count(*), extract(epoch from clock_timestamp() - min(at))::float8 from changes
where rules is not null and string_to_array(rules, ',') && %(rules)s::text[]
  and pg_visible_in_snapshot(xid, (select snapshot from windows order by id desc limit 1))
  and not pg_visible_in_snapshot(xid, coalesce((select snapshot from windows where id = %(win)s - 1), '1:1:'))
  and not (seq <= %(seq)s and pg_visible_in_snapshot(xid, coalesce((select snapshot from windows where id = %(win)s), '1:1:')))
"""


def lanes(connection: Connection, closed: bool = False) -> list[dict[str, Any]]:
    """Every lane, with how many changes it is owed and how old the oldest of them is."""
    with connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(_LANES, {"all": closed}).fetchall()
    newest = windows.last(connection).end
    for lane in found:
        cursor_ = Position(lane.pop("win"), lane.pop("seq"))
        owed, seconds = (
            (0, None) if cursor_ >= newest or lane["state"] == "closed" else owed_to(connection, lane["id"], cursor_)
        )
        lane |= {"cursor": str(cursor_), "owed": owed, "seconds": seconds or 0.0}
    return found


def owed_to(connection: Connection, lane: int, cursor: Position) -> tuple[int, float | None]:
    """How many changes the lane's rules may want between its cursor and the newest window, and how old the oldest is."""
    rows = connection.execute("select distinct source::text from routes where lane = %s", [lane]).fetchall()
    values = {"rules": [*(row[0] for row in rows), UNREAD], "win": cursor.window, "seq": cursor.seq}
    row = connection.execute(_OWED, values).fetchone()
    assert row is not None
    return int(row[0]), row[1]
