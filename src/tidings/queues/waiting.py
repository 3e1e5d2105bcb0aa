"""Long polling: whoever waits holds no connection, and all who wait in a process share one look at the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import psycopg

from tidings.db.pool import Pool, run

_log = logging.getLogger(__name__)

_FIRST_SECONDS, _LAST_SECONDS = 0.1, 0.5
"""Between two looks: the second after a while in which nothing has come."""

_LOOK = """
select w.queue, (
    select count(*) from (
        select from queue_messages m where m.pile = q.pile and m.visible_at <= now() limit w.waiting
    ) found
) from unnest(%s::bigint[], %s::integer[]) w (queue, waiting) join queues q on q.id = w.queue
"""


class Waiting:
    """Who waits in this process, and the one task that looks for them while there is anybody."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, queue: int, seconds: float) -> bool:
        """Until there may be a message in the queue, and that is worth a try; False when the time is over."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(queue, []).append(waiter)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(seconds):
                await waiter
            return True
        except TimeoutError:
            return False
        finally:
            waiting = self._waiting.get(queue, [])
            if waiter in waiting:
                waiting.remove(waiter)
            if not waiting:
                self._waiting.pop(queue, None)

    def sent(self, queue: int, messages: int) -> None:
        """Messages have come through this process: whoever waits for them need not wait for the next look."""
        self._wake([(queue, messages)])

    def _wake(self, found: Iterable[tuple[int, int]]) -> None:
        for queue, messages in found:
            for waiter in self._waiting.get(queue, [])[:messages]:
                if not waiter.done():
                    waiter.set_result(None)

    async def _look(self) -> None:
        pause = _FIRST_SECONDS
        while True:
            await asyncio.sleep(pause)
            if not self._waiting:
                return
            queues = list(self._waiting)
            try:
                cursor = await run(self._pool, _LOOK, [queues, [len(self._waiting[each]) for each in queues]])
                found = [(queue, messages) for queue, messages in await cursor.fetchall() if messages]
            except psycopg.Error as error:
                # Who waits hears of it at the end, from a try of its own.
                _log.warning("cannot look for messages: %s", error)
                found = []
            self._wake(found)
            pause = _FIRST_SECONDS if found else min(pause * 1.5, _LAST_SECONDS)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
