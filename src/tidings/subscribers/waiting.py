"""The events that wait for one subscriber: a bounded queue, where offering never waits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Literal, NamedTuple

from tidings.events.catalog import CatalogEvent


class Entry(NamedTuple):
    event: CatalogEvent
    trace: str | None
    """The trace of the call that made it, as `telemetry.stored` writes it."""


class Waiting:
    """Filled in API calls, so with as little as possible; emptied by one worker."""

    def __init__(self, size: int, overflow: Literal["oldest", "newest"]) -> None:
        self._size = size
        self._oldest_goes = overflow == "oldest"
        self._queue: SimpleQueue[Entry | None] = SimpleQueue()
        self._filling = threading.Lock()
        self._closed = False
        self.dropped = 0

    def __len__(self) -> int:
        return max(0, self._queue.qsize() - self._closed)

    def offer(self, events: Sequence[CatalogEvent], trace: str | None) -> None:
        queue, size = self._queue, self._size
        with self._filling:
            if self._closed:
                self.dropped += len(events)
                return
            for event in events:
                if queue.qsize() >= size:
                    self.dropped += 1
                    if not self._oldest_goes:
                        continue
                    self._drop_oldest()
                queue.put(Entry(event, trace))

    def _drop_oldest(self) -> None:
        try:
            self._queue.get_nowait()
        except Empty:  # the worker was faster: that one is not lost
            self.dropped -= 1

    def take(self) -> Entry | None:
        """The next one; waits for it. None when the queue is closed and empty."""
        entry = self._queue.get()
        if entry is None:
            self._queue.put(None)  # for the next worker, if this one hangs
        return entry

    def close(self) -> None:
        """No more events. What waits can still be taken."""
        with self._filling:
            if not self._closed:
                self._closed = True
                self._queue.put(None)

    def clear(self) -> None:
        """What still waits is dropped."""
        with self._filling:
            while True:
                try:
                    entry = self._queue.get_nowait()
                except Empty:
                    break
                self.dropped += entry is not None
            if self._closed:
                self._queue.put(None)
