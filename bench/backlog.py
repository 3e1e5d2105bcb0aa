"""backlog_rate and memory_after_1m: a backlog of a million changes, against one of a hundred thousand.

Both are drained by the same stream, in pairs, through the whole path to Pub/Sub on the same machine. The rates are those of
whole backlogs. Memory is that of the stream's driver, its JVM and its Python workers: after the first backlog of a hundred
thousand, and after the last of a million.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from google.cloud import pubsub_v1

from bench.measure import Bar, Figure, Progress, interleaved, memory, ratios
from bench.streaming import Streaming, pubsub, streaming
from tidings.events.arn import PubSubTopic

NAMES = ("backlog_rate", "memory_after_1m")
_TOPIC = PubSubTopic("bench-project", "bench-events")
_WARM_UPS = 5
_OURS = ("driver", "JVM", "Python workers")
_MIB = 2**20


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    small, repeats = (20_000, 2) if quick else (100_000, 3)
    with ExitStack() as open_:
        stream = open_.enter_context(streaming(progress))
        server = open_.enter_context(pubsub(progress))
        stream.environment["TIDINGS_PUBSUB__EMULATOR_HOST"] = server
        os.environ["PUBSUB_EMULATOR_HOST"] = server  # how Google's clients learn of it
        open_.callback(os.environ.pop, "PUBSUB_EMULATOR_HOST")
        pubsub_v1.PublisherClient().create_topic(name=_TOPIC.name)  # without a subscription: nobody's memory grows
        stream.buckets("events-", _TOPIC)
        folder = Path(open_.enter_context(TemporaryDirectory(prefix="tidings-bench-")))
        open_.enter_context(stream.stream(folder, progress))
        progress(f"the first {small:,}")
        _drain(stream, small)
        before = _memory()
        stream.warm_up("events-", 300, progress)
        for number in range(_WARM_UPS):
            progress(f"warming up: {number + 1} of {_WARM_UPS} backlogs")
            _drain(stream, small)
        rates = interleaved({f"{rows:,}": partial(_drain, stream, rows) for rows in (small, 10 * small)}, repeats, 0, progress)
        after = _memory()
    few, many = rates.values()
    if "backlog_rate" in names:
        medians = ", ".join(f"{statistics.median(found):,.0f} a second of {rows}" for rows, found in rates.items())
        note = f"{medians}; to Pub/Sub on this machine, in rounds"
        yield Figure.median("backlog_rate", ratios(many, few), Bar(">=", 0.9), "", note)
    if "memory_after_1m" in names:
        ratio = sum(after.values()) / sum(before.values())
        parts = ", ".join(f"{kind} {before[kind] / _MIB:.0f} → {after[kind] / _MIB:.0f} MiB" for kind in _OURS)
        note = f"after {small:,} changes, and after {(_WARM_UPS + 11 * repeats) * small:,} more: {parts}"
        yield Figure("memory_after_1m", ratio, Bar("<=", 1.2), (ratio, ratio), "", note)


def _drain(stream: Streaming, rows: int) -> float:
    """Changes a second."""
    stream.stand_still()
    backlog = stream.fill("events-", rows)
    began = time.perf_counter()
    stream.go_on()
    stream.wait_for(backlog)
    return rows / (time.perf_counter() - began)


def _memory() -> Counter[str]:
    everything = memory(os.getpid())
    return Counter({kind: everything[kind] for kind in _OURS})
