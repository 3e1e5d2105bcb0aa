"""Beginning a backfill in the transaction that makes its rule: see docs/adr/0012-backfill.md for why nothing is missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import AsyncCursor

from tidings.errors import OperatorError

RESERVED = 1000
"""Numbers that are drawn for a backfill: those of the newest versions of a key. Whatever comes later has a higher one."""

TOP: LiteralString = "(select max(nextval('change_seq')) from generate_series(1, %(reserved)s))"

# Where the stream is now is before every change that knows the rule. A rule to a topic has a lane for each subscription.
_OPEN: LiteralString = f"""
with begun as materialized (select nextval('replay_numbers') as number, {TOP} as top),
rule as (
    select c.rule, c.since, b.id as bucket_id
    from bucket_eventing_configs c join projects p on p.id = c.project_id
    join bucket_metainfos b on b.project_id = c.project_id and b.name = c.bucket_name
    where p.public_id = %(project)s and c.bucket_name = %(bucket)s and c.config_id = %(id)s
),
beside as (
    select l.id, l.project, l.destination, l.peer from rule join routes r on r.rule = rule.rule
    join lanes l on l.id = r.lane and l.side = 0
),
opened as (
    insert into lanes (project, destination, peer, side, state, win, seq, began_win, began_seq)
    select l.project, l.destination, l.peer, begun.number, 'backfill', s.win, s.seq, s.win, s.seq
    from beside l, begun, stream s where s.name = 'main'
    returning id, project, destination
)
insert into backfills (number, lane, of_lane, rule, bucket_id, since, top, versions, prefix)
select begun.number, o.id, l.id, rule.rule, rule.bucket_id, rule.since, begun.top, %(versions)s, %(prefix)s
from opened o join beside l using (project, destination), rule, begun
returning number
"""


@dataclass(frozen=True, slots=True)
class Backfill:
    """What a new rule is to be told first: the objects that are there, or all their versions."""

    config_id: str
    versions: bool = False
    prefix: str = ""


async def open_with_rule(cursor: AsyncCursor[Any], project: str, bucket: str, wanted: Backfill) -> int:
    """In the transaction that makes the rule, when it is made. Returns the backfill's number."""
    values = {"project": project, "bucket": bucket, "id": wanted.config_id, "reserved": RESERVED}
    rows = await (await cursor.execute(_OPEN, values | {"versions": wanted.versions, "prefix": wanted.prefix})).fetchall()
    if not rows:
        raise OperatorError(
            f"The rule {wanted.config_id!r} was not made: it has no lane to backfill, as its topic has no subscription that is "
            "confirmed. Subscribe first, or add it without --backfill."
        )
    return int(rows[0][0])
