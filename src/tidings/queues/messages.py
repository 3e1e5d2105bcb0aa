"""The messages of queues: sent, received for a while, deleted. Each is one statement."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, NamedTuple

from tidings.db.pool import Pool, run
from tidings.queues.content import Content
from tidings.queues.errors import QueueError, no_such_queue
from tidings.queues.model import Queue

NOT_EXPIRED: LiteralString = "uuid_extract_timestamp(m.id) > now() - make_interval(secs => %(retention)s)"

SEND: LiteralString = """
insert into queue_messages (pile, body, attributes, trace, sender, visible_at)
select q.pile, m.body, m.attributes::jsonb, m.trace, %(sender)s,
       clock_timestamp() + make_interval(secs => coalesce(m.delay, q.delay_seconds))
from queues q cross join unnest(%(bodies)s::text[], %(attributes)s::text[], %(traces)s::text[], %(delays)s::integer[])
    with ordinality m (body, attributes, trace, delay, place)
where q.project = %(project)s and q.name = %(name)s
order by m.place
returning id
"""
"""The pile is read here and nowhere before: a message for a pile that a purge has left would be acknowledged and gone."""

# What was received too often goes to the dead letter queue instead, if that is there; else it is received once more.
_RECEIVE: LiteralString = f"""
with letters as materialized (
    select pile from queues where project = %(project)s and name = %(dead_letter)s
), picked as materialized (
    select m.id, m.receives >= %(max_receives)s and exists (select from letters) as poisoned
    from queue_messages m
    where m.pile = %(pile)s and m.visible_at <= now() and {NOT_EXPIRED}
    order by m.visible_at, m.id limit %(most)s
    for update skip locked
), moved as (
    update queue_messages m
    set pile = letters.pile, visible_at = now(), receives = 0, receipt = null, first_received_at = null, source = %(queue)s
    from picked p, letters
    where m.pile = %(pile)s and m.id = p.id and p.poisoned
    returning m.id
), taken as (
    update queue_messages m
    set receipt = gen_random_uuid(), receives = m.receives + 1, first_received_at = coalesce(m.first_received_at, now()),
        visible_at = now() + make_interval(secs => %(visibility)s)
    from picked p
    where m.pile = %(pile)s and m.id = p.id and p.poisoned is not true
    returning old.visible_at as was_visible_at, m.id, m.receipt, m.body, m.attributes, m.trace, m.sender, m.receives,
              m.first_received_at, m.source
)
select t.id, t.receipt, t.body, t.attributes, t.trace, t.sender, uuid_extract_timestamp(t.id), t.receives, t.first_received_at,
       (select q.name from queues q where q.id = t.source), (select count(*) from moved)
from (select 1) one left join taken t on true
order by t.was_visible_at, t.id
"""

_MOST_DEAD = 100
"""Rounds of dead letters before a receive gives up for this time."""


@dataclass(frozen=True, slots=True)
class Received:
    id: uuid.UUID
    receipt: uuid.UUID
    body: str
    attributes: Mapping[str, Any]
    trace: str | None
    sender: str
    sent_at: datetime
    receives: int
    first_received_at: datetime
    source: str | None
    """The name of the queue that it was a dead letter of."""


class Handle(NamedTuple):
    """What a receiver holds: which message, and which receive of it. Nobody guesses the second."""

    queue: int
    message: uuid.UUID
    receipt: uuid.UUID

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self.queue.to_bytes(8, "big") + self.message.bytes + self.receipt.bytes).decode()

    @classmethod
    def parse(cls, text: str, queue: Queue) -> Handle:
        try:
            raw = base64.b64decode(text, altchars=b"-_", validate=True)
        except ValueError:
            raw = b""
        if len(raw) != 40 or int.from_bytes(raw[:8], "big") != queue.id:
            raise QueueError("ReceiptHandleIsInvalid", f"The receipt handle {text[:100]!r} is not one of this queue.")
        return cls(queue.id, uuid.UUID(bytes=raw[8:24]), uuid.UUID(bytes=raw[24:]))


def sending(project: str, name: str, sender: str, contents: Sequence[Content]) -> dict[str, Any]:
    """The parameters of `SEND`."""
    return {
        "project": project,
        "name": name,
        "sender": sender,
        "bodies": [each.body for each in contents],
        "attributes": [json.dumps(each.attributes) for each in contents],
        "traces": [each.trace for each in contents],
        "delays": [each.delay for each in contents],
    }


async def send(pool: Pool, queue: Queue, sender: str, contents: Sequence[Content]) -> list[str]:
    """Keep these messages, all or none; returns their ids when they are durable."""
    cursor = await run(pool, SEND, sending(queue.project, queue.name, sender, contents))
    if cursor.rowcount != len(contents):
        raise no_such_queue()
    return [str(row[0]) for row in await cursor.fetchall()]


async def receive(pool: Pool, queue: Queue, most: int, visibility: int) -> list[Received]:
    """Messages that nobody else gets for `visibility` seconds. Those that were received too often are moved out of the way."""
    parameters = {
        "queue": queue.id,
        "project": queue.project,
        "pile": queue.pile,
        "dead_letter": queue.dead_letter,
        "max_receives": queue.max_receives,
        "retention": queue.retention_seconds,
        "visibility": visibility,
        "most": most,
    }
    for _ in range(_MOST_DEAD):
        rows = await (await run(pool, _RECEIVE, parameters)).fetchall()
        found = [Received(*row[:10]) for row in rows if row[0] is not None]
        if found or not rows[0][10]:
            return found
    return []


async def delete(pool: Pool, queue: Queue, handles: Sequence[Handle]) -> None:
    """Of an older receive than the last a handle deletes nothing, without a word, as SQS has it."""
    await run(
        pool,
        "delete from queue_messages m using unnest(%s::uuid[], %s::uuid[]) h (id, receipt)"
        " where m.pile = %s and m.id = h.id and m.receipt = h.receipt",
        [[each.message for each in handles], [each.receipt for each in handles], queue.pile],
    )


async def change_visibility(pool: Pool, queue: Queue, changes: Sequence[tuple[Handle, int]]) -> set[uuid.UUID]:
    """Returns the messages that were in flight, and now are so for the given number of seconds from now."""
    cursor = await run(
        pool,
        "update queue_messages m set visible_at = now() + make_interval(secs => h.seconds)"
        " from unnest(%s::uuid[], %s::uuid[], %s::integer[]) h (id, receipt, seconds)"
        " where m.pile = %s and m.id = h.id and m.receipt = h.receipt and m.visible_at > now() returning m.id",
        [
            [handle.message for handle, _ in changes],
            [handle.receipt for handle, _ in changes],
            [seconds for _, seconds in changes],
            queue.pile,
        ],
    )
    return {row[0] for row in await cursor.fetchall()}


class Counts(NamedTuple):
    visible: int
    in_flight: int
    delayed: int


async def counts(pool: Pool, queue: Queue) -> Counts:
    """Most are visible, as a rule: they are counted apart, from the index alone."""
    cursor = await run(
        pool,
        f"""
        select (select count(*) from queue_messages m where m.pile = %(pile)s and m.visible_at <= now() and {NOT_EXPIRED}),
               count(*) filter (where m.receipt is not null), count(*) filter (where m.receipt is null)
        from queue_messages m where m.pile = %(pile)s and m.visible_at > now() and {NOT_EXPIRED}
        """,
        {"pile": queue.pile, "retention": queue.retention_seconds},
    )
    row = await cursor.fetchone()
    assert row is not None
    return Counts(*row)
