"""When to leave a listener alone, and when to try it again. One call at a time; its owner's lock guards what changes it."""

from __future__ import annotations

import time
from collections.abc import Callable

from tidings.subscribers.interface import BreakerState


class Breaker:
    """Closed: every event is tried. Open: none is. Half open, after the rest: one is, and what becomes of it decides."""

    def __init__(self, failures: int, rest_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = failures
        self._rest = rest_seconds
        self._clock = clock
        self._in_a_row = 0
        self._open_until: float | None = None

    @property
    def state(self) -> BreakerState:
        until = self._open_until  # read once: this is asked without the lock as well
        if until is None:
            return "closed"
        return "open" if self._clock() < until else "half-open"

    def succeeded(self) -> bool:
        """Whether this closed it."""
        was_open = self._open_until is not None
        self._in_a_row, self._open_until = 0, None
        return was_open

    def failed(self) -> bool:
        """Whether this opened it, where it was closed."""
        was_open = self._open_until is not None
        self._in_a_row += 1
        if self._in_a_row >= self._limit:  # so it stays, until a success: a trial that fails opens it again
            self._open_until = self._clock() + self._rest
        return not was_open and self._open_until is not None
