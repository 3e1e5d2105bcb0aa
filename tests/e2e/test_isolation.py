"""`delivery.isolation = "stream"`, seed 000 to the letter: everybody waits for a record that fails, and goes on after it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from arrivals import PROJECT
from conftest import Say, running_stack
from tidings.local.pubsub import set_fault
from traffic import Writers, all_arrived, collecting, seeded, send_events, verdict
from waiting import until

pytestmark = pytest.mark.chaos  # a stack of its own, for which make test has no time


def test_a_record_that_fails_stops_every_lane_and_all_go_on_after_it(tmp_path: Path, say: Say) -> None:
    seed, buckets = seeded(), ["failing", "waiting"]
    settings = {"TIDINGS_DELIVERY__ISOLATION": "stream", "TIDINGS_DELIVERY__RETRY_SECONDS": "[0.5]"}
    with running_stack(tmp_path, **settings) as stack, collecting(stack) as collector:
        for bucket in buckets:
            send_events(stack, collector, bucket)
        log = stack.data / "logs" / "stream.log"
        topic = f"projects/{PROJECT}/topics/failing"
        with Writers(stack.ready, buckets, seed).writing() as writers:
            until(lambda: all(len(collector.of(bucket)) > 20 for bucket in buckets), "events arrive")
            set_fault(stack.ready["pubsub"], topic, "permission_denied")
            until(lambda: "everybody waits" in log.read_text(), "the stream says that everybody waits")
            time.sleep(1)  # what was published before has been pulled by then
            waits, owed = time.time(), len(writers.acknowledged)
            time.sleep(4)
            owed = len(writers.acknowledged) - owed
            lifted = time.time()
            set_fault(stack.ready["pubsub"], topic, None)
            until(lambda: all(collector.of(bucket)[-1].at > lifted for bucket in buckets), "both go on")
            time.sleep(1)
        all_arrived(stack.ready["database"], collector, buckets)
        found = verdict(stack.ready["database"], collector, writers, buckets, seed)
    say(f"{owed} writes while everybody waited: {found}")
    assert owed > 20, "nobody wrote while everybody waited"
    assert [each for each in collector.arrivals if waits < each.at < lifted] == []
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    assert (writers.refused, writers.unanswered) == ([], 0)
