"""Removing what nobody can receive: messages older than their queue keeps them, and the piles of purged and deleted queues."""

from __future__ import annotations

from typing import LiteralString

from tidings.db.pool import Pool, run

_STEP = 1000

_EXPIRED: LiteralString = """
with ends as materialized (
    select pile, uuidv7(make_interval(secs => -retention_seconds)) as boundary from queues
)
delete from queue_messages m using (
    select old.pile, old.id from ends cross join lateral (
        select o.pile, o.id from queue_messages o where o.pile = ends.pile and o.id < ends.boundary
        order by o.id limit %(most)s for update skip locked
    ) old limit %(most)s
) o where m.pile = o.pile and m.id = o.id
"""
_LEFT: LiteralString = """
with recursive piles as (
    (select pile from queue_messages order by pile limit 1)
    union all
    select (select m.pile from queue_messages m where m.pile > p.pile order by m.pile limit 1) from piles p
    where p.pile is not null
), nobodys as materialized (
    select p.pile from piles p where p.pile is not null and not exists (select from queues q where q.pile = p.pile)
)
delete from queue_messages m using (
    select old.pile, old.id from nobodys cross join lateral (
        select o.pile, o.id from queue_messages o where o.pile = nobodys.pile
        order by o.id limit %(most)s for update skip locked
    ) old limit %(most)s
) o where m.pile = o.pile and m.id = o.id
"""
"""Steps from pile to pile through the index, whatever is in them."""

_OLD_TASKS: LiteralString = "delete from queue_moves where status <> 'RUNNING' and started_at < now() - interval '14 days'"


async def sweep(pool: Pool) -> int:
    """In small steps, so that nobody waits for it; returns how many messages were removed."""
    removed = 0
    for statement in (_EXPIRED, _LEFT):
        while gone := (await run(pool, statement, {"most": _STEP})).rowcount:
            removed += gone
    await run(pool, _OLD_TASKS, [])
    return removed
