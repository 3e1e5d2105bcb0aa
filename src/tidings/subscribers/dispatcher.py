"""Hands the events of a call to every subscription, without waiting for any of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tidings.events.catalog import CatalogEvent
from tidings.subscribers.feed import Feed
from tidings.subscribers.interface import EventSubscriber
from tidings.subscribers.settings import SubscribersSettings

log = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0
"""All subscribers together get this long to close."""
_LOOK_SECONDS = 0.5
"""Between two looks at calls under way and figures; more often where calls must return sooner."""


class Publish(Protocol):
    """`Dispatcher.publish`, for whoever calls it."""

    def __call__(self, events: Sequence[CatalogEvent], trace: str | None = None) -> None: ...


class Dispatcher:
    """One in each process: it delivers the events of the calls that this process has served."""

    def __init__(
        self,
        feeds: Sequence[Feed] = (),
        subscribers: Sequence[EventSubscriber] = (),
        settings: SubscribersSettings | None = None,
    ) -> None:
        self.feeds = tuple(feeds)
        self._subscribers = tuple(subscribers)
        self._settings = settings or SubscribersSettings()
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        for feed in self.feeds:
            feed.begin()
        if self.feeds:
            self._watcher = threading.Thread(target=self._watch, name="subscribers", daemon=True)
            self._watcher.start()

    def publish(self, events: Sequence[CatalogEvent], trace: str | None = None) -> None:
        """Call it when the events are committed. Returns at once, and never raises, whatever the subscribers do.

        `trace` is the trace of the call, as `telemetry.stored` writes it.
        """
        try:
            for feed in self.feeds:
                feed.offer(events, trace)
        except Exception:
            log.exception("events of the catalog did not reach the subscribers of this process")

    def stop(self) -> None:
        """Let subscribers take what is queued, for a short while; then let them close. Waits, so not for an event loop."""
        deadline = time.monotonic() + self._settings.drain_seconds
        for feed in self.feeds:
            feed.close()
        for feed in self.feeds:
            feed.join(deadline - time.monotonic())
        for feed in self.feeds:
            feed.halt()
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join(CLOSE_SECONDS)
        _within(CLOSE_SECONDS, [subscriber.close for subscriber in self._subscribers])
        for feed in self.feeds:
            feed.tell()

    def _watch(self) -> None:
        while not self._stopping.wait(min(_LOOK_SECONDS, self._settings.timeout_seconds / 4)):
            self._look()

    def _look(self) -> None:
        for feed in self.feeds:
            try:
                feed.watch()
                feed.tell()
            except Exception:
                log.exception("subscriber %s: a fault of ours", feed.name)


def _within(seconds: float, calls: Sequence[Callable[[], None]]) -> None:
    def closing(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException:
            log.exception("a subscriber could not be closed")

    threads = [threading.Thread(target=closing, args=(call,), daemon=True) for call in calls]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
