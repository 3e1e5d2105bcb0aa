"""Finds the subscribers that are installed or switched on, lets them register, and starts what delivers to them.

One that is broken is told of in the log and left out. It does not stop the server, also not by taking forever.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from tidings.subscribers import filters
from tidings.subscribers.dispatcher import Dispatcher
from tidings.subscribers.feed import Feed
from tidings.subscribers.filters import EventFilter
from tidings.subscribers.interface import EventListener, EventSubscriber, Subscription
from tidings.subscribers.settings import SubscribersSettings
from tidings.subscribers.tracing import Spans

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from tidings.settings import Settings

log = logging.getLogger(__name__)

GROUP = "tidings.subscribers"
START_SECONDS = 10.0
"""A subscriber has this long to be imported and to register."""

Make = Callable[[], EventSubscriber]


def start(settings: Settings, tracer: Tracer | None = None) -> Dispatcher:
    """A dispatcher that runs. It imports what others have written, and waits for them: not for an event loop."""
    return start_with([*_ours(settings), *_installed()], settings.subscribers, tracer)


def start_with(makes: list[tuple[str, Make]], settings: SubscribersSettings, tracer: Tracer | None = None) -> Dispatcher:
    """The same with these subscribers: a name, and what makes one."""
    feeds: list[Feed] = []
    subscribers = []
    for name, make in makes:
        registrar = _Registrar(_free(name, feeds), settings, Spans(tracer))
        subscriber = _registered(name, make, registrar)
        if subscriber is not None:
            subscribers.append(subscriber)
            feeds += registrar.feeds
    dispatcher = Dispatcher(feeds, subscribers, settings)
    dispatcher.start()
    for feed in feeds:
        log.info("subscriber %s hears of catalog events: %s", feed.name, feed.words)
    return dispatcher


def _ours(settings: Settings) -> Iterator[tuple[str, Make]]:
    if settings.subscribers.log:
        from tidings.subscribers.log import LogSubscriber

        yield "log", LogSubscriber
    if settings.subscribers.kafka_cluster:
        from tidings.subscribers.kafka import KafkaSubscriber

        yield "kafka", lambda: KafkaSubscriber(settings)


def _installed() -> Iterator[tuple[str, Make]]:
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):

        def make(point: Any = point) -> EventSubscriber:
            made: EventSubscriber = point.load()()
            return made

        yield point.name, make


def _registered(name: str, make: Make, registrar: _Registrar) -> EventSubscriber | None:
    """In a thread, which is left behind if it does not come back."""
    made: list[EventSubscriber] = []
    errors: list[BaseException] = []

    def registering() -> None:
        try:
            subscriber = make()
            subscriber.register(registrar)
            made.append(subscriber)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=registering, name=f"register-{name}", daemon=True)
    thread.start()
    thread.join(START_SECONDS)
    registrar.close()
    if errors:
        log.error("subscriber %s is left out, it could not register: %r", name, errors[0], exc_info=errors[0])
    elif not made:
        log.error("subscriber %s is left out: it has not registered within %g s", name, START_SECONDS)
    elif not registrar.feeds:
        log.warning("subscriber %s has registered no listener", name)
    return made[0] if made else None


class _Registrar:
    def __init__(self, names: Iterator[str], settings: SubscribersSettings, spans: Spans) -> None:
        self._names = names
        self._settings = settings
        self._spans = spans
        self._closed = False
        self.feeds: list[Feed] = []

    def register(self, listener: EventListener, filter: EventFilter | str | None = None) -> Subscription:
        if self._closed:
            raise RuntimeError("listeners are registered before register() returns; it is too late for this one")
        if not isinstance(listener, EventListener):
            raise TypeError(f"a listener must be a tidings.subscribers.EventListener, and {listener!r} is none")
        chosen = filters.cel(filter) if isinstance(filter, str) else filter
        feed = Feed(next(self._names), listener, chosen, self._settings, self._spans)
        self.feeds.append(feed)
        return feed

    def close(self) -> None:
        self._closed = True
        self.feeds = list(self.feeds)


def _free(name: str, feeds: list[Feed]) -> Iterator[str]:
    """The name, then name-2, name-3: without those that are taken."""
    taken = {feed.name for feed in feeds}
    number = 1
    while True:
        found = name if number == 1 else f"{name}-{number}"
        if found not in taken:
            yield found
        number += 1
