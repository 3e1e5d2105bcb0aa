"""Threads for calls that block, shared fairly by the projects of a process.

`asyncio.to_thread` has one queue for all: a project that fills it delays every other one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from tidings.db import context

P = ParamSpec("P")
T = TypeVar("T")

_BUSY_PER_FREE = 3
"""A share (`context.share`) may have so many threads for each that is free. Alone it has three quarters of them."""


@dataclass(eq=False, slots=True)
class _Job:
    share: str
    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]

    def settle(self, result: Any, error: BaseException | None) -> None:
        if self.answer.done():  # its caller was cancelled
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(result)


class Threads:
    """Each share has a queue of its own. A free thread goes to the share that has fewest.

    Several busy shares together leave a thread free too, so that a share that has none gets one at once.
    """

    def __init__(self, name: str, size: int) -> None:
        self._executor = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._lock = Lock()
        self._free = size
        self._busy: Counter[str] = Counter()
        self._waiting: dict[str, dict[_Job, None]] = {}

    async def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What the function returns, from a thread. A call that is cancelled before it began is never made."""
        loop = asyncio.get_running_loop()
        job = _Job(context.share.get(), partial(function, *arguments, **named), loop, loop.create_future())
        with self._lock:
            self._waiting.setdefault(job.share, {})[job] = None
            self._start()
        try:
            result: T = await job.answer
        except asyncio.CancelledError:
            with self._lock:
                self._dequeue(job)
            raise
        return result

    def _start(self) -> None:
        """Start what may start. The lock is held."""
        while self._waiting and self._free:
            share = min(self._waiting, key=self._busy.__getitem__)
            busy = self._busy[share]
            if busy and busy >= _BUSY_PER_FREE * (self._free - 1):
                return
            job = next(iter(self._waiting[share]))
            self._dequeue(job)
            if share in self._waiting:  # behind the others that have as few threads
                self._waiting[share] = self._waiting.pop(share)
            self._free -= 1
            self._busy[share] += 1
            self._executor.submit(self._run, job)

    def _dequeue(self, job: _Job) -> None:
        """Shares without jobs are forgotten: there is no end of projects. The lock is held."""
        if jobs := self._waiting.get(job.share):
            jobs.pop(job, None)
            if not jobs:
                del self._waiting[job.share]

    def _run(self, job: _Job) -> None:
        result, error = None, None
        try:
            result = job.function()
        except BaseException as caught:
            error = caught
        with self._lock:
            self._free += 1
            self._busy[job.share] -= 1
            if not self._busy[job.share]:
                del self._busy[job.share]
            self._start()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            job.loop.call_soon_threadsafe(job.settle, result, error)
