"""Work that goes on beside its giver: one piece at a time, in order, and none after one that failed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType


class Turns:
    """`give` waits for the piece before. What a piece raised, the next `give`, `check` or `finish` raises."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._last: Future[None] | None = None

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._pool.shutdown()

    def give(self, work: Callable[[], None]) -> None:
        self.finish()
        self._last = self._pool.submit(work)

    def check(self) -> None:
        if self._last is not None and self._last.done():
            self._last.result()

    def finish(self) -> None:
        if self._last is not None:
            self._last.result()
