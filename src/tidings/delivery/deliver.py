"""Delivering in Spark's Python workers: Arrow batches in, lanes side by side, one small row for each lane out."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, StructField, StructType

from tidings.delivery import publishers
from tidings.delivery.sending import LaneResult, Pending, send_lane
from tidings.events.messages import Message
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
wait for an answer, and the destination's words. A row without a lane counts changes that no rule is there for any more, and
has their bucket in place of the words."""


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


def deliver(batches: Iterator[pa.RecordBatch], terms: Terms) -> Iterator[pa.RecordBatch]:
    """Send every message of the batches, and say for each lane how far it got."""
    if terms.preload:
        publishers.preload()
    deadline: float | None = None
    results: dict[int, LaneResult] = {}
    orphans: Counter[str] = Counter()
    for batch in batches:
        lanes = _by_lane(batch, terms, orphans)
        publishers.learn(lanes)
        if deadline is None:  # the budget is for waiting on destinations, not for anything before
            deadline = time.monotonic() + terms.budget
        for lane, pending in lanes.items():
            results.setdefault(lane, LaneResult())
            if time.monotonic() >= deadline and results[lane].undelivered is None:
                results[lane].late = True
                results[lane].undelivered = pending.positions[0]
        open_lanes = {lane: pending for lane, pending in lanes.items() if results[lane].undelivered is None}
        if open_lanes:
            publishers.loop().run_until_complete(_send_lanes(open_lanes, results, terms, deadline))
    yield _rows(results, orphans)


def _by_lane(batch: pa.RecordBatch, terms: Terms, orphans: Counter[str]) -> dict[int, Pending]:
    """The messages of the batch that are owed, lane by lane. Those without a lane are counted by their bucket."""
    lanes: dict[int, Pending | None] = {}
    columns = (batch.column(name).to_pylist() for name in ("lane", "slot", "window", "seq", "id", "body"))
    for lane, slot, window, seq, id_, body in zip(*columns, strict=True):
        if lane is None:
            orphans[body] += 1
            continue
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
            destination = publishers.for_lane(lane)
            probe = lane in terms.probing and results[lane].sent == 0
            group.create_task(send_lane(destination, pending, results[lane], terms.timeout, deadline, probe))


def _rows(results: dict[int, LaneResult], orphans: Counter[str]) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
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
    rows += [{"sent": number, "late": False, "seconds": 0.0, "error": bucket} for bucket, number in orphans.items()]
    return pa.RecordBatch.from_pylist(rows, schema=_ARROW)


_ARROW = to_arrow_schema(RESULT)
