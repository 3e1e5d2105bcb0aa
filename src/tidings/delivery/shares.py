"""A project's share of a round, so that one project's fan-out does not delay the events of another.

Messages of one key wait for one another, so a change that goes to many lanes, or the hundredth change of a key, costs a round
many calls. Where a project costs more than its share, its lanes leave the round at the first change that is too much, and go on
beside the stream as any lane that is late. The cut is made before anything is rendered or sent: it is a position, up to which
these lanes are served (`Terms.ends`), and which no cursor of theirs passes (`hold_back`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import Connection

from tidings.changestream import reader
from tidings.delivery.reports import Report
from tidings.events.positions import Position

if TYPE_CHECKING:
    from tidings.delivery.deliver import Terms
    from tidings.delivery.lanes import Standing

WORDS = "its project has had its share of the round"

# Changes: a round of so few is over soon, whoever they belong to, unless lanes that are ready bring a backlog into it.
_FEW = 10
# Messages of different keys go together, and so many of them cost about as much as a call.
_MESSAGES_A_CALL = 100

_SEVERAL = "select min(project) < max(project) from lanes where state <> 'closed'"

# `wave` is how many calls each lane has had by then, as far as that depends on the key; `total` counts messages. At or before
# the position of the stream only lanes that are ready are served. A lane that the round does not know has a cursor of its own
# and is not cut.
_COUNTED = """
with owed as materialized ({owed}),
     known as (select d.rules, array_agg(distinct r.lane) as lanes,
                      array_agg(distinct r.lane) filter (where r.lane = any(%(ready)s)) as ready
               from (select distinct rules from owed) as d cross join lateral unnest(string_to_array(d.rules, ',')) as n(number)
               join routes r on r.source = n.number::bigint
               join lanes l on l.id = r.lane and pg_visible_in_snapshot(l.xid, %(snapshot)s::pg_snapshot)
               where r.lane <> all(%(skipped)s) group by d.rules),
     served as (select o.*, (o.win, o.seq) > (%(win)s, %(seq)s) as new,
                       case when (o.win, o.seq) > (%(win)s, %(seq)s) then k.lanes else k.ready end as lanes
                from owed o join known k using (rules)),
     costs as (select *, cardinality(lanes) * row_number() over (partition by project, bucket, key order by win, seq)
                      + sum(cardinality(lanes)) over (partition by project order by win, seq) / %(together)s as cost
               from served where lanes is not null),
     cuts as (select distinct on (project) project, win, seq from costs where cost > %(share)s order by project, win, seq)
select c.win, c.seq, t.lanes, count(*) filter (where new and (c.win is null or (t.win, t.seq) < (c.win, c.seq))),
       coalesce(bool_or((t.win, t.seq) >= (c.win, c.seq)), false)
from costs t left join cuts c using (project) group by c.win, c.seq, t.lanes
"""


@dataclass(frozen=True)
class Cut:
    """Up to where lanes are served whose project has more than its share, and how many new changes are left for the round."""

    rows: int
    ends: Mapping[int, Position] = field(default_factory=dict)


def cut(
    connection: Connection, share: int, pieces: Sequence[reader.Slice], start: Position, rows: int, standing: Standing
) -> Cut:
    """`pieces` are what the round reads: `rows` changes after `start`, and before it what lanes that are ready still need."""
    ready = {lane.id: lane.cursor for lane in standing.in_state("ready")}
    if not pieces or (rows <= _FEW and not ready):
        return Cut(rows)
    if not (several := connection.execute(_SEVERAL).fetchone()) or not several[0]:
        return Cut(rows)  # nobody else is there to wait
    owed = " union all ".join(
        f"select {piece.window}::bigint as win, seq, project, bucket, key, {reader.RULES} from changes where {piece.condition}"
        for piece in pieces
    )
    values = {
        "ready": list(ready),
        "skipped": list(standing.not_served),
        "snapshot": standing.moment.snapshot,
        "win": start.window,
        "seq": start.seq,
        "together": float(_MESSAGES_A_CALL),
        "share": share,
    }
    left, ends = 0, dict[int, Position]()
    for window, seq, lanes, new, over in connection.execute(_COUNTED.format(owed=owed).encode(), values).fetchall():
        left += new
        for lane in lanes if over else ():  # a topic's lanes may serve several projects: the first cut counts
            end = max(Position(window, seq).just_before, ready.get(lane, start))
            ends[lane] = min(end, ends.get(lane, end))
    return Cut(left, ends)


def hold_back(reports: Iterable[Report], ends: Mapping[int, Position]) -> list[Report]:
    """What a round did, where lanes that were cut are late: at the cut, or where they failed before it."""
    found = {report.lane: report for report in reports}
    for lane, end in ends.items():
        report = found.get(lane, Report(lane, 0))
        if report.cursor is None:
            found[lane] = replace(report, cursor=end, late=True, error=WORDS)
    return list(found.values())


def owed(routed: pa.RecordBatch, terms: Terms) -> pa.RecordBatch:
    """Without rows of lanes that these terms do not serve, not yet or not as far: they would be filtered and rendered for
    nothing."""
    lanes = routed.column("lane")
    there = [lane for lane in pc.unique(lanes).to_pylist() if lane is not None]
    dropped = _among(lanes, [lane for lane in there if terms.start_of(lane) is None])
    starts: dict[Position, list[int]] = {}
    ends: dict[Position, list[int]] = {}
    for lane in there:
        if (start := terms.start_of(lane)) is not None:
            starts.setdefault(start, []).append(lane)
        if lane in terms.ends:
            ends.setdefault(terms.ends[lane], []).append(lane)
    for start, of_lanes in starts.items():
        dropped = pc.or_(dropped, pc.and_(_among(lanes, of_lanes), pc.invert(_after(routed, start))))
    for end, of_lanes in ends.items():
        dropped = pc.or_(dropped, pc.and_(_among(lanes, of_lanes), _after(routed, end)))
    return routed.filter(pc.invert(dropped)) if pc.any(dropped).as_py() else routed


def _after(routed: pa.RecordBatch, position: Position) -> pa.Array:
    windows = routed.column("window")
    later = pc.and_(pc.equal(windows, position.window), pc.greater(routed.column("seq"), position.seq))
    return pc.or_(pc.greater(windows, position.window), later)


def _among(lanes: pa.Array, some: Sequence[int]) -> pa.Array:
    return pc.is_in(lanes, pa.array(some, pa.int64()))
