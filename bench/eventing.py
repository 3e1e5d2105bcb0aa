"""put_with_eventing and put_write_path: what a notification configuration costs those who write.

The same PUT to two buckets of one stack, one with a rule that wants every object and one without any configuration, in
pairs. For put_with_eventing the stream runs and delivers each change at once, on the same cores: this is what a whole
stack on one machine gives. For put_write_path the stream stands still: this is what the writer's own path costs. The store
appends a change for either bucket, without rules where none wants it, so the row itself is in both figures of a pair.
Before each phase everything written so far has been delivered; otherwise one bucket would pay for the other's events.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial

from google.cloud import pubsub_v1

from bench.client import CONNECTIONS, Client
from bench.measure import Bar, Figure, Progress, cpu_seconds, interleaved, ratios, said
from bench.stack import PREFIX, TOPIC, Stack, bucket, running

NAMES = ("put_with_eventing", "put_write_path")
_BAR = Bar(">=", 0.95)
_MOST_PER_SECOND = 6000
_DELIVER_SECONDS = 120.0
_BUCKETS = {"eventing on": "bench-on", "eventing off": "bench-off"}


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    with running(progress) as stack:
        # A topic without a subscription: a message is taken in and forgotten, nobody's memory grows.
        pubsub_v1.PublisherClient().create_topic(name=TOPIC.name)
        bucket(stack.ready, _BUCKETS["eventing on"], eventing=True)
        bucket(stack.ready, _BUCKETS["eventing off"])
        client = Client(stack.ready, seconds=1.0 if quick else 2.0, most_per_second=_MOST_PER_SECOND)
        try:
            for name in NAMES:
                if name in names:
                    yield _figure(name, stack, client, 3 if quick else 15, progress)
        finally:
            client.close()


def _figure(name: str, stack: Stack, client: Client, pairs: int, progress: Progress) -> Figure:
    with_stream = name == "put_with_eventing"
    spent = {way: Counter[str]() for way in _BUCKETS}
    puts = dict.fromkeys(_BUCKETS, 0.0)
    phases: list[dict[str, float]] = []

    def phase(way: str) -> float:
        if with_stream:
            stack.wait_until_delivered(_DELIVER_SECONDS)
        before = cpu_seconds(stack.up)
        done = client.run("PUT", _BUCKETS[way], PREFIX, 10**9)  # no key twice: a key's row is a lock
        spent[way] += cpu_seconds(stack.up) - before
        puts[way] += done["done"]
        phases.append(done)
        return done["done"] / done["seconds"]

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
