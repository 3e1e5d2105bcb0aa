"""Message move tasks: a dead letter queue's messages go back to where they came from, or to one queue.

A task is a row, and a step of it one transaction: it moves some messages and says how far it is. Any API process takes the
next step of any task, so a task outlives the process that started it.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import AsyncConnection

from tidings import audit
from tidings.db.pool import Pool, run, transaction
from tidings.queues.errors import QueueError
from tidings.queues.model import Queue

_STEP = 500
FASTEST = 500
"""Messages for each second that a caller may ask for."""

NO_SOURCE = "CouldNotDetermineMessageSource"

# Only what could be received when the task began: what fails again while it runs does not go round and round.
_MOVABLE: LiteralString = "m.pile = %(pile)s and m.visible_at <= %(started_at)s"
_MOVE: LiteralString = f"""
with picked as materialized (
    select m.id, coalesce(d.pile, s.pile) as target
    from queue_messages m
    left join queues d on d.id = %(destination)s
    left join queues s on s.id = m.source and %(destination)s::bigint is null
    where {_MOVABLE} and coalesce(d.pile, s.pile) is not null
    order by m.visible_at, m.id limit %(most)s
    for update of m skip locked
)
update queue_messages m
set pile = p.target, id = uuidv7(), visible_at = clock_timestamp(), receives = 0, receipt = null, first_received_at = null,
    source = null
from picked p where m.pile = %(pile)s and m.id = p.id
"""


class Task(NamedTuple):
    id: uuid.UUID
    source: str
    destination: str | None
    per_second: int | None
    status: str
    failure: str | None
    to_move: int
    moved: int
    started_at: datetime


async def start(pool: Pool, source: Queue, destination: Queue | None, per_second: int | None) -> str:
    try:
        cursor = await audit.run(
            pool,
            "insert into queue_moves (source, destination, per_second, to_move)"
            " select %(source)s, %(destination)s, %(per_second)s, count(*) from queue_messages m"
            " where m.pile = %(pile)s and m.visible_at <= now() returning id",
            {
                "source": source.id,
                "destination": destination.id if destination else None,
                "per_second": per_second,
                "pile": source.pile,
            },
        )
    except psycopg.errors.UniqueViolation:
        raise QueueError("UnsupportedOperation", "There is already a task running for this queue: wait for it.") from None
    row = await cursor.fetchone()
    assert row is not None
    return str(row[0])


async def cancel(pool: Pool, project: str, handle: str) -> int:
    """Stop a task; returns how many messages it has moved."""
    try:
        task = uuid.UUID(handle)
    except ValueError:
        raise _no_such_task() from None
    cursor = await audit.run(
        pool,
        "update queue_moves t set status = 'CANCELLED' from queues q where t.id = %s and t.status = 'RUNNING'"
        " and q.id = t.source and q.project = %s returning t.moved",
        [task, project],
    )
    row = await cursor.fetchone()
    if row is None:
        raise _no_such_task()
    return int(row[0])


def _no_such_task() -> QueueError:
    return QueueError("ResourceNotFoundException", "There is no such task that is running.")


async def listed(pool: Pool, queue: Queue, most: int) -> list[Task]:
    cursor = await run(
        pool,
        "select t.id, s.name, d.name, t.per_second, t.status, t.failure, t.to_move, t.moved, t.started_at from queue_moves t"
        " join queues s on s.id = t.source left join queues d on d.id = t.destination where t.source = %s"
        " order by t.started_at desc limit %s",
        [queue.id, most],
    )
    return [Task(*row) for row in await cursor.fetchall()]


async def step(pool: Pool) -> bool:
    """One step of one task whose turn it is; False if there is none."""
    async with transaction(pool) as connection:
        cursor = await connection.execute(
            "select t.id, t.destination, t.per_second, t.started_at, s.pile from queue_moves t join queues s on s.id = t.source"
            " where t.status = 'RUNNING' and t.next_at <= now() order by t.next_at limit 1 for update of t skip locked"
        )
        row = await cursor.fetchone()
        if row is None:
            return False
        task, destination, per_second, started_at, pile = row
        most = min(per_second or _STEP, _STEP)
        which = {"pile": pile, "started_at": started_at, "destination": destination, "most": most}
        moved = (await connection.execute(_MOVE, which)).rowcount
        status, failure = ("RUNNING", None) if moved else await _ending(connection, which)
        await connection.execute(
            "update queue_moves set moved = moved + %s, status = %s, failure = %s, next_at = now() + make_interval(secs => %s)"
            " where id = %s",
            [moved, status, failure, 1 if per_second or not moved else 0, task],
        )
    return True


async def _ending(connection: AsyncConnection[Any], which: dict[str, Any]) -> tuple[str, str | None]:
    """Nothing could be moved: done, or what is left came from no queue that is still there, or somebody holds it right now."""
    left = await connection.execute(
        f"select count(*), count(s.id) from queue_messages m left join queues s on s.id = m.source where {_MOVABLE}", which
    )
    row = await left.fetchone()
    if row is None or not row[0]:
        return "COMPLETED", None
    return ("FAILED", NO_SOURCE) if which["destination"] is None and not row[1] else ("RUNNING", None)
