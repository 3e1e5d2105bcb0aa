"""A destination that fails: writers notice nothing, other destinations do not wait, and everything arrives in the end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from conftest import Running, running_stack
from tidings.local.pubsub import set_fault
from traffic import (
    PROJECT,
    Collector,
    Writers,
    all_arrived,
    collecting,
    percentile,
    seeded,
    send_events,
    tidings,
    until,
    verdict,
)

DOWN_SECONDS = 5.0
SLOWEST_PUT_SECONDS = 2.0
ON_TIME_SECONDS = 3.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_stack(tmp_path_factory.mktemp("down")) as running:
        yield running


@pytest.fixture(scope="module")
def collector(stack: Running) -> Iterator[Collector]:
    with collecting(stack) as collector:
        yield collector


def shown_lane(url: str, arn: str) -> dict[str, Any]:
    """What `tidings lanes` says of one."""
    done = tidings("lanes", "--json", TIDINGS_DATABASE__URL=url)
    assert done.returncode == 0, done.stderr
    (found,) = [each for each in json.loads(done.stdout) if each["destination"] == arn]
    return dict(found)


def wait_for(url: str, arn: str, state: str, seconds: float) -> None:
    with psycopg.connect(url, autocommit=True) as database:
        looking = "select from lanes where destination = %s and state = %s"
        until(lambda: database.execute(looking, [arn, state]).rowcount, seconds, f"{arn} is {state}")


@pytest.mark.parametrize(
    ("fault", "seconds", "words"),
    [
        ("unavailable", 0.0, "UNAVAILABLE"),
        ("permission_denied", 0.0, "PERMISSION_DENIED"),
        ("not_found", 0.0, "NOT_FOUND"),
        ("hang", 0.0, None),
        ("delay", 3.0, None),
    ],
)
def test_a_topic_that_fails_holds_up_nobody_but_its_own_lane(
    stack: Running, collector: Collector, fault: str, seconds: float, words: str | None
) -> None:
    seed = seeded()
    held, free = (f"{fault.replace('_', '-')}-{which}" for which in ("held", "free"))
    for bucket in (held, free):
        send_events(stack, collector, bucket)
    url, address = stack.ready["database"], stack.ready["pubsub"]
    arn, topic = f"arn:gcp:pubsub::{PROJECT}:{held}", f"projects/{PROJECT}/topics/{held}"
    with Writers(stack.ready, [held, free], seed, threads=2, keys=16).writing() as writers:
        time.sleep(1)
        down = time.time()
        set_fault(address, topic, fault, seconds=seconds)
        wait_for(url, arn, "behind", 30)
        time.sleep(DOWN_SECONDS)
        shown = shown_lane(url, arn)
        lifted = time.time()
        set_fault(address, topic, None)
        wait_for(url, arn, "live", 60)
        back = time.time()
        time.sleep(1)
    all_arrived(url, collector, [held, free])
    found = verdict(url, collector, writers, [held, free], seed)
    puts = [write.seconds for write in writers.acknowledged]
    during = [write.seconds for write in writers.acknowledged if down < write.began < lifted]
    waits = [collector.event(write.request_id).at - write.began for write in writers.since(down, free) if write.began < lifted]
    slow = [each for each in collector.of(held) if down + 1 < each.at < lifted]
    print(
        f"{fault}: {lifted - down:.1f} s down, live {back - lifted:.1f} s after; writes p99 {percentile(during, 0.99):.3f} s, "
        f"of all {percentile(puts, 0.99):.3f} s; the neighbour's events p95 {percentile(waits, 0.95):.2f} s"
    )
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    assert (writers.refused, writers.unanswered) == ([], 0)
    assert max(puts) < SLOWEST_PUT_SECONDS
    assert len(during) > 20
    assert percentile(waits, 0.95) < ON_TIME_SECONDS
    assert (shown["state"], shown["owed"] > 0) == ("behind", True)
    if words is not None:
        assert words in shown["error"]
    if fault == "delay":
        assert slow, "a destination that is only slow goes on receiving"
    else:
        assert not slow, "the fault was not in force"
    after = [collector.event(write.request_id).at - write.began for write in writers.since(back, held)]
    assert percentile(after, 0.95) < ON_TIME_SECONDS
