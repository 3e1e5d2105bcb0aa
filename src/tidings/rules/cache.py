"""A bucket's rules in Redis, shared by all API processes: saves the database a lookup, and is never needed.

Whatever Redis does (refuses, hangs, is slow, answers nonsense), `get` says None within its budget and the database answers.
A document that is found may be old: a reader that raced a PUT may have put it back after `forget`, and a `forget` that failed
leaves it for five minutes. So whoever stores one stores its configuration's version in it and compares that with the bucket's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from redis.asyncio.connection import AbstractConnection, Connection, parse_url

from tidings import metrics
from tidings.errors import OperatorError
from tidings.rules.breaker import FAILURES, REST_SECONDS, Breaker

log = logging.getLogger(__name__)

BUDGET_SECONDS = 0.05
"""What a caller may lose to Redis."""
KEPT_SECONDS = 300
FORGET_SECONDS = 1.0
"""A PUT of a configuration is rare and its caller wants it to count at once: two tries share this."""
CONNECTIONS = 16
"""At most so many for each process; also the most documents that are on their way to Redis at once."""

_FORGET_PAUSE_SECONDS = 0.1
_TIMEOUTS = {"socket_timeout": None, "socket_connect_timeout": None}  # ours bounds the whole, theirs each step
_PLAIN = {"protocol": 2, "decode_responses": False, "driver_info": None}  # nothing to agree on when a connection is made


def key(project: str, bucket: str) -> str:
    """`project` is the public id."""
    return f"bucket-eventing:{project}:{bucket}"


class RedisRules:
    """One for each process. It connects when it is first asked."""

    def __init__(self, url: str) -> None:
        self.hits = 0
        self.misses = 0
        self.failures = 0
        self.skipped = 0
        """Not asked at all: the breaker was open, or too many documents were on their way."""
        self._kind, self._options = _understand(url)
        self._place = self._options.get("path") or f"{self._options.get('host', 'localhost')}:{self._options.get('port', 6379)}"
        self._breaker = Breaker()
        self._slots = asyncio.Semaphore(CONNECTIONS)
        # One connection is made at a time: a name is looked up in a thread, and a hung name server must not take them all.
        self._connecting = asyncio.Lock()
        self._idle: list[AbstractConnection] = []
        self._calls: set[asyncio.Task[Any]] = set()
        self._puts: set[asyncio.Task[None]] = set()

    async def get(self, project: str, bucket: str) -> str | None:
        """The document, or None: there is none, or Redis did not answer within the budget. Never raises, never takes longer."""
        answered, document = await self._ask("GET", key(project, bucket))
        if document is not None:
            self.hits += 1
        elif answered:
            self.misses += 1
        return document

    async def put(self, project: str, bucket: str, document: str) -> None:
        """Keep it for five minutes. Returns at once; Redis is told afterwards, if it can be. Never raises."""
        if len(self._puts) >= CONNECTIONS:
            self.skipped += 1
            return
        telling = asyncio.create_task(self._put(key(project, bucket), document))
        self._puts.add(telling)
        telling.add_done_callback(self._puts.discard)

    async def _put(self, name: str, document: str) -> None:
        await self._ask("SET", name, document, "EX", KEPT_SECONDS)

    async def forget(self, project: str, bucket: str) -> bool:
        """Whether Redis has surely no document of this bucket. Tried twice, breaker or not, within a second. Never raises."""
        for pause in (0.0, _FORGET_PAUSE_SECONDS):
            await asyncio.sleep(pause)
            try:
                await self._within((FORGET_SECONDS - _FORGET_PAUSE_SECONDS) / 2, "DEL", key(project, bucket))
                return True
            except Exception:
                self.failures += 1
        return False

    async def close(self) -> None:
        """End what is under way and close the connections."""
        under_way = [*self._puts, *self._calls]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        while self._idle:
            await _drop(self._idle.pop())

    async def _ask(self, *command: str | int) -> tuple[bool, str | None]:
        """Whether Redis answered within the budget, and what."""
        turn = self._breaker.enter()
        if turn is None:
            self.skipped += 1
            return False, None
        try:
            answer = await self._within(BUDGET_SECONDS, *command)
        except Exception as error:
            self.failures += 1
            metrics.lookup_failed("redis")
            if self._breaker.failed(turn):
                # The kind of error alone: its text comes from the peer and may repeat what it was told, such as the password.
                log.warning(
                    "Redis at %s failed %d times in a row (%s): the database answers; Redis is tried again every %g s",
                    *(self._place, FAILURES, type(error).__name__, REST_SECONDS),
                )
            return False, None
        except BaseException:
            self._breaker.abandoned(turn)
            raise
        if self._breaker.succeeded(turn):
            log.warning("Redis at %s answers again", self._place)
        return True, answer

    async def _within(self, seconds: float, *command: str | int) -> str | None:
        """The call has a task of its own: whatever it still has to clear up, we do not wait for it."""
        call = asyncio.create_task(self._call(*command))
        self._calls.add(call)
        call.add_done_callback(self._ended)
        try:
            await asyncio.wait({call}, timeout=seconds)
            if not call.done() or call.cancelled():  # cancelled: by `close`
                raise TimeoutError
            return call.result()
        finally:
            call.cancel()

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # seen, also where nobody waits for it any more

    async def _call(self, *command: str | int) -> str | None:
        async with self._slots:
            connection = await self._connection()
            try:
                await connection.send_command(*command)
                answer = _checked(command[0], await connection.read_response())
            except BaseException:  # an answer may still be on its way: nobody else may read it as his own
                await _drop(connection)
                raise
            self._idle.append(connection)
            return answer

    async def _connection(self) -> AbstractConnection:
        if usable := await self._usable():
            return usable
        async with self._connecting:
            if usable := await self._usable():  # given back while we waited
                return usable
            connection = self._kind(**self._options)
            try:
                await connection.connect()  # type: ignore[no-untyped-call]
            except BaseException:
                await _drop(connection)
                raise
            return connection

    async def _usable(self) -> AbstractConnection | None:
        """One that is idle and has nothing to read: neither an end nor an answer that nobody asked for."""
        while self._idle:
            connection = self._idle.pop()
            if not await connection.can_read():
                return connection
            await _drop(connection)
        return None


def _understand(url: str) -> tuple[type[AbstractConnection], dict[str, Any]]:
    try:
        options: dict[str, Any] = {**parse_url(url), **_TIMEOUTS, **_PLAIN}
        kind = options.pop("connection_class", Connection)
        kind(**options)
    except Exception:
        # Without the cause: if the password has a character that belongs percent-encoded, the cause repeats a part of it.
        raise OperatorError(
            "The URL of Redis is not understood: write redis://user:password@host:port/0 (rediss:// for TLS), "
            "and percent-encode special characters of the password."
        ) from None
    return kind, options


def _checked(command: str | int, answer: object) -> str | None:
    """The answer as this command has it; anything else is no answer."""
    match command, answer:
        case "GET", bytes():
            return answer.decode()
        case ("GET", None) | ("SET", b"OK") | ("DEL", int()):
            return None
    raise ValueError(f"not an answer to {command}")


async def _drop(connection: AbstractConnection) -> None:
    with contextlib.suppress(Exception):
        await connection.disconnect(nowait=True)
