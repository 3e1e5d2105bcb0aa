"""What becomes of a verified message: subscriptions are confirmed, S3 events are registered, everything else is noted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

import aiohttp
import psycopg
from psycopg_pool import ConnectionPool

from tidings.consumers.files import registry
from tidings.consumers.files.asking import asked
from tidings.consumers.files.authorising import Allowed
from tidings.consumers.files.notification import CREATED, Event, Record, TestEvent, read
from tidings.consumers.files.objects import Objects
from tidings.consumers.files.refusals import Failed
from tidings.consumers.files.staged import Row, row
from tidings.outgoing.connecting import Caller
from tidings.outgoing.urls import Refused
from tidings.topics.envelope import CONFIRMATION, NOTIFICATION
from tidings.topics.verifying import Verified

T = TypeVar("T")
_log = logging.getLogger("tidings.files")
_CONFIRM_SECONDS = 10.0
_MAX_ANSWER = 64 * 1024


class Taking:
    """Blocking calls go to `threads`: there are as many as `pool` has connections, so that nobody waits for one for long."""

    def __init__(
        self, allowed: Allowed, awaits: bool, pool: ConnectionPool[Any], objects: Objects, caller: Caller, threads: Executor
    ) -> None:
        self._allowed = allowed
        self._awaits = awaits
        self._pool = pool
        self._objects = objects
        self._caller = caller
        self._threads = threads

    async def take(self, message: Verified) -> dict[str, Any]:
        """What was done, for the answer; or `Refusal`."""
        if message.type == NOTIFICATION:
            return await self._notified(message)
        if message.type == CONFIRMATION:
            return await self._confirm(message)
        _log.warning("our subscription to %s was ended", message.topic, extra={"topic": message.topic})
        return {"status": "unsubscribed"}

    async def _confirm(self, message: Verified) -> dict[str, Any]:
        """The URL is at the host that signed, and leads to nothing but this confirmation: the verifier has seen to that."""
        assert message.subscribe_url is not None
        try:
            answer = await self._caller.get(message.subscribe_url, _CONFIRM_SECONDS, _MAX_ANSWER)
        except (aiohttp.ClientError, OSError, TimeoutError, Refused) as error:
            raise Failed(f"The subscription to {message.topic} could not be confirmed: {error}"[:500]) from None
        if answer.status != 200:
            raise Failed(f"The subscription to {message.topic} could not be confirmed: the answer was {answer.status}")
        _log.info("subscribed to %s", message.topic, extra={"topic": message.topic})
        return {"status": "confirmed"}

    async def _notified(self, message: Verified) -> dict[str, Any]:
        event = read(message.message)
        if isinstance(event, TestEvent):
            _log.info("a test event of the bucket %s", event.bucket, extra={"topic": message.topic})
            return {"status": "test event"}
        if not isinstance(event, Event):
            _log.info("a notification that is no S3 event: %s", message.message[:200], extra={"topic": message.topic})
            return {"status": "ignored"}
        self._allowed.check_buckets(event.buckets)
        return await self._register(message, event)

    async def _register(self, message: Verified, event: Event) -> dict[str, Any]:
        """A message that was taken before is not looked at again: by now its object may be another one."""
        if await self._in_database(lambda connection: registry.was_taken(connection, message.topic, message.id)):
            return self._repeated(message)
        rows = await asyncio.gather(*(self._row(record) for record in event.records))
        merged = await self._in_database(lambda connection: registry.take(connection, rows, message.topic, message.id))
        if merged is None:
            return self._repeated(message)
        for record in event.records:
            _log.info("%s %s/%s", record.event_name, record.bucket, record.key, extra={"version": record.version_id})
        _log.info("message %s: %s", message.id, dict(merged.operations), extra={"topic": message.topic})
        return {"status": "processed", **merged.operations}

    def _repeated(self, message: Verified) -> dict[str, Any]:
        _log.info("duplicate notification %s: nothing changes", message.id, extra={"topic": message.topic})
        return {"status": "duplicate"}

    async def _row(self, record: Record) -> Row:
        staged = row(record, record.sha256, True)  # a wrong path is refused before anybody is asked
        if record.kind != CREATED or record.sha256 is not None:
            return staged
        return row(record, await self._in_thread(lambda: asked(self._objects, record)), self._awaits)

    async def _in_database(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        def connected() -> T:
            with self._pool.connection() as connection:
                return work(connection)

        try:
            return await self._in_thread(connected)
        except psycopg.Error as error:  # also the pool's, when there is no connection to be had
            _log.error("the database: %s", error)
            raise Failed("The database did not take it: try again later") from None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
