"""put_with_eventing and put_write_path: what a notification configuration costs those who write.

The same PUT to two buckets of one stack, one with a rule that wants every object and one without any configuration, in
pairs. For put_with_eventing the stream runs and delivers each change at once, on the same cores: this is what a whole
stack on one machine gives. For put_write_path the stream stands still: this is what the writer's own path costs. The store
appends a change for either bucket, without rules where none wants it, so the row itself is in both figures of a pair.
Before each phase everything written so far has been delivered; otherwise one bucket would pay for the other's events.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from google.cloud import pubsub_v1

from bench.measure import Bar, CannotMeasure, Figure, Progress, cpu_seconds, interleaved, ratios, said
from bench.stack import PREFIX, TOPIC, Stack, running

NAMES = ("put_with_eventing", "put_write_path")
CONNECTIONS = 12
_BAR = Bar(">=", 0.9)
_MOST_PER_SECOND = 6000
_DELIVER_SECONDS = 120.0
_BUCKETS = {"eventing on": "bench-on", "eventing off": "bench-off"}


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    with running(progress) as stack:
        # A topic without a subscription: a message is taken in and forgotten, nobody's memory grows.
        pubsub_v1.PublisherClient().create_topic(name=TOPIC.name)
        stack.bucket(_BUCKETS["eventing on"], eventing=True)
        stack.bucket(_BUCKETS["eventing off"], eventing=False)
        writer = _Writer(stack, seconds=1.0 if quick else 2.0)
        try:
            for name in NAMES:
                if name in names:
                    yield _figure(name, stack, writer, 3 if quick else 15, progress)
        finally:
            writer.close()


def _figure(name: str, stack: Stack, writer: _Writer, pairs: int, progress: Progress) -> Figure:
    with_stream = name == "put_with_eventing"
    spent = {way: Counter[str]() for way in _BUCKETS}
    puts = dict.fromkeys(_BUCKETS, 0.0)
    phases: list[dict[str, float]] = []

    def phase(way: str) -> float:
        if with_stream:
            stack.wait_until_delivered(_DELIVER_SECONDS)
        before = cpu_seconds(stack.up)
        done = writer.write(_BUCKETS[way])
        spent[way] += cpu_seconds(stack.up) - before
        puts[way] += done["puts"]
        phases.append(done)
        return done["puts"] / done["seconds"]

    stack.wait_until_delivered(_DELIVER_SECONDS)
    with nullcontext() if with_stream else stack.without_stream():
        # Until the JVM has compiled the rounds' path it spends more on that than on the rounds.
        warm_ups = pairs if with_stream else 1
        rates = interleaved({way: partial(phase, way) for way in _BUCKETS}, pairs, warm_ups, progress)
    progress("delivering the rest")
    stack.wait_until_delivered(_DELIVER_SECONDS)
    middle = {way: statistics.median(values) for way, values in rates.items()}
    own = sum(done["cpu"] for done in phases) / sum(done["seconds"] for done in phases)
    note = (
        f"stream {'running' if with_stream else 'stopped (SIGSTOP)'}; "
        + ", ".join(f"{way} {rate:.0f} PUT/s" for way, rate in middle.items())
        + f"; {CONNECTIONS} connections, 1 KiB; client at {own:.0%} of a core; processor time for 1,000 PUTs, "
        + "; ".join(f"{way}: {said(spent[way], puts[way] / 1000)}" for way in _BUCKETS)
    )
    return Figure.median(name, ratios(rates["eventing on"], rates["eventing off"]), _BAR, "", note)


class _Writer:
    """The client's process. It ends when its input does."""

    def __init__(self, stack: Stack, seconds: float) -> None:
        self._seconds = seconds
        command = [sys.executable, "-m", "bench.put_client"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._send({"ready": stack.ready, "connections": CONNECTIONS})

    def _send(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def write(self, bucket: str) -> dict[str, float]:
        most = int(self._seconds * _MOST_PER_SECOND)
        self._send({"bucket": bucket, "prefix": PREFIX, "seconds": self._seconds, "most": most})
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise CannotMeasure("The writing client stopped; what it said is above.")
        done: dict[str, float] = json.loads(line)
        if done["ran_out"]:
            raise CannotMeasure(f"The client had signed {most} requests, which was not enough.")
        return done

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
