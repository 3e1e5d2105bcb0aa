"""How far the topics were read. PostgreSQL holds the only position; it moves in the transaction that merges what was read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, LiteralString, NamedTuple

import psycopg

from tidings.consumers.staging import stage
from tidings.errors import OperatorError, Superseded

Offsets = dict[str, dict[int, int]]
"""By topic and partition: the offset of the next message to read."""


class Ends(NamedTuple):
    """What a partition holds: the messages from `low` up to, but not with, `high`."""

    low: int
    high: int


def load(connection: psycopg.Connection[Any], cluster: str, topics: Iterable[str]) -> Offsets:
    rows = connection.execute(
        "select topic, part, next_offset from inventory_offsets where cluster = %s and topic = any(%s)",
        [cluster, list(topics)],
    ).fetchall()
    found: Offsets = {}
    for topic, part, offset in rows:
        found.setdefault(topic, {})[part] = offset
    return found


_MOVE: LiteralString = """
with moved as (
    update inventory_offsets o set next_offset = s.next_offset
    from pg_temp.inventory_moves s
    where (o.cluster, o.topic, o.part) = (s.cluster, s.topic, s.part) and o.next_offset = s.expected
    returning o.topic
), added as (
    insert into inventory_offsets (cluster, topic, part, next_offset)
    select cluster, topic, part, next_offset from pg_temp.inventory_moves where expected is null
    on conflict do nothing
    returning topic
)
select (select count(*) from moved) + (select count(*) from added)
"""
_MOVES: dict[str, LiteralString] = {
    "cluster": "text",
    "topic": "text",
    "part": "integer",
    "expected": "bigint",
    "next_offset": "bigint",
}


def move(connection: psycopg.Connection[Any], cluster: str, expected: Offsets, to: Offsets) -> None:
    """From where this consumer knows the positions to be; if one is elsewhere, somebody else has gone on from there."""
    moves = [
        (cluster, topic, part, expected.get(topic, {}).get(part), offset)
        for topic, parts in to.items()
        for part, offset in parts.items()
    ]
    stage(connection, "inventory_moves", _MOVES, moves)
    row = connection.execute(_MOVE).fetchone()
    assert row is not None
    connection.execute("drop table pg_temp.inventory_moves")
    if row[0] != len(moves):
        raise Superseded(
            "Another consumer of the inventory has moved the positions: one is enough, this one waits for it to end."
        )


def forget(connection: psycopg.Connection[Any], cluster: str) -> None:
    """For brokers that hold nothing any more: their topics are read from the beginning."""
    connection.execute("delete from inventory_offsets where cluster = %s", [cluster])


def beginning(stored: Offsets, ends: Mapping[str, Mapping[int, Ends]], accept_loss: bool) -> Offsets:
    """Where to read on: at the stored position; a partition without one is read from its oldest message.

    A position outside of what its partition holds means that messages are gone, or that the topic is another one by now. Then
    the inventory can no longer be complete by events alone, and somebody must know.
    """
    start: Offsets = {}
    for topic, parts in ends.items():
        for part, (low, high) in parts.items():
            position = stored.get(topic, {}).get(part, low)
            if not low <= position <= high:
                if not accept_loss:
                    raise OperatorError(_gone(topic, part, position, low, high))
                position = low
            start.setdefault(topic, {})[part] = position
    return start


def _gone(topic: str, part: int, position: int, low: int, high: int) -> str:
    what = (
        f"messages {position} to {low - 1} of {topic}/{part} are gone unread"
        if position < low
        else f"{topic}/{part} was read up to {position} and now ends at {high}, so it was made anew"
    )
    return f"The inventory is not complete: {what}. `tidings consume inventory --accept-loss` goes on with what there is."


def behind(at: Offsets, ends: Mapping[str, Mapping[int, Ends]]) -> int:
    """How many messages are still to be read, at most: some offsets may be nobody's."""
    return sum(
        high - max(low, at.get(topic, {}).get(part, low))
        for topic, parts in ends.items()
        for part, (low, high) in parts.items()
    )
