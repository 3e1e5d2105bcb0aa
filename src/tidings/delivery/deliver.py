"""Sending: one Arrow batch after the other, lanes side by side, one message of a key in flight.

Runs in Spark's Python workers. A lane stops at its first failure; what it owes from there on is left to a later try.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, StructField, StructType

from tidings import destinations, plugins
from tidings.delivery import publishers
from tidings.events.messages import Message, Outcome, Verdict
from tidings.events.positions import Position

RESULT = StructType(
    [
        StructField("lane", LongType()),
        StructField("sent", LongType()),
        StructField("window", LongType()),
        StructField("seq", LongType()),
        StructField("late", BooleanType()),
        StructField("seconds", DoubleType()),
        StructField("error", StringType()),
    ]
)
"""One row for each lane: how many messages were confirmed, the first that was not, whether only time ran out, the longest
wait for an answer, and the destination's words."""


@dataclass(frozen=True)
class Terms:
    """Which lanes are served and from where, how long a delivery may take, and who tries one message before the rest."""

    budget: float
    timeout: float
    everyone_from: Position | None = None
    """Lanes that are not named below are served from here; if it is None they are not served."""
    starts: Mapping[int, Position] = field(default_factory=dict)
    skipped: frozenset[int] = frozenset()
    probing: frozenset[int] = frozenset()
    preload: bool = False
    """Load every destination's client, although nothing is sent: for warming up."""

    def start_of(self, lane: int) -> Position | None:
        return None if lane in self.skipped else self.starts.get(lane, self.everyone_from)

    def to_list(self) -> list[Any]:
        starts = [[lane, *start] for lane, start in self.starts.items()]
        return [self.budget, self.timeout, self.everyone_from, starts, sorted(self.skipped), sorted(self.probing), self.preload]

    @classmethod
    def from_list(cls, values: list[Any]) -> Terms:
        budget, timeout, everyone, starts, skipped, probing, preload = values
        return cls(
            budget,
            timeout,
            Position(*everyone) if everyone else None,
            {lane: Position(window, seq) for lane, window, seq in starts},
            frozenset(skipped),
            frozenset(probing),
            preload,
        )


@dataclass
class LaneResult:
    """What became of one lane in one task."""

    sent: int = 0
    undelivered: Position | None = None
    late: bool = False
    seconds: float = 0.0
    error: str | None = None


@dataclass
class Pending:
    """The messages of one lane in one Arrow batch after `start`, in order of position."""

    start: Position
    slots: list[int] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


def deliver(batches: Iterator[pa.RecordBatch], terms: Terms) -> Iterator[pa.RecordBatch]:
    """Send every message of the batches, and say for each lane how far it got."""
    if terms.preload:
        publishers.preload()
    deadline: float | None = None
    results: dict[int, LaneResult] = {}
    for batch in batches:
        if deadline is None:  # the budget is for waiting on destinations, not for reading and rendering
            deadline = time.monotonic() + terms.budget
        lanes = _by_lane(batch, terms)
        for lane, pending in lanes.items():
            results.setdefault(lane, LaneResult())
            if time.monotonic() >= deadline and results[lane].undelivered is None:
                results[lane].late = True
                results[lane].undelivered = pending.positions[0]
        open_lanes = {lane: pending for lane, pending in lanes.items() if results[lane].undelivered is None}
        if open_lanes:
            publishers.loop().run_until_complete(_send_lanes(open_lanes, results, terms, deadline))
    yield _rows(results)


def _by_lane(batch: pa.RecordBatch, terms: Terms) -> dict[int, Pending]:
    """The messages of the batch that are owed, lane by lane."""
    lanes: dict[int, Pending | None] = {}
    columns = (batch.column(name).to_pylist() for name in ("lane", "slot", "window", "seq", "id", "body"))
    for lane, slot, window, seq, id_, body in zip(*columns, strict=True):
        if lane not in lanes:
            start = terms.start_of(lane)
            lanes[lane] = None if start is None else Pending(start)
        pending = lanes[lane]
        if pending is None or (window, seq) <= pending.start:
            continue
        pending.slots.append(slot)
        pending.positions.append(Position(window, seq))
        pending.messages.append(Message(id_, body.encode(), {"id": id_, "sequencer": f"{seq:016X}"}))
    return {lane: pending for lane, pending in lanes.items() if pending is not None and pending.messages}


async def _send_lanes(lanes: dict[int, Pending], results: dict[int, LaneResult], terms: Terms, deadline: float) -> None:
    async with asyncio.TaskGroup() as group:
        for lane, pending in lanes.items():
            group.create_task(_send_lane(lane, pending, results[lane], terms, deadline))


async def _send_lane(lane: int, pending: Pending, result: LaneResult, terms: Terms, deadline: float) -> None:
    """Wave after wave: each wave holds the next message of every key, so that no key ever has two in flight."""
    arn = publishers.arn_of(lane)
    destination = publishers.connected(arn)
    left: Sequence[int] = range(len(pending.messages))
    probe = lane in terms.probing and result.sent == 0
    while left:
        wave, later = _next_wave(left, pending.slots, 1 if probe else None)
        probe = False
        timeout = min(terms.timeout, deadline - time.monotonic())
        if timeout <= 0:
            result.late, result.undelivered = True, pending.positions[left[0]]
            return
        began = time.monotonic()
        outcomes = await _send_wave(destination, arn, wave, pending.messages, timeout)
        result.seconds = max(result.seconds, time.monotonic() - began)
        failed = [i for i, outcome in zip(wave, outcomes, strict=True) if outcome.verdict is not Verdict.SENT]
        result.sent += len(wave) - len(failed)
        if failed:
            result.undelivered = pending.positions[min(failed[0], later[0]) if later else failed[0]]
            result.late = time.monotonic() >= deadline
            result.error = next(outcome.reason for outcome in outcomes if outcome.verdict is not Verdict.SENT)
            return
        left = later


def _next_wave(left: Sequence[int], slots: list[int], limit: int | None) -> tuple[list[int], list[int]]:
    """Split what is left into the first message of each key, at most `limit` of them, and the rest; order is kept."""
    wave: list[int] = []
    later: list[int] = []
    taken: set[int] = set()
    for i in left:
        if slots[i] in taken or len(wave) == limit:
            later.append(i)
        else:
            taken.add(slots[i])
            wave.append(i)
    return wave, later


async def _send_wave(
    destination: destinations.Destination, arn: str, wave: list[int], messages: list[Message], timeout: float
) -> list[Outcome]:
    """Send a wave in as many calls as the destination needs, side by side: all its keys are different."""
    kind = plugins.load("destinations", destinations.kind_of(arn))
    calls = [
        destination.send([messages[i] for i in chunk], timeout)
        for chunk in _chunks(wave, messages, kind.MAX_BATCH, kind.MAX_BYTES)
    ]
    return [outcome for outcomes in await asyncio.gather(*calls) for outcome in outcomes]


def _chunks(wave: list[int], messages: list[Message], max_batch: int, max_bytes: int) -> Iterator[list[int]]:
    chunk: list[int] = []
    room = max_bytes
    for i in wave:
        size = len(messages[i].body)
        if chunk and (len(chunk) == max_batch or size > room):
            yield chunk
            chunk, room = [], max_bytes
        chunk.append(i)
        room -= size
    if chunk:
        yield chunk


def _rows(results: dict[int, LaneResult]) -> pa.RecordBatch:
    rows = [
        {
            "lane": lane,
            "sent": result.sent,
            "window": result.undelivered.window if result.undelivered else None,
            "seq": result.undelivered.seq if result.undelivered else None,
            "late": result.late,
            "seconds": result.seconds,
            "error": result.error,
        }
        for lane, result in results.items()
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_ARROW)


_ARROW = to_arrow_schema(RESULT)
