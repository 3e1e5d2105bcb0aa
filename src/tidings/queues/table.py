"""The table of queues, with their grants."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, LiteralString

from psycopg import AsyncConnection

from tidings import audit
from tidings.db.pool import Pool, run
from tidings.queues.errors import QueueError, no_such_queue
from tidings.queues.model import Queue, no_dead_letter_queue

PURGE_SECONDS = 60
"""Between two purges of a queue, as SQS has it."""

_COLUMNS: LiteralString = (
    "q.id, q.pile, q.project, q.name, q.visibility_seconds, q.retention_seconds, q.delay_seconds, q.max_bytes, q.wait_seconds,"
    " q.dead_letter, q.max_receives, q.tags, q.created_at, q.modified_at"
)
assert [each.split(".")[1] for each in _COLUMNS.replace(" ", "").split(",")] == [each.name for each in fields(Queue)]


async def find(pool: Pool, project: str, name: str) -> Queue | None:
    row = await (
        await run(pool, f"select {_COLUMNS} from queues q where q.project = %s and q.name = %s", [project, name])
    ).fetchone()
    return None if row is None else Queue(*row)


async def find_granted(pool: Pool, project: str, name: str, caller: str, actions: Sequence[str]) -> Queue | None:
    """Another project's queue, if it has granted one of these actions to the caller."""
    statement: LiteralString = f"""
        select {_COLUMNS} from queues q where q.project = %s and q.name = %s
        and exists (select from queue_grants g where g.queue = q.id and g.project = %s and g.action = any(%s))"""
    row = await (await run(pool, statement, [project, name, caller, list(actions)])).fetchone()
    return None if row is None else Queue(*row)


async def create(pool: Pool, project: str, name: str, columns: Mapping[str, Any], tags: Mapping[str, str], most: int) -> Queue:
    """A new queue; one that is there already and has these attributes is as good."""
    async with audit.transaction(pool) as connection:
        await connection.execute("select pg_advisory_xact_lock(hashtextextended('queues of ' || %s, 0))", [project])
        there = await _read(connection, project, name)
        if there is not None:
            _check_same(there, columns)
            return there
        count = await (await connection.execute("select count(*) from queues where project = %s", [project])).fetchone()
        if count is None or count[0] >= most:
            raise QueueError("OverLimit", f"The project has {most} queues, as many as it may: delete one, or ask the operator.")
        await _check_dead_letter(connection, project, columns)
        await connection.execute(
            "insert into queues (project, name, tags) values (%s, %s, %s::jsonb)", [project, name, json.dumps(dict(tags))]
        )
        await _set(connection, project, name, columns)
        made = await _read(connection, project, name)
    assert made is not None
    return made


def _check_same(there: Queue, columns: Mapping[str, Any]) -> None:
    for column, value in columns.items():
        if getattr(there, column) != value:
            raise QueueError(
                "QueueNameExists",
                f"A queue named {there.name!r} already exists with another value for {column}: {getattr(there, column)!r}."
                " Change it with SetQueueAttributes.",
            )


async def _read(connection: AsyncConnection[Any], project: str, name: str) -> Queue | None:
    row = await (
        await connection.execute(f"select {_COLUMNS} from queues q where q.project = %s and q.name = %s", [project, name])
    ).fetchone()
    return None if row is None else Queue(*row)


async def _check_dead_letter(connection: AsyncConnection[Any], project: str, columns: Mapping[str, Any]) -> None:
    name = columns.get("dead_letter")
    if name is not None and await _read(connection, project, name) is None:
        raise no_dead_letter_queue(name)


async def _set(connection: AsyncConnection[Any], project: str, name: str, columns: Mapping[str, Any]) -> int:
    changed = await connection.execute(
        """
        update queues set
            visibility_seconds = coalesce(%(visibility_seconds)s, visibility_seconds),
            retention_seconds = coalesce(%(retention_seconds)s, retention_seconds),
            delay_seconds = coalesce(%(delay_seconds)s, delay_seconds),
            max_bytes = coalesce(%(max_bytes)s, max_bytes),
            wait_seconds = coalesce(%(wait_seconds)s, wait_seconds),
            dead_letter = case when %(redrive)s then %(dead_letter)s else dead_letter end,
            max_receives = case when %(redrive)s then %(max_receives)s else max_receives end,
            modified_at = now()
        where project = %(project)s and name = %(name)s
        """,
        {
            **dict.fromkeys(each.name for each in fields(Queue)),
            **columns,
            "redrive": "dead_letter" in columns,
            "project": project,
            "name": name,
        },
    )
    return changed.rowcount


async def change(pool: Pool, queue: Queue, columns: Mapping[str, Any]) -> None:
    async with audit.transaction(pool) as connection:
        await _check_dead_letter(connection, queue.project, columns)
        if not await _set(connection, queue.project, queue.name, columns):
            raise no_such_queue()


async def delete(pool: Pool, queue: Queue) -> None:
    await audit.run(pool, "delete from queues where id = %s", [queue.id])


async def purge(pool: Pool, queue: Queue) -> None:
    done = await audit.run(
        pool,
        "update queues set pile = nextval('queue_piles'), purged_at = now() where id = %s"
        " and (purged_at is null or purged_at < now() - make_interval(secs => %s))",
        [queue.id, PURGE_SECONDS],
    )
    if not done.rowcount:
        message = f"Only one PurgeQueue operation on {queue.name} is allowed every {PURGE_SECONDS} seconds."
        raise QueueError("PurgeQueueInProgress", message)


async def listed(pool: Pool, project: str, prefix: str, after: str, most: int) -> list[str]:
    """Names of a project's queues that begin with `prefix`, after `after`."""
    cursor = await run(
        pool,
        "select name from queues where project = %s and name > %s and starts_with(name, %s) order by name limit %s",
        [project, after, prefix, most],
    )
    return [row[0] for row in await cursor.fetchall()]


async def sources(pool: Pool, queue: Queue, after: str, most: int) -> list[str]:
    """Names of the queues whose dead letters go to this one."""
    cursor = await run(
        pool,
        "select name from queues where project = %s and dead_letter = %s and name > %s order by name limit %s",
        [queue.project, queue.name, after, most],
    )
    return [row[0] for row in await cursor.fetchall()]


async def set_tags(pool: Pool, queue: Queue, tags: Mapping[str, str]) -> None:
    await audit.run(pool, "update queues set tags = tags || %s::jsonb where id = %s", [json.dumps(dict(tags)), queue.id])


async def remove_tags(pool: Pool, queue: Queue, keys: Sequence[str]) -> None:
    await audit.run(pool, "update queues set tags = tags - %s::text[] where id = %s", [list(keys), queue.id])


async def grant(pool: Pool, queue: Queue, label: str, projects: Sequence[str], actions: Sequence[str]) -> None:
    async with audit.transaction(pool) as connection:
        known = await connection.execute("select count(*) from projects where public_id = any(%s)", [list(projects)])
        row = await known.fetchone()
        if row is None or row[0] != len(set(projects)):
            raise QueueError("InvalidParameterValueException", "Not all of AWSAccountIds are public ids of projects here.")
        done = await connection.execute(
            "insert into queue_grants (queue, label, project, action)"
            " select %(queue)s, %(label)s, p, a from unnest(%(projects)s::text[]) p, unnest(%(actions)s::text[]) a"
            " where not exists (select from queue_grants where queue = %(queue)s and label = %(label)s)",
            {"queue": queue.id, "label": label, "projects": sorted(set(projects)), "actions": sorted(set(actions))},
        )
        if not done.rowcount:
            raise QueueError(
                "InvalidParameterValueException", f"The label {label!r} is taken: remove it first, or take another one."
            )


async def revoke(pool: Pool, queue: Queue, label: str) -> None:
    done = await audit.run(pool, "delete from queue_grants where queue = %s and label = %s", [queue.id, label])
    if not done.rowcount:
        raise QueueError("InvalidParameterValueException", f"There is no permission labelled {label!r} on this queue.")


async def grants(pool: Pool, queue: Queue) -> list[tuple[str, list[str], list[str]]]:
    """(label, projects, actions) of each permission."""
    cursor = await run(
        pool,
        "select label, array_agg(distinct project), array_agg(distinct action) from queue_grants where queue = %s"
        " group by label order by label",
        [queue.id],
    )
    return [(row[0], row[1], row[2]) for row in await cursor.fetchall()]
