"""One subscription: its queue, the thread that calls its listener, and what keeps the two from harming anybody.

The thread can be held up by the listener for as long as it likes. A call that takes too long is given up by whoever watches
over all feeds (`Dispatcher`): it keeps its thread, for threads cannot be ended, and another worker goes on in its place.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Literal

from tidings import metrics
from tidings.events.catalog import CatalogEvent
from tidings.subscribers import interface
from tidings.subscribers.breaker import Breaker
from tidings.subscribers.copying import copy
from tidings.subscribers.filters import EventFilter
from tidings.subscribers.interface import EventListener, Status
from tidings.subscribers.settings import SubscribersSettings
from tidings.subscribers.tracing import Attempt, Spans
from tidings.subscribers.waiting import Entry, Waiting

log = logging.getLogger(__name__)

Outcome = Literal["delivered", "failed", "rejected", "filtered", "dropped"]
_GRACE_SECONDS = 1.0
"""A coroutine that takes too long is cancelled, and gets this long to end before its thread is given up."""
_GATHER_SECONDS = 0.005
"""Between events that come one by one: a worker that wakes up for each of many commits takes the processor from these."""
_GATHERED = 1000
"""A smaller queue might be full before."""
_WORDS = 500
"""Characters of an error that are kept."""


@dataclass(eq=False)
class _Worker:
    """A thread that calls the listener."""

    due: float | None = None
    """When the call under way must have returned."""
    attempt: Attempt | None = None
    given_up: bool = False
    thread: threading.Thread | None = None
    runner: asyncio.Runner | None = None


class Feed:
    """What `EventSubscriber.register` gets as its subscription."""

    def __init__(
        self, name: str, listener: EventListener, filter: EventFilter | None, settings: SubscribersSettings, spans: Spans
    ) -> None:
        self.name = name
        self._listener = listener
        self._filter = filter
        self._settings = settings
        self._spans = spans
        self._waiting = Waiting(settings.queue_size, settings.overflow)
        self._breaker = Breaker(settings.breaker_failures, settings.breaker_rest_seconds)
        self._closing = threading.Event()
        self._halted = threading.Event()
        self._lock = threading.Lock()  # for all below, and the breaker; held for moments only
        self._worker = _Worker()
        self._in_hand = False
        self._hung = 0
        self._counts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        self._last_error = ""
        self._dropping = False

    @property
    def words(self) -> str:
        """What it wants, for the log."""
        return self._filter.words if self._filter is not None else "everything"

    @property
    def status(self) -> Status:
        with self._lock:
            counts = {
                name: self._counts[name] for name in ("delivered", "failed", "rejected", "filtered", "retried", "unanswered")
            }
            return Status(
                **counts,
                dropped=self._counts["dropped"] + self._waiting.dropped,
                queued=len(self._waiting) + self._in_hand,
                hung=self._hung,
                breaker="open" if self._is_stuck else self._breaker.state,
                last_error=self._last_error,
            )

    def offer(self, events: Sequence[CatalogEvent], trace: str | None) -> None:
        """In an API call: never waits. While the listener is left alone it costs next to nothing, and wakes no thread."""
        if self._is_stuck or self._breaker.state == "open":
            with self._lock:
                self._counts["rejected"] += len(events)
        else:
            self._waiting.offer(events, trace)

    # What the dispatcher's own thread calls.

    def watch(self) -> None:
        """Give up a call that is overdue, and see that there is a worker."""
        with self._lock:
            worker = self._worker
            overdue = worker.due is not None and time.monotonic() >= worker.due
            if overdue:
                self._give_up()
                self._worker = _Worker()
                self._last_error = self._too_long
                opened = self._breaker.failed()
                hung = self._hung
        if overdue:
            if worker.attempt is not None:
                worker.attempt.end("timeout", self._too_long)
            log.warning("subscriber %s: %s; calls that hang: %d", self.name, self._too_long, hung)
            if opened:
                self._say_opened()
        if self._worker.thread is None and not self._halted.is_set():
            self._start_worker(self._worker)

    def begin(self) -> None:
        for outcome in metrics.HANDED:
            metrics.handed(self.name, outcome, 0)
        self.watch()

    def tell(self) -> None:
        """Bring the figures up to date: not where events are counted, for that would cost more than they do."""
        status = self.status
        now = Counter({name: getattr(status, name) for name in (*metrics.HANDED, "retried", "unanswered")})
        for name, value in (now - self._told).items():
            metrics.handed(self.name, name, value)
        dropped = now["dropped"] - self._told["dropped"]
        self._told = now
        metrics.subscriber_is(self.name, status.queued, status.breaker, status.hung)
        if bool(dropped) != self._dropping and not self._closing.is_set():
            self._dropping = not self._dropping
            words = (
                "its queue is full, events are dropped" if dropped else f"no event is dropped any more, {now['dropped']} were"
            )
            log.warning("subscriber %s: %s", self.name, words)

    def close(self) -> None:
        """No more events come. What waits is delivered still, but nothing is tried twice."""
        self._closing.set()
        self._waiting.close()

    def halt(self) -> None:
        """What still waits is lost, and what a call still has in hand has failed."""
        self._halted.set()
        self._waiting.clear()
        with self._lock:
            if self._in_hand:
                self._give_up()

    def join(self, seconds: float) -> None:
        thread = self._worker.thread
        if thread is not None:
            thread.join(max(0.0, seconds))

    def _give_up(self) -> None:
        self._worker.given_up = True
        self._hung += 1
        self._in_hand = False
        self._counts["failed"] += 1

    def _start_worker(self, worker: _Worker) -> None:
        thread = threading.Thread(target=self._work, args=(worker,), name=f"subscriber-{self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: the next look tries again
            log.error("subscriber %s: %s", self.name, error)
        else:
            worker.thread = thread

    # What the worker's thread does.

    def _work(self, worker: _Worker) -> None:
        try:
            while not worker.given_up and (entry := self._waiting.take()) is not None:
                self._handle(worker, entry)
                if not len(self._waiting) and self._settings.queue_size >= _GATHERED:
                    self._closing.wait(_GATHER_SECONDS)
        finally:
            if worker.given_up:
                with self._lock:
                    self._hung -= 1
            if worker.runner is not None:
                worker.runner.close()

    def _handle(self, worker: _Worker, entry: Entry) -> None:
        with self._lock:
            self._in_hand = True
            stuck = self._is_stuck
        try:
            outcome: Outcome = "dropped" if self._halted.is_set() else "rejected" if stuck else self._deliver(worker, entry)
        except BaseException as error:
            log.exception("subscriber %s: a fault of ours", self.name)
            outcome = "failed"
            self._note(error)
        with self._lock:
            if not worker.given_up:
                worker.due = None
                self._in_hand = False
                self._counts[outcome] += 1

    def _deliver(self, worker: _Worker, entry: Entry) -> Outcome:
        if not self._wants(worker, entry.event):
            return "filtered"
        for attempt in range(self._settings.retries + 1):
            with self._lock:
                if worker.given_up or self._breaker.state == "open":
                    return "failed" if attempt else "rejected"
                self._counts["retried"] += bool(attempt)
            if self._succeeds(worker, entry, attempt):
                return "delivered"
            if worker.given_up or self._closing.wait(self._back_off(attempt) if attempt < self._settings.retries else 0):
                break
        return "failed"

    def _wants(self, worker: _Worker, event: CatalogEvent) -> bool:
        if self._filter is None:
            return True
        self._due(worker)
        try:
            wanted = self._filter(copy(event))
        except BaseException as error:
            self._note(error)
            with self._lock:
                self._counts["unanswered"] += not worker.given_up
            return False
        finally:
            self._done(worker)
        return wanted

    def _succeeds(self, worker: _Worker, entry: Entry, attempt: int) -> bool:
        traced = worker.attempt = self._spans.attempt(self.name, entry.event, entry.trace, attempt)
        self._due(worker)
        began = time.monotonic()
        error: BaseException | None = None
        try:
            with traced.current():
                called = interface.call(self._listener, copy(entry.event))
                if inspect.isawaitable(called):
                    self._await(worker, called)
        except BaseException as raised:
            error = raised
        self._done(worker)
        metrics.attempted(self.name, time.monotonic() - began)
        with self._lock:
            if worker.given_up:  # it counts as failed already, whatever it has done since
                return False
            turned = self._breaker.succeeded() if error is None else self._breaker.failed()
        if error is not None:
            self._note(error)
            traced.end(type(error).__qualname__, str(error)[:_WORDS])
            if turned:
                self._say_opened()
        else:
            traced.end()
            if turned:
                log.warning("subscriber %s takes events again", self.name)
        return error is None

    def _await(self, worker: _Worker, called: Awaitable[None]) -> None:
        """A worker has an event loop of its own, the same one for all of its calls."""

        async def waited() -> None:
            async with asyncio.timeout(self._settings.timeout_seconds):
                await called

        if worker.runner is None:
            worker.runner = asyncio.Runner()
        self._due(worker, _GRACE_SECONDS)
        try:
            worker.runner.run(waited())
        except TimeoutError as error:
            raise TimeoutError(str(error) or self._too_long) from None

    def _due(self, worker: _Worker, grace: float = 0.0) -> None:
        worker.due = time.monotonic() + self._settings.timeout_seconds + grace

    def _done(self, worker: _Worker) -> None:
        with self._lock:  # so that nobody who has just seen that it is overdue gives up the next call for it
            worker.due = None

    def _back_off(self, attempt: int) -> float:
        longest: float = min(self._settings.backoff_max_seconds, self._settings.backoff_seconds * 2**attempt)
        return random.uniform(longest / 2, longest)  # noqa: S311 spreads retries, guards nothing

    def _note(self, error: BaseException) -> None:
        words = f"{type(error).__qualname__}: {error}"[:_WORDS]
        with self._lock:
            self._last_error = words
        log.debug("subscriber %s: %s", self.name, words, exc_info=error)

    def _say_opened(self) -> None:
        rest = self._settings.breaker_rest_seconds
        log.warning("subscriber %s fails and is left alone for %g s: %s", self.name, rest, self._last_error)

    @property
    def _is_stuck(self) -> bool:
        return self._hung >= self._settings.hung_calls

    @property
    def _too_long(self) -> str:
        return f"a call has not returned within {self._settings.timeout_seconds:g} s"
