"""latency_p50 and latency_p99: from the commit of a change to its arrival at a subscriber, through a whole stack.

A change is committed, for this purpose, at its `changes.at`: PostgreSQL's clock in the writing statement, just before the
flush to disk, so the flush counts as latency. It has arrived when Google's subscriber calls back. Both clocks are this
machine's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from google.cloud import pubsub_v1

from bench.measure import Bar, CannotMeasure, Figure, Progress, cpu_seconds, said
from bench.requests import Signer, await_answer
from bench.stack import PREFIX, TOPIC, Stack, bucket, running
from tidings.local import topics

NAMES = ("latency_p50", "latency_p99")
PER_SECOND = 50
BUCKET = "bench-latency"
_WRITERS = 4
_WARM_UP = 100
_SLICES = 5
_WAIT_SECONDS = 60.0
_BARS = {"latency_p50": (0.50, Bar("<=", 0.5)), "latency_p99": (0.99, Bar("<=", 1.5))}


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    seconds = 10 if quick else 60
    with running(progress) as stack:
        topics.create(TOPIC.name)
        bucket(stack.ready, BUCKET, eventing=True)
        with arriving() as arrivals:
            progress("warming up")
            write(stack, "warm", _WARM_UP)
            arrivals.wait_for(_WARM_UP)
            progress(f"{PER_SECOND} writes a second for {seconds} s")
            before = cpu_seconds(stack.up)
            took = write(stack, "timed", seconds * PER_SECOND)
            spent = cpu_seconds(stack.up) - before
            arrivals.wait_for(_WARM_UP + seconds * PER_SECOND)
        taken = waits(stack, arrivals, "timed")
    lost = seconds * PER_SECOND - len(taken)
    note = (
        f"{len(taken)} of {seconds * PER_SECOND} changes at {seconds * PER_SECOND / took:.1f} a second, {lost} lost,"
        f" {arrivals.duplicates} twice; slowest {max(taken):.2f} s; from changes.at to the subscriber's callback;"
        f" range over {_SLICES} parts of the run; processor time in a second: {said(spent, took)}"
    )
    if lost:
        raise CannotMeasure(f"{lost} changes did not arrive within {_WAIT_SECONDS:g} s: {note}")
    size = -(-len(taken) // _SLICES)
    for name in names:
        share, bar = _BARS[name]
        parts = [quantile(taken[start : start + size], share) for start in range(0, len(taken), size)]
        yield Figure(name, quantile(taken, share), bar, (min(parts), max(parts)), "s", note)
        note = "the same run"


def write(stack: Stack, folder: str, number: int, per_second: int = PER_SECOND) -> float:
    """PUT so many objects, evenly spaced; the seconds that it took. A writer that is late does not make others late."""
    signer = Signer.of(stack.ready)
    began = time.monotonic()

    def write(writer: int) -> None:
        with signer.connect() as connection:
            for index in range(writer, number, _WRITERS):
                time.sleep(max(0.0, began + index / per_second - time.monotonic()))
                connection.sendall(signer.put(BUCKET, f"{PREFIX}{folder}/{index:06}.bin"))
                await_answer(connection)

    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(write, range(_WRITERS)))
    return time.monotonic() - began


class Arrivals:
    """When each message came first, by its id."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.duplicates = 0
        self._changed = threading.Condition()

    def receive(self, message: Any) -> None:
        now = time.time()
        message.ack()
        change = message.attributes.get("id", "").partition(".")[0]
        if not change:
            return  # the test event
        with self._changed:
            self.duplicates += change in self.at
            self.at.setdefault(change, now)
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self.at) >= number, _WAIT_SECONDS)


@contextmanager
def arriving() -> Iterator[Arrivals]:
    """What Google's subscriber gets of TOPIC while the block lasts."""
    arrivals = Arrivals()
    with pubsub_v1.SubscriberClient() as subscriber:
        pull = subscriber.subscribe(topics.subscription_of(TOPIC), callback=arrivals.receive)
        try:
            yield arrivals
        finally:
            pull.cancel()
            pull.result(timeout=10)


def waits(stack: Stack, arrivals: Arrivals, folder: str) -> list[float]:
    """The seconds that each change in a folder took, in the order of writing. One that never came is not among them."""
    rows = stack.database.execute(
        "select id, extract(epoch from at)::float8 from changes where bucket = %s and starts_with(key, %s) order by seq",
        [BUCKET, f"{PREFIX}{folder}/"],
    ).fetchall()
    return [arrivals.at[change] - at for change, at in rows if change in arrivals.at]


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]
