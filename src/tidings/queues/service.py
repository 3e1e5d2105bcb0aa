"""What the front asks for: a queue that the caller may use, and the work that goes on beside the requests."""

from __future__ import annotations

import asyncio
import logging
import time

import psycopg

from tidings.access.keys import Principal
from tidings.access.permissions import MANAGE_QUEUES, RECEIVE_MESSAGE, SEND_MESSAGE
from tidings.db.pool import Pool
from tidings.queues import moves, table
from tidings.queues.errors import denied, no_such_queue
from tidings.queues.model import Queue
from tidings.queues.settings import QueuesSettings
from tidings.queues.sweep import sweep
from tidings.queues.waiting import Waiting

_log = logging.getLogger(__name__)

_MOVE_SECONDS = 2.0
"""How soon a task is noticed that another process started, or has left behind."""
_GRANTABLE = (SEND_MESSAGE, RECEIVE_MESSAGE)


class Queues:
    """The queues as one process serves them."""

    def __init__(self, pool: Pool, settings: QueuesSettings) -> None:
        self.pool = pool
        self.settings = settings
        self.waiting = Waiting(pool)
        self.task_started = asyncio.Event()

    async def open(self, caller: Principal, place: tuple[str, str], *actions: str) -> Queue:
        """The queue, if the key allows one of these actions and the queue is its project's or was granted to it."""
        allowed = [action for action in actions if caller.grant.allows_beside_buckets(action, time.time())]
        if not allowed:
            raise denied(f"{' or '.join(actions)} (by this key)")
        project, name = place
        if project == caller.project:
            found = await table.find(self.pool, project, name)
            if found is None:
                raise no_such_queue()
            return found
        granted = [action for action in allowed if action in _GRANTABLE]
        found = await table.find_granted(self.pool, project, name, caller.project, granted) if granted else None
        if found is None:
            raise denied(" or ".join(actions))
        return found

    async def keep_up(self) -> None:
        """For ever: sweep, and take the next steps of the tasks that move messages."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweeping())
            group.create_task(self._moving())

    async def _sweeping(self) -> None:
        while True:
            await asyncio.sleep(self.settings.sweep_seconds)
            try:
                if removed := await sweep(self.pool):
                    _log.info("removed %d messages from queues that nobody can receive any more", removed)
            except psycopg.OperationalError as error:
                _log.warning("no sweep of the queues yet, the database does not answer: %s", error)
            except Exception:
                _log.warning(
                    "the sweep of the queues failed; the next one is in %g s", self.settings.sweep_seconds, exc_info=True
                )

    async def _moving(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_MOVE_SECONDS):
                    await self.task_started.wait()
            except TimeoutError:
                pass
            self.task_started.clear()
            try:
                while await moves.step(self.pool):
                    pass
            except psycopg.OperationalError as error:
                _log.warning("no messages moved yet, the database does not answer: %s", error)
            except Exception:
                _log.warning("moving messages failed; the next try is in %g s", _MOVE_SECONDS, exc_info=True)


ANY = (MANAGE_QUEUES, SEND_MESSAGE, RECEIVE_MESSAGE)
"""For what only looks."""
