"""rule_churn: how long an event takes while others change their notification configurations, against while nobody does.

Changes of one bucket are written at the same pace in phases, with and without somebody who puts configurations of other
buckets, four a second: each is another set of rules for the stream. Both clocks are as in `latency`.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

from bench.latency import BUCKET, PER_SECOND, arriving, quantile, waits, write
from bench.measure import Bar, CannotMeasure, Figure, Progress, interleaved, ratios
from bench.stack import TOPIC, bucket, client, running
from tidings.local import topics

NAMES = ("rule_churn",)
_BAR = Bar("<=", 2)
_EVERY_SECONDS = 0.25
_OTHERS = 10


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:  # noqa: ARG001
    seconds, pairs = (5, 2) if quick else (10, 5)
    with running(progress) as stack, arriving_at(stack.ready) as arrivals:
        numbers, puts, written, churned = count(), 0, 0, 0.0

        def phase(churning: bool) -> float:
            nonlocal puts, written, churned
            folder = f"phase-{next(numbers)}"
            written += seconds * PER_SECOND
            began = time.monotonic()
            with _putting(stack.ready) if churning else _nobody() as done:
                write(stack, folder, seconds * PER_SECOND)
                arrivals.wait_for(written)
            puts += done[0]
            churned += time.monotonic() - began if churning else 0.0
            taken = waits(stack, arrivals, folder)
            if len(taken) != seconds * PER_SECOND:
                raise CannotMeasure(f"{len(taken)} of {seconds * PER_SECOND} changes arrived.")
            return quantile(taken, 0.5)

        found = interleaved({"nobody": partial(phase, False), "churn": partial(phase, True)}, pairs, 1, progress)
    middle = ", ".join(f"{name} {statistics.median(values):.3f} s" for name, values in found.items())
    rate = puts / churned
    note = f"p50 from commit to arrival at {PER_SECOND} writes a second: {middle}; {rate:.1f} configurations put a second"
    yield Figure.median("rule_churn", ratios(found["churn"], found["nobody"]), _BAR, "", note)


@contextmanager
def arriving_at(ready: dict[str, Any]) -> Iterator[Any]:
    topics.create(TOPIC.name)
    bucket(ready, BUCKET, eventing=True)
    for number in range(_OTHERS):
        bucket(ready, f"bench-other-{number}")
    with arriving() as arrivals:
        yield arrivals


@contextmanager
def _nobody() -> Iterator[list[int]]:
    yield [0]


@contextmanager
def _putting(ready: dict[str, Any]) -> Iterator[list[int]]:
    """Somebody who puts another configuration into one of the other buckets, again and again; how often is in the list."""
    done, over = [0], threading.Event()
    s3 = client(ready)

    def put() -> None:
        while not over.wait(_EVERY_SECONDS):
            rule = {
                "TopicArn": TOPIC.arn,
                "Events": ["s3:ObjectCreated:*"],
                "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": f"never/{done[0]}/"}]}},
            }
            s3.put_bucket_notification_configuration(
                Bucket=f"bench-other-{done[0] % _OTHERS}", NotificationConfiguration={"TopicConfigurations": [rule]}
            )
            done[0] += 1

    putting = threading.Thread(target=put)
    putting.start()
    try:
        yield done
    finally:
        over.set()
        putting.join()
