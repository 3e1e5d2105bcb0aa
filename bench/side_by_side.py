"""Two stacks side by side, and the same PUTs to each in turn; the one whose turn it is not stands idle."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from google.cloud import pubsub_v1

from bench.client import CONNECTIONS, Client
from bench.measure import Bar, Figure, Progress, interleaved, ratios
from bench.stack import PREFIX, TOPIC, Stack, configured, running

FEW = 10
_DELIVER_SECONDS = 120.0
_MOST_PER_SECOND = 6000


@dataclass(frozen=True)
class Way:
    """How many buckets of a stack have a configuration, and what else is set there."""

    buckets: int = FEW
    environment: Mapping[str, str] = field(default_factory=dict)


def puts(name: str, rival: tuple[str, Way], own: tuple[str, Way], bar: Bar, quick: bool, progress: Progress) -> Figure:
    """How many PUTs a second one way takes, by how many the other does; both with their streams running."""
    with ExitStack() as open_:
        stacks: dict[str, Stack] = {}
        clients: dict[str, Client] = {}
        for label, way in (rival, own):
            stack = open_.enter_context(running(progress, way.environment))
            pubsub_v1.PublisherClient().create_topic(name=TOPIC.name)
            configured(stack.database, stack.ready["project"], way.buckets)
            client = Client(stack.ready, seconds=1.0 if quick else 2.0, most_per_second=_MOST_PER_SECOND)
            open_.callback(client.close)
            stacks[label], clients[label] = stack, client
        turns = dict.fromkeys(stacks, 0)

        def phase(label: str) -> float:
            for stack in stacks.values():
                stack.wait_until_delivered(_DELIVER_SECONDS)
            turns[label] += 1
            done = clients[label].run("PUT", f"bench-{turns[label] % FEW}", PREFIX, 10**9)
            return float(done["done"] / done["seconds"])

        pairs = 3 if quick else 15
        rates = interleaved({label: partial(phase, label) for label in stacks}, pairs, pairs // 2, progress)
    middle = ", ".join(f"{label} {statistics.median(values):.0f} PUT/s" for label, values in rates.items())
    note = f"{middle}; both stacks with their stream running; {CONNECTIONS} connections, 1 KiB"
    return Figure.median(name, ratios(rates[own[0]], rates[rival[0]]), bar, "", note)
