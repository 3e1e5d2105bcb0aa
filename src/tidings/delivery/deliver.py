"""Delivering in Spark's Python workers: Arrow batches in, lanes side by side, one small row for each lane out."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BooleanType, DoubleType, LongType, StringType, StructField, StructType

from tidings.delivery import publishers
from tidings.delivery.sending import Care, Dead, LaneResult, Pending, send_lane
from tidings.delivery.unanswered import Unanswered, merge
from tidings.events.messages import PROJECT, Message
from tidings.events.positions import Position

log = logging.getLogger(__name__)

RESULT = StructType(
    [
        StructField("lane", LongType()),
        StructField("sent", LongType()),
        StructField("bytes", LongType()),
        StructField("window", LongType()),
        StructField("seq", LongType()),
        StructField("late", BooleanType()),
        StructField("waits", BooleanType()),
        StructField("seconds", DoubleType()),
        StructField("after", DoubleType()),
        StructField("error", StringType()),
        StructField("dead", StringType()),
        StructField("delays", ArrayType(LongType())),
        StructField("delay", DoubleType()),
        StructField("unanswered", StringType()),
    ]
)
"""One row for each lane: how many messages were confirmed and their bytes, the first that was not, whether only time ran out,
whether it waits for somebody to act, the longest wait for an answer, how long the peer asked us to wait, and the destination's
words; dead letters as JSON; and how long changes took from their commit: how many for each of DELAYS, and the sum in seconds.
A row without a lane counts changes that no rule is there for any more, and has their bucket in place of the words; or it has
an `Unanswered`."""


@dataclass(frozen=True)
class Terms:
    """Which lanes are served and from where, how long a delivery may take, and who is tried with what care."""

    budget: float
    timeout: float
    everyone_from: Position | None = None
    """Lanes that are not named below are served from here; if it is None they are not served."""
    starts: Mapping[int, Position] = field(default_factory=dict)
    skipped: frozenset[int] = frozenset()
    care: Mapping[int, Care] = field(default_factory=dict)
    tries: Mapping[int, int] = field(default_factory=dict)
    """How often lanes have failed in a row, where they have."""
    replays: frozenset[int] = frozenset()
    """Lanes whose messages are marked: they have been sent before."""
    backfills: frozenset[int] = frozenset()
    """Lanes whose messages are marked: they tell of what was there before the rule."""
    preload: bool = False
    """Load every destination's client, although nothing is sent: for warming up."""
    ends: Mapping[int, Position] = field(default_factory=dict)
    """Up to where lanes are served, where that is not the end of what is read."""

    def start_of(self, lane: int) -> Position | None:
        return None if lane in self.skipped else self.starts.get(lane, self.everyone_from)

    def to_list(self) -> list[Any]:
        starts, ends = ([[lane, *at] for lane, at in of.items()] for of in (self.starts, self.ends))
        care, tries = list(self.care.items()), list(self.tries.items())
        lanes = sorted(self.skipped), sorted(self.replays), sorted(self.backfills)
        return [self.budget, self.timeout, self.everyone_from, starts, care, tries, *lanes, self.preload, ends]

    @classmethod
    def from_list(cls, values: list[Any]) -> Terms:
        budget, timeout, everyone, starts, care, tries, skipped, replays, backfills, preload, ends = values
        return cls(
            budget,
            timeout,
            Position(*everyone) if everyone else None,
            {lane: Position(window, seq) for lane, window, seq in starts},
            frozenset(skipped),
            dict(care),
            dict(tries),
            frozenset(replays),
            frozenset(backfills),
            preload,
            {lane: Position(window, seq) for lane, window, seq in ends},
        )


def deliver(batches: Iterator[pa.RecordBatch], terms: Terms) -> Iterator[pa.RecordBatch]:
    """Send every message of the batches, and say for each lane how far it got."""
    if terms.preload:
        publishers.preload()
    deadline: float | None = None
    results: dict[int, LaneResult] = {}
    orphans: Counter[str] = Counter()
    unanswered: list[Unanswered] = []
    for batch in batches:
        lanes = by_lane(batch, terms, results, orphans, unanswered)
        publishers.learn(lanes)
        if deadline is None:  # the budget is for waiting on destinations, not for anything before
            deadline = time.monotonic() + terms.budget
        for lane, pending in lanes.items():
            if time.monotonic() >= deadline and results[lane].undelivered is None:
                results[lane].late = True
                results[lane].undelivered = pending.position(0)
        open_lanes = {lane: pending for lane, pending in lanes.items() if results[lane].undelivered is None}
        if open_lanes:
            publishers.loop().run_until_complete(_send_lanes(open_lanes, results, terms, deadline))
        for lane in lanes:
            results[lane].end()
    yield _rows(results, orphans, merge(unanswered))


def by_lane(
    batch: pa.RecordBatch,
    terms: Terms,
    results: dict[int, LaneResult],
    orphans: Counter[str],
    unanswered: list[Unanswered],
) -> dict[int, Pending]:
    """The messages of the batch that are owed, lane by lane. Those without a lane are counted by their bucket."""
    batch, runs = _runs(batch)
    slots, windows, seqs, written, ids, bodies, keys, beside, projects = _lists(batch)
    lanes: dict[int, Pending] = {}
    for lane, begin, end in runs:
        if lane is None:
            unanswered += [Unanswered.from_text(each) for each in beside[begin:end] if each]
            orphans.update(bodies[at].decode() for at in range(begin, end) if not beside[at])
            continue
        start = terms.start_of(lane)
        if start is None:
            continue
        result = results.setdefault(lane, LaneResult())
        first = bisect_right(range(end), start, begin, key=lambda i: Position(windows[i], seqs[i]))
        if lane in terms.ends:
            end = bisect_right(range(end), terms.ends[lane], first, key=lambda i: Position(windows[i], seqs[i]))
        if first == end or result.undelivered is not None:
            continue
        if None in bodies[first:end]:  # from there on nothing of this lane, or it would be out of order
            end = bodies.index(None, first, end)
            result.unready = Position(windows[end], seqs[end])
            if first == end:
                result.end()
                continue
        owed = slice(first, end)
        pending = Pending(slots[owed], windows[owed], seqs[owed], [], written[owed])
        # of the change, not of the lane: a topic's subscription gets what every project publishes there
        attributes = [
            {"id": id_, "sequencer": f"{seq:016X}", PROJECT: project}
            for id_, seq, project in zip(ids[owed], pending.seqs, projects[owed], strict=True)
        ]
        for own, more in zip(attributes, beside[owed], strict=True) if any(beside[owed]) else ():
            own |= json.loads(more or "{}")
        for name, marked in (("replay", terms.replays), ("backfill", terms.backfills)):
            for own in attributes if lane in marked else ():
                own[name] = "true"
        groups = [f"{slot & _64_BITS:016x}" for slot in pending.slots]
        pending.messages = list(map(Message, ids[owed], bodies[owed], attributes, keys[owed], groups))
        lanes[lane] = pending
    return lanes


def _runs(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[tuple[int | None, int, int]]]:
    """The batch with the rows of each lane side by side, in their order; and where each lane begins and ends."""
    runs = pc.run_end_encode(batch.column("lane"))
    if len(runs.values) > len(pc.unique(runs.values)):
        batch = batch.take(pc.sort_indices(batch.column("lane")))  # Arrow's sort is stable
        runs = pc.run_end_encode(batch.column("lane"))
    ends = runs.run_ends.to_pylist()
    return batch, list(zip(runs.values.to_pylist(), [0, *ends], ends, strict=False))


def _lists(batch: pa.RecordBatch) -> list[list[Any]]:
    """The columns after the lane. Text becomes bytes where it is sent as bytes."""
    bytes_ = {"body", "key"}
    return [
        (column.cast(pa.binary()) if name in bytes_ else column).to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name != "lane"
    ]


_64_BITS = 0xFFFFFFFFFFFFFFFF


async def _send_lanes(lanes: dict[int, Pending], results: dict[int, LaneResult], terms: Terms, deadline: float) -> None:
    async with asyncio.TaskGroup() as group:
        for lane, pending in lanes.items():
            group.create_task(_send_lane(lane, pending, results[lane], terms, deadline))


async def _send_lane(lane: int, pending: Pending, result: LaneResult, terms: Terms, deadline: float) -> None:
    """What goes wrong in one lane, also in a way that nobody has thought of, is that lane's alone."""
    fresh = result.sent == 0
    try:
        destination = publishers.for_lane(lane, terms.tries.get(lane, 0) if fresh else 0)
        care: Care = terms.care.get(lane, "none") if fresh else "none"
        await send_lane(destination, pending, result, terms.timeout, deadline, care)
    except Exception as error:
        log.exception("lane %s: its destination failed in a way that it should not", lane, extra={"lane": lane})
        result.undelivered, result.late, result.error = pending.position(0), False, f"{type(error).__name__}: {error}"


def _rows(results: dict[int, LaneResult], orphans: Counter[str], unanswered: Sequence[Unanswered]) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {
            "lane": lane,
            "sent": result.sent,
            "bytes": result.bytes,
            "window": result.undelivered.window if result.undelivered else None,
            "seq": result.undelivered.seq if result.undelivered else None,
            "late": result.late,
            "waits": result.waits,
            "seconds": result.seconds,
            "after": result.after,
            "error": result.error,
            "dead": json.dumps([_letter(dead) for dead in result.dead]) if result.dead else None,
            "delays": result.delays,
            "delay": result.delay,
        }
        for lane, result in results.items()
    ]
    rows += [{"sent": number, "error": bucket} for bucket, number in orphans.items()]
    rows += [{"unanswered": each.to_text()} for each in unanswered]
    return pa.RecordBatch.from_pylist(rows, schema=_ARROW)


def _letter(dead: Dead) -> dict[str, Any]:
    message = dead.message
    return {
        "win": dead.position.window,
        "seq": dead.position.seq,
        "message": message.id,
        "body": message.body.decode(),
        "attributes": message.attributes,
        "label": None if message.key is None else message.key.decode(),
        "reason": dead.reason,
    }


_ARROW = to_arrow_schema(RESULT)
