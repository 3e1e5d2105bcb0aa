"""How far each lane has got, for people."""

from __future__ import annotations

from typing import Any

from psycopg import Connection
from psycopg.rows import dict_row

from tidings.changestream import positions, windows
from tidings.events.positions import Position

_LANES = """
select l.id, p.name as project, l.destination, l.state, coalesce(l.win, s.win) as win, coalesce(l.seq, s.seq) as seq,
       l.attempts, l.next_try, l.error, l.since, case when b.lane is null then l.side else 0 end as replay,
       b.number as backfill, b.sent as told, b.key as place,
       (select count(*) from dead_letters d where d.lane = l.id and d.state = 'dead') as dead_letters
from lanes l join projects p on p.public_id = l.project left join backfills b on b.lane = l.id, stream s
where s.name = 'main' and (l.state <> 'closed' or %(all)s)
order by l.id
"""

# Between a cursor and the newest window, for all lanes that are at the same place. Rules that could not be read when a change
# was written are nobody's here.
_OWED = """
select r.lane, count(*), extract(epoch from clock_timestamp() - min(c.at))::float8
from changes c cross join unnest(string_to_array(c.rules, ',')) as n(number) join routes r on r.source::text = n.number
where {where} and r.lane = any(%(lanes)s)
group by r.lane
"""


def lanes(connection: Connection, closed: bool = False) -> list[dict[str, Any]]:
    """Every lane, with how many changes it is owed and how old the oldest of them is."""
    with connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(_LANES, {"all": closed}).fetchall()
    newest = windows.last(connection).end
    at: dict[Position, list[int]] = {}
    for lane in found:
        cursor_ = Position(lane.pop("win"), lane.pop("seq"))
        lane |= {"cursor": str(cursor_), "owed": 0, "seconds": 0.0}
        if cursor_ < newest and lane["state"] != "closed":
            at.setdefault(cursor_, []).append(lane["id"])
    by_id = {lane["id"]: lane for lane in found}
    for cursor_, ids in at.items():
        where = positions.between(connection, cursor_, newest)
        for id_, owed, seconds in connection.execute(_OWED.format(where=where).encode(), {"lanes": ids}).fetchall():
            by_id[id_] |= {"owed": owed, "seconds": seconds}
    return found
