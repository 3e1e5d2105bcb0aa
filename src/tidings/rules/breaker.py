"""When to leave a peer alone that keeps failing, and when to try it again."""

from __future__ import annotations

import time
from collections.abc import Callable

FAILURES = 3
"""So many in a row, and the breaker opens."""
REST_SECONDS = 5.0
"""So long nobody asks; then one request at a time tries again."""


class Breaker:
    """Closed: everybody asks. Open: nobody does. Half open, after the rest: one asks for all, and its answer decides.

    Each request that may ask gets a pass and hands it back with its outcome. A pass from before the last turn of the breaker
    counts for nothing: what was under way when it opened neither closes it again nor makes the rest longer.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turn = 0
        self._failures = 0
        self._open_until: float | None = None
        self._trying = False

    @property
    def is_open(self) -> bool:
        return self._open_until is not None

    def enter(self) -> int | None:
        """A pass, or None: do not ask."""
        if self._open_until is not None:
            if self._trying or self._clock() < self._open_until:
                return None
            self._trying = True
        return self._turn

    def succeeded(self, turn: int) -> bool:
        """Whether this closed the breaker."""
        if turn != self._turn:
            return False
        self._failures = 0
        if self._open_until is None:
            return False
        self._open_until = None
        self._next_turn()
        return True

    def failed(self, turn: int) -> bool:
        """Whether this opened a closed breaker."""
        if turn != self._turn:
            return False
        was_open = self._open_until is not None
        self._failures += 1
        if self._failures < FAILURES and not was_open:
            return False
        self._failures = 0
        self._open_until = self._clock() + REST_SECONDS
        self._next_turn()
        return not was_open

    def abandoned(self, turn: int) -> None:
        """The request ended without an outcome (its caller went away): if it tried for all, the next one does."""
        if turn == self._turn:
            self._trying = False

    def _next_turn(self) -> None:
        self._turn += 1
        self._trying = False
