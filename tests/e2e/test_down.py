"""A destination that fails: writers notice nothing, other destinations do not wait, and everything arrives in the end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from arrivals import PROJECT, Collector
from conftest import Running, Say
from tidings.local.pubsub import set_fault
from traffic import Writers, all_arrived, collecting, percentile, seeded, send_events, tidings, verdict
from waiting import until

pytestmark = pytest.mark.chaos  # a stack of its own, for which make test has no time

DOWN_SECONDS = 8.0
SLOWEST_PUT_SECONDS = 2.0
ON_TIME_SECONDS = 3.0  # who waited for a stranger would wait for all of DOWN_SECONDS

REFUSALS = {"unavailable": "UNAVAILABLE", "permission_denied": "PERMISSION_DENIED", "not_found": "NOT_FOUND"}


@pytest.fixture(scope="module")
def collector(stack: Running) -> Iterator[Collector]:
    with collecting(stack) as collector:
        yield collector


@pytest.mark.parametrize(
    "faults", [tuple(REFUSALS), ("hang",), ("delay",)], ids=["refusals of three kinds", "no answer", "an answer after 3 s"]
)
def test_a_topic_that_fails_holds_up_nobody_but_its_own_lane(
    stack: Running, collector: Collector, say: Say, faults: tuple[str, ...]
) -> None:
    seed = seeded()
    held = {f"{fault.replace('_', '-')}-held": fault for fault in faults}
    free = f"beside-{faults[0]}"
    buckets = [*held, free]
    for bucket in buckets:
        send_events(stack, collector, bucket)
    url = stack.ready["database"]
    with Writers(stack.ready, buckets, seed, threads=len(buckets), keys=16).writing() as writers:
        time.sleep(1)
        down = time.time()
        try:
            for bucket, fault in held.items():
                set_fault(stack.ready["pubsub"], topic(bucket), fault, seconds=3.0 if fault == "delay" else 0.0)
            wait_for(url, held, "behind")
            time.sleep(DOWN_SECONDS)
            shown = shown_lanes(url)
        finally:
            lifted = time.time()
            for bucket in held:
                set_fault(stack.ready["pubsub"], topic(bucket), None)
        wait_for(url, held, "live")
        back = time.time()
        time.sleep(1)
    all_arrived(url, collector, buckets)
    found = verdict(url, collector, writers, buckets, seed)
    puts = [write.seconds for write in writers.acknowledged]
    during = [write.seconds for write in writers.acknowledged if down < write.began < lifted]
    beside = waits(collector, writers, free, down, lifted)
    say(
        f"{', '.join(faults)}: {lifted - down:.1f} s down, live {back - lifted:.1f} s after; writes p99 "
        f"{percentile(during, 0.99):.3f} s meanwhile, {percentile(puts, 0.99):.3f} s of all; the neighbour's events p95 "
        f"{percentile(beside, 0.95):.2f} s"
    )
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    assert (writers.refused, writers.unanswered) == ([], 0)
    assert max(puts) < SLOWEST_PUT_SECONDS
    assert percentile(beside, 0.95) < ON_TIME_SECONDS
    for bucket, fault in held.items():
        lane = shown[arn(bucket)]
        assert (lane["state"], lane["owed"] > 0) == ("behind", True)
        assert REFUSALS.get(fault, "") in (lane["error"] or "")
        meanwhile = [each for each in collector.of(bucket) if down + 1 < each.at < lifted]
        # who is only slow goes on receiving; from the others nothing may come, or the fault was not in force
        assert bool(meanwhile) == (fault == "delay")
        assert percentile(waits(collector, writers, bucket, back, time.time()), 0.95) < ON_TIME_SECONDS


def topic(bucket: str) -> str:
    return f"projects/{PROJECT}/topics/{bucket}"


def arn(bucket: str) -> str:
    return f"arn:gcp:pubsub::{PROJECT}:{bucket}"


def shown_lanes(url: str) -> dict[str, dict[str, Any]]:
    """What `tidings lanes list` says of each destination."""
    done = tidings("lanes", "list", "--json", TIDINGS_DATABASE__URL=url)
    assert done.returncode == 0, done.stderr
    return {lane["destination"]: lane for lane in json.loads(done.stdout)}


def wait_for(url: str, held: dict[str, str], state: str) -> None:
    arns = [arn(bucket) for bucket in held]
    with psycopg.connect(url, autocommit=True) as database:
        looking = "select from lanes where destination = any(%s) and state = %s"
        until(lambda: database.execute(looking, [arns, state]).rowcount == len(arns), f"{arns} are {state}")


def waits(collector: Collector, writers: Writers, bucket: str, since: float, before: float) -> list[float]:
    """How long after each request its event arrived."""
    writes = [write for write in writers.since(since, bucket) if write.began < before]
    assert writes
    return [collector.event(write.request_id).at - write.began for write in writes]
