"""Events reach listeners: the right method, every event, copies of their own, again after a failure."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from catalog_events import MAIN, commit, created, stored
from tidings.events.catalog import CatalogEvent, Commit, Reference, _OnReference
from tidings.subscribers import EventListener, EventSubscriber, Registrar, Subscription, filters
from tidings.subscribers.finding import start_with
from tidings.subscribers.settings import SubscribersSettings
from waiting import until

SOON = 30.0
QUICK = {"backoff_seconds": 0.01, "backoff_max_seconds": 0.02, "breaker_rest_seconds": 60.0}


class Keeping(EventListener):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[CatalogEvent] = []

    def on_event(self, event: CatalogEvent) -> None:
        self.got.append(event)


class Subscribing(EventSubscriber):
    def __init__(self, listener: EventListener, filter: Any = None) -> None:
        self.listener, self.filter = listener, filter
        self.subscription: Subscription | None = None
        self.closed = False

    def register(self, registrar: Registrar) -> None:
        self.subscription = registrar.register(self.listener, self.filter)

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True, kw_only=True)
class Renamed(_OnReference):
    """A type that no listener knows yet."""

    type: ClassVar[str] = "REFERENCE_RENAMED"


def started(*subscribers: EventSubscriber, **settings: Any) -> Any:
    makes = [(f"s{i}", lambda each=each: each) for i, each in enumerate(subscribers)]
    return start_with(makes, SubscribersSettings(**{**QUICK, **settings}))


def test_each_type_has_a_method_and_the_rest_falls_to_the_catch_all() -> None:
    class Both(Keeping):
        def on_commit(self, event: Commit) -> None:
            self.got.append(event.hash_after)  # type: ignore[arg-type]

    renamed = Renamed(id="1", at=commit().at, sent_by="", created_by="", repository="r", reference=MAIN)
    listener = Both()
    dispatcher = started(Subscribing(listener))
    dispatcher.publish([commit(hash_after="cc"), created(), renamed])
    dispatcher.stop()
    first, second, third = listener.got
    assert first == "cc"  # type: ignore[comparison-overlap]
    assert (second.type, third.type) == ("REFERENCE_CREATED", "REFERENCE_RENAMED")


def test_a_listener_that_overrides_nothing_takes_everything_in_silence() -> None:
    subscriber = Subscribing(EventListener())
    dispatcher = started(subscriber)
    dispatcher.publish([commit(), stored("a"), created()])
    dispatcher.stop()
    assert subscriber.subscription is not None
    assert subscriber.subscription.status.delivered == 3


def test_events_come_in_the_order_in_which_they_were_published() -> None:
    listener = Keeping()
    dispatcher = started(Subscribing(listener))
    for number in range(1000):
        dispatcher.publish([commit(id=f"{number}a"), stored("t", id=f"{number}b")])
    dispatcher.stop()
    assert [event.id for event in listener.got] == [f"{number}{half}" for number in range(1000) for half in "ab"]


def test_a_coroutine_is_awaited_and_one_loop_serves_all_calls() -> None:
    class Awaiting(Keeping):
        loops: ClassVar[set[int]] = set()

        async def on_event(self, event: CatalogEvent) -> None:  # type: ignore[override]
            await asyncio.sleep(0)
            self.loops.add(id(asyncio.get_running_loop()))
            self.got.append(event)

    listener = Awaiting()
    dispatcher = started(Subscribing(listener))
    dispatcher.publish([commit() for _ in range(20)])
    dispatcher.stop()
    assert len(listener.got) == 20
    assert len(listener.loops) == 1


@pytest.mark.parametrize(
    "asked", [filters.types("CONTENT_STORED") & filters.namespaces("sales"), "contentNamespace == 'sales'"]
)
def test_only_what_the_filter_wants_is_delivered_and_the_rest_is_counted(asked: Any) -> None:
    subscriber = Subscribing(Keeping(), asked)
    dispatcher = started(subscriber)
    dispatcher.publish([commit(), stored("sales", "t"), stored("x", "t")])
    dispatcher.stop()
    assert [event.type for event in subscriber.listener.got] == ["CONTENT_STORED"]  # type: ignore[attr-defined]
    status = subscriber.subscription.status  # type: ignore[union-attr]
    assert (status.delivered, status.filtered, status.unanswered) == (1, 2, 0)


def test_what_a_filter_cannot_answer_is_not_delivered_and_is_counted() -> None:
    subscriber = Subscribing(Keeping(), ~filters.cel("contentKey[1] == 'x'"))
    dispatcher = started(subscriber)
    dispatcher.publish([commit(), stored("a", "b")])
    dispatcher.stop()
    status = subscriber.subscription.status  # type: ignore[union-attr]
    assert (status.delivered, status.filtered, status.unanswered) == (1, 1, 1)
    assert "Index" in status.last_error


def test_a_filter_of_one_s_own_that_raises_is_no_failure_of_the_listener() -> None:
    subscriber = Subscribing(Keeping(), filters.where(lambda event: event.nonsense))  # type: ignore[attr-defined]
    dispatcher = started(subscriber)
    dispatcher.publish([commit()] * 20)
    dispatcher.stop()
    status = subscriber.subscription.status  # type: ignore[union-attr]
    assert (status.filtered, status.unanswered, status.failed, status.breaker) == (20, 20, 0, "closed")


def test_an_event_is_tried_again_after_a_failure_and_then_counts_once() -> None:
    class Third(Keeping):
        tries = 0

        def on_event(self, event: CatalogEvent) -> None:
            self.tries += 1
            if self.tries < 3:
                raise ConnectionError("not yet")
            super().on_event(event)

    subscriber = Subscribing(Third())
    dispatcher = started(subscriber, retries=2)
    dispatcher.publish([commit()])
    until(lambda: subscriber.subscription.status.delivered, "it arrives")  # type: ignore[union-attr]
    dispatcher.stop()
    status = subscriber.subscription.status  # type: ignore[union-attr]
    assert (status.delivered, status.failed, status.retried, status.queued) == (1, 0, 2, 0)
    assert status.last_error == "ConnectionError: not yet"


def test_retries_wait_twice_as_long_each_time() -> None:
    class Timing(EventListener):
        times: ClassVar[list[float]] = []

        def on_event(self, event: CatalogEvent) -> None:  # noqa: ARG002
            self.times.append(time.monotonic())
            raise ValueError

    subscriber = Subscribing(Timing())
    dispatcher = started(subscriber, retries=3, backoff_seconds=0.2, backoff_max_seconds=0.4)
    dispatcher.publish([commit()])
    until(lambda: subscriber.subscription.status.failed, "it is given up")  # type: ignore[union-attr]
    dispatcher.stop()
    waits = [later - earlier for earlier, later in zip(Timing.times, Timing.times[1:], strict=False)]
    assert [round(wait, 3) >= least for wait, least in zip(waits, (0.1, 0.2, 0.2), strict=True)] == [True] * 3


def test_what_a_listener_does_to_an_event_nobody_else_sees() -> None:
    class Spoiling(Keeping):
        def on_event(self, event: CatalogEvent) -> None:
            object.__setattr__(event, "id", "spoiled")
            object.__setattr__(event.about, "name", "spoiled")
            for each in (getattr(event, "commit_meta", {}), getattr(event, "content", {})):
                each["message"] = "spoiled"
                for inner in each.values():
                    if isinstance(inner, dict):
                        inner["k"] = "spoiled"
                        inner.get("list", []).append("spoiled")
                    if isinstance(inner, list):
                        inner.append("spoiled")
            super().on_event(event)
            if len(self.got) == 1:
                raise ValueError("and it wants another")

    def spoiling(event: CatalogEvent) -> bool:
        object.__setattr__(event, "repository", "spoiled")
        return True

    first, second = Subscribing(Spoiling(), filters.where(spoiling)), Subscribing(Keeping())
    published = [commit(), stored("a", reference=Reference("BRANCH", "main", "aa"))]
    as_it_was = [repr(event) for event in published]
    dispatcher = started(first, second)
    dispatcher.publish(published)
    until(lambda: first.subscription.status.delivered == 2, "both")  # type: ignore[union-attr]
    dispatcher.stop()
    assert [repr(event) for event in published] == as_it_was
    assert [repr(event) for event in second.listener.got] == as_it_was  # type: ignore[attr-defined]
    again = first.listener.got[1]  # type: ignore[attr-defined]
    assert again.commit_meta["authors"] == ["ada", "spoiled"], "the second attempt had a fresh copy"


def test_publish_never_raises_and_returns_at_once_with_nobody_there() -> None:
    dispatcher = started()
    dispatcher.publish([commit()])
    dispatcher.publish(None)  # type: ignore[arg-type]
    dispatcher.stop()


def test_publish_never_raises_whatever_it_is_given(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = started(Subscribing(Keeping()))
    dispatcher.publish(None)
    dispatcher.stop()
    assert "did not reach the subscribers" in caplog.text


def test_a_stop_delivers_what_is_queued_and_closes_the_subscriber() -> None:
    class Slow(Keeping):
        def on_event(self, event: CatalogEvent) -> None:
            time.sleep(0.002)
            super().on_event(event)

    subscriber = Subscribing(Slow())
    dispatcher = started(subscriber, drain_seconds=SOON)
    dispatcher.publish([commit() for _ in range(100)])
    dispatcher.stop()
    assert len(subscriber.listener.got) == 100  # type: ignore[attr-defined]
    assert subscriber.closed
    dispatcher.publish([commit()])
    assert subscriber.subscription.status.dropped == 1  # type: ignore[union-attr]


def test_a_stop_does_not_wait_for_ever_and_counts_what_is_lost() -> None:
    release = threading.Event()

    class Stuck(EventListener):
        def on_event(self, event: CatalogEvent) -> None:  # noqa: ARG002
            release.wait(SOON)

    subscriber = Subscribing(Stuck())
    dispatcher = started(subscriber, drain_seconds=0.1, timeout_seconds=60)
    dispatcher.publish([commit() for _ in range(10)])
    until(lambda: subscriber.subscription.status.queued == 10, "one is in hand")  # type: ignore[union-attr]
    time.sleep(0.05)
    began = time.monotonic()
    dispatcher.stop()
    assert time.monotonic() - began < 10
    release.set()
    status = subscriber.subscription.status  # type: ignore[union-attr]
    assert (status.delivered, status.queued, status.failed + status.dropped) == (0, 0, 10)


def test_a_subscriber_that_cannot_be_closed_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Bad(Subscribing):
        def close(self) -> None:
            raise OSError("cannot")

    good = Subscribing(Keeping())
    with caplog.at_level(logging.ERROR):
        started(Bad(Keeping()), good).stop()
    assert good.closed
    assert "could not be closed" in caplog.text
