"""What a subscriber implements, and what it is given."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal, Protocol

from tidings.events.catalog import (
    CatalogEvent,
    Commit,
    ContentRemoved,
    ContentStored,
    Merge,
    ReferenceCreated,
    ReferenceDeleted,
    ReferenceUpdated,
    Transplant,
)
from tidings.subscribers.filters import EventFilter

BreakerState = Literal["closed", "half-open", "open"]
Called = Awaitable[None] | None
"""Each method of a listener may be a plain function or `async def`."""


class EventListener:
    """Is called for each event, one at a time, in a thread of its own: on_<type>, or `on_event` where that is not overridden.

    A method that raises has failed, and is called again with the same event a little later. One that does not return in time
    has failed as well, but is not called again with that event. The event is the listener's own copy.
    """

    def on_event(self, event: CatalogEvent) -> Called:
        """Any event that no other method is for: also of a type that did not exist when this was written."""

    def on_reference_created(self, event: ReferenceCreated) -> Called:
        return self.on_event(event)

    def on_reference_updated(self, event: ReferenceUpdated) -> Called:
        return self.on_event(event)

    def on_reference_deleted(self, event: ReferenceDeleted) -> Called:
        return self.on_event(event)

    def on_commit(self, event: Commit) -> Called:
        return self.on_event(event)

    def on_merge(self, event: Merge) -> Called:
        return self.on_event(event)

    def on_transplant(self, event: Transplant) -> Called:
        return self.on_event(event)

    def on_content_stored(self, event: ContentStored) -> Called:
        return self.on_event(event)

    def on_content_removed(self, event: ContentRemoved) -> Called:
        return self.on_event(event)


def call(listener: EventListener, event: CatalogEvent) -> Called:
    """Call the method that is for this event."""
    method = getattr(listener, f"on_{event.type.lower()}", listener.on_event)
    called: Called = method(event)
    return called


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How a subscription is doing in this process. Each event that was published ends as one of the first six."""

    delivered: int = 0
    """The listener has returned."""
    failed: int = 0
    """Given up: the last attempt raised, or did not return in time."""
    rejected: int = 0
    """Not tried: the breaker was open."""
    dropped: int = 0
    """Lost before they were tried: the queue was full, or the server stopped."""
    filtered: int = 0
    """Not wanted, the filter says."""
    queued: int = 0
    """They wait, or are being delivered."""
    retried: int = 0
    """Attempts after the first one."""
    unanswered: int = 0
    """Of the filtered ones: those for which the filter itself failed."""
    hung: int = 0
    """Calls that have not returned in time, and still have not."""
    breaker: BreakerState = "closed"
    last_error: str = ""


class Subscription(Protocol):
    """What a subscriber gets for its listener."""

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> Status: ...


class Registrar(Protocol):
    """What a subscriber registers with. It is closed when `register` has returned."""

    def register(self, listener: EventListener, filter: EventFilter | str | None = None) -> Subscription:
        """A filter that is text is an expression in CEL; one with a mistake raises `tidings.errors.ExpressionMistake`."""
        ...


class EventSubscriber:
    """The class that an entry point names. It is made without arguments; connections belong into `register`."""

    def register(self, registrar: Registrar) -> None:
        raise NotImplementedError(f"{type(self).__name__} must have a method register(registrar)")

    def close(self) -> None:
        """Called when the server stops and no more events come; two seconds at most."""
