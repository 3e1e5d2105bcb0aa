"""Subscribers that misbehave: slow, throwing, hanging, leaking, with a queue that would eat the memory. Nobody else notices."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from catalog_events import commit
from tidings import metrics
from tidings.events.catalog import CatalogEvent
from tidings.subscribers import EventListener, EventSubscriber, Registrar, Status, filters
from tidings.subscribers.dispatcher import Dispatcher
from tidings.subscribers.feed import Feed
from tidings.subscribers.finding import start_with
from tidings.subscribers.settings import SubscribersSettings
from waiting import until

SOON = 60.0
Act = Callable[[CatalogEvent], Any]


class Acting(EventListener):
    """Does what it is told for each event."""

    def __init__(self, act: Act) -> None:
        self.act = act

    def on_event(self, event: CatalogEvent) -> Any:
        return self.act(event)


class Subscribing(EventSubscriber):
    def __init__(self, act: Act, filter: Any = None) -> None:
        self.act, self.filter = act, filter

    def register(self, registrar: Registrar) -> None:
        registrar.register(Acting(self.act), self.filter)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends whatever hangs when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def started(settings: dict[str, Any], **acts: Act) -> Dispatcher:
    makes = [(name, lambda act=act: Subscribing(act)) for name, act in acts.items()]
    quick = {"backoff_seconds": 0.01, "backoff_max_seconds": 0.02, "drain_seconds": 0.1}
    return start_with(makes, SubscribersSettings(**{**quick, **settings}))


def feed(dispatcher: Dispatcher, name: str) -> Feed:
    return next(each for each in dispatcher.feeds if each.name == name)


def ended(status: Status) -> int:
    return status.delivered + status.failed + status.rejected + status.dropped + status.filtered


def raises(_event: CatalogEvent) -> None:
    raise ValueError("always")


def test_a_healthy_subscriber_gets_everything_beside_bad_ones(release: threading.Event) -> None:
    got: list[str] = []
    acts: dict[str, Act] = {
        "sleeps": lambda _: time.sleep(0.5),
        "throws": raises,
        "hangs": lambda _: release.wait(SOON),
        "exits": lambda _: sys.exit(3),
        "healthy": lambda event: got.append(event.id),
    }
    dispatcher = started({"timeout_seconds": 0.3, "queue_size": 1000}, **acts)
    events = [commit() for _ in range(1000)]
    for event in events:
        dispatcher.publish([event])
    until(lambda: len(got) == 1000, "the healthy one has all")
    assert got == [event.id for event in events]
    dispatcher.stop()
    release.set()
    for each in dispatcher.feeds:
        status = each.status
        assert ended(status) == 1000, (each.name, status)
        assert status.queued == 0
    assert feed(dispatcher, "healthy").status.delivered == 1000


def test_a_listener_that_throws_is_left_alone_and_tried_again_after_the_rest() -> None:
    calls: list[str] = []
    bad = threading.Event()
    bad.set()

    def act(event: CatalogEvent) -> None:
        calls.append(event.id)
        if bad.is_set():
            raise ValueError("broken")

    dispatcher = started({"breaker_failures": 4, "breaker_rest_seconds": 0.5, "retries": 1}, it=act)
    it = feed(dispatcher, "it")
    dispatcher.publish([commit() for _ in range(50)])
    until(lambda: it.status.queued == 0, "all are dealt with")
    status = it.status
    assert (status.failed, status.rejected, status.retried, status.delivered) == (2, 48, 2, 0)
    assert (len(calls), status.breaker, status.last_error) == (4, "open", "ValueError: broken")
    bad.clear()
    until(lambda: it.status.breaker == "half-open", "the rest is over")
    dispatcher.publish([commit()])
    until(lambda: it.status.delivered == 1, "the trial went well")
    assert it.status.breaker == "closed"
    dispatcher.stop()


def test_a_trial_that_fails_opens_the_breaker_again_without_another_attempt() -> None:
    calls: list[str] = []

    def act(event: CatalogEvent) -> None:
        calls.append(event.id)
        raise ValueError

    dispatcher = started({"breaker_failures": 1, "breaker_rest_seconds": 0.4, "retries": 5}, it=act)
    it = feed(dispatcher, "it")
    for trial in range(3):
        until(lambda: it.status.breaker != "open", "it may be tried")
        dispatcher.publish([commit()])
        until(lambda trial=trial: it.status.failed == trial + 1, "it has failed")
    assert len(calls) == 3
    dispatcher.stop()


def test_a_call_that_hangs_is_given_up_and_another_worker_goes_on(release: threading.Event) -> None:
    got: list[str] = []

    def act(event: CatalogEvent) -> None:
        if event.id == "hangs":
            release.wait(SOON)
        got.append(event.id)

    dispatcher = started({"timeout_seconds": 0.2, "hung_calls": 2}, it=act)
    it = feed(dispatcher, "it")
    dispatcher.publish([commit(id="hangs"), *(commit() for _ in range(10))])
    until(lambda: it.status.delivered == 10, "the others are delivered")
    status = it.status
    assert (status.failed, status.hung, status.breaker) == (1, 1, "closed")
    assert status.last_error == "a call has not returned within 0.2 s"
    release.set()
    until(lambda: it.status.hung == 0, "it has returned")
    assert (it.status.failed, it.status.delivered) == (1, 10), "what comes too late counts for nothing"
    dispatcher.stop()


def test_threads_that_hang_are_few_and_the_listener_waits_until_one_returns(release: threading.Event) -> None:
    calls: list[str] = []

    def act(event: CatalogEvent) -> None:
        calls.append(event.id)
        if not release.is_set():
            release.wait(SOON)

    settings = {"timeout_seconds": 0.2, "hung_calls": 3, "breaker_failures": 1000}
    dispatcher = started(settings, it=act)
    it = feed(dispatcher, "it")
    dispatcher.publish([commit() for _ in range(20)])
    until(lambda: it.status.queued == 0, "all are dealt with")
    status = it.status
    assert (status.hung, status.failed, status.rejected, status.breaker) == (3, 3, 17, "open")
    assert sum(thread.name == "subscriber-it" for thread in threading.enumerate()) == 4
    assert len(calls) == 3
    release.set()
    until(lambda: it.status.hung == 0, "they return")
    dispatcher.publish([commit()])
    until(lambda: it.status.delivered == 1, "it is called again")
    dispatcher.stop()


def test_a_filter_that_hangs_is_given_up_like_a_listener(release: threading.Event) -> None:
    waits = filters.where(lambda _: release.wait(SOON))
    makes = [("it", lambda: Subscribing(lambda _: None, waits))]
    dispatcher = start_with(makes, SubscribersSettings(timeout_seconds=0.2, drain_seconds=0.1))
    it = feed(dispatcher, "it")
    dispatcher.publish([commit() for _ in range(3)])
    until(lambda: it.status.queued == 0, "all are dealt with")
    assert (it.status.failed, it.status.rejected, it.status.hung) == (2, 1, 2)
    dispatcher.stop()


def test_a_coroutine_that_takes_too_long_is_cancelled_and_leaves_no_thread_behind() -> None:
    cancelled: list[str] = []

    async def act(event: CatalogEvent) -> None:
        try:
            await asyncio.sleep(SOON)
        except asyncio.CancelledError:
            cancelled.append(event.id)
            raise

    dispatcher = started({"timeout_seconds": 0.1, "retries": 1}, it=act)
    it = feed(dispatcher, "it")
    dispatcher.publish([commit(id="1")])
    until(lambda: it.status.failed == 1, "it has failed")
    status = it.status
    assert (cancelled, status.retried, status.hung) == (["1", "1"], 1, 0)
    assert "not returned within 0.1 s" in status.last_error
    dispatcher.stop()


def test_a_coroutine_that_never_gives_way_is_given_up(release: threading.Event) -> None:
    async def act(_event: CatalogEvent) -> None:
        release.wait(SOON)

    dispatcher = started({"timeout_seconds": 0.1}, it=act)
    it = feed(dispatcher, "it")
    dispatcher.publish([commit()])
    until(lambda: it.status.hung == 1, "it is given up")
    assert it.status.failed == 1
    dispatcher.stop()


@pytest.mark.parametrize(("overflow", "kept"), [("oldest", range(91, 101)), ("newest", range(1, 11))])
def test_a_full_queue_drops_the_oldest_or_the_newest_as_set(overflow: str, kept: range, release: threading.Event) -> None:
    got: list[str] = []

    def act(event: CatalogEvent) -> None:
        got.append(event.id)
        release.wait(SOON)

    dispatcher = started({"queue_size": 10, "overflow": overflow, "timeout_seconds": 600, "drain_seconds": SOON}, it=act)
    it = feed(dispatcher, "it")
    dispatcher.publish([commit(id="0")])
    until(lambda: got == ["0"], "the first is in hand")
    dispatcher.publish([commit(id=str(number)) for number in range(1, 101)])
    assert (it.status.dropped, it.status.queued) == (90, 11)
    release.set()
    dispatcher.stop()
    assert got == ["0", *map(str, kept)]
    assert ended(it.status) == 101


def test_the_memory_of_a_queue_is_bounded(release: threading.Event) -> None:
    dispatcher = started({"queue_size": 100, "timeout_seconds": 600}, it=lambda _: release.wait(SOON))
    big = "x" * 10_000
    tracemalloc.start()
    try:
        for number in range(5_000):
            dispatcher.publish([commit(commit_meta={"message": f"{number}{big}"})])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 5_000_000, "of 50 MB"
    assert feed(dispatcher, "it").status.dropped >= 4_890
    dispatcher.stop()


def test_drops_and_the_breaker_can_be_seen_in_the_figures(release: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    def sample(line: str) -> float:
        text = metrics.exposition([]).decode()
        return next(float(each.rpartition(" ")[2]) for each in text.splitlines() if each.startswith(line))

    acts: dict[str, Act] = {"seen-throws": raises, "seen-hangs": lambda _: release.wait(SOON), "seen-fine": lambda _: None}
    settings = {"queue_size": 100, "breaker_failures": 2, "timeout_seconds": 0.4, "hung_calls": 1}
    with caplog.at_level(logging.WARNING):
        dispatcher = started(settings, **acts)
        dispatcher.publish([commit() for _ in range(1000)])
        hangs = feed(dispatcher, "seen-hangs")
        until(lambda: hangs.status.breaker == "open", "the breaker opens")
        until(lambda: sample('tidings_subscriber_breaker{subscriber="seen-hangs"}') == 2, "the figures follow")
        dispatcher.stop()
    events = 'tidings_subscriber_events_total{outcome="%s",subscriber="%s"}'
    assert sample(events % ("dropped", "seen-hangs")) >= 899
    assert sample(events % ("failed", "seen-hangs")) >= 1
    assert sample(events % ("failed", "seen-throws")) == 1
    assert sample(events % ("delivered", "seen-throws")) == 0
    assert sample(events % ("rejected", "seen-throws")) > 0
    assert sample('tidings_subscriber_retries_total{subscriber="seen-throws"}') == 1
    assert sample('tidings_subscriber_breaker{subscriber="seen-throws"}') == 2
    assert sample('tidings_subscriber_breaker{subscriber="seen-fine"}') == 0
    assert sample('tidings_subscriber_queue_length{subscriber="seen-fine"}') == 0
    fine = feed(dispatcher, "seen-fine").status
    assert sample('tidings_subscriber_attempt_seconds_count{subscriber="seen-fine"}') == fine.delivered
    for name in ("seen-hangs", "seen-throws", "seen-fine"):
        assert sum(sample(events % (outcome, name)) for outcome in metrics.HANDED) == 1000
    assert "subscriber seen-throws fails and is left alone for 30 s: ValueError: always" in caplog.text
    assert "its queue is full, events are dropped" in caplog.text


def test_a_listener_that_hangs_does_not_keep_the_process_from_ending() -> None:
    here = Path(__file__).parent
    program = f"""
import sys
sys.path[:0] = [{str(here)!r}, {str(here.parent.parent)!r}]
from test_protection import *
hang = threading.Event()
dispatcher = started({{"timeout_seconds": 0.1}}, it=lambda _: hang.wait())
dispatcher.publish([commit() for _ in range(5)])
until(lambda: feed(dispatcher, "it").status.hung == 2, "two hang")
if sys.argv[1] == "stopped":
    dispatcher.stop()
print("ending")
"""
    for how in ("stopped", "not stopped"):
        run = subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True, timeout=120)
        assert (run.returncode, run.stdout) == (0, "ending\n"), run.stderr


def test_what_publishing_costs_beside_bad_subscribers(say: Any, release: threading.Event) -> None:
    events = [[commit()] for _ in range(1000)]

    def measured(dispatcher: Dispatcher) -> float:
        began = time.thread_time()  # what the caller does itself: the machine may be busy with other things
        for _ in range(100):
            for each in events:
                dispatcher.publish(each)
        return (time.thread_time() - began) * 1e6 / 100_000

    nobody = measured(Dispatcher())
    bad: dict[str, Act] = {"sleeps": lambda _: time.sleep(10), "throws": raises, "hangs": lambda _: release.wait(SOON)}
    dispatcher = started({}, **bad)
    beside = measured(dispatcher)
    dispatcher.stop()
    say(f"publish of 100,000 events: {nobody:.2f} µs each with nobody there, {beside:.2f} µs with three bad subscribers")
    assert all(ended(each.status) == 100_000 for each in dispatcher.feeds)
