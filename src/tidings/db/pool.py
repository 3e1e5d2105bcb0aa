"""The connections that one API process shares."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, LiteralString, NamedTuple

from psycopg import AsyncConnection, AsyncCursor, AsyncRawCursor
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from tidings.db import context

Pool = AsyncConnectionPool[AsyncConnection[Any]]

_SHARE = 0.75
"""Of the connections, for one project or one address that has proven nothing yet (`context.share`)."""

_KEPT = 2
_WAIT_SECONDS = 3.0
"""For a free connection. A caller who would wait longer is better served by a 503, after which clients try again."""
_STATEMENT_SECONDS = 30
"""No statement of the API takes long, unless it waits for a lock that somebody else does not give back."""


def make_pool(url: str, size: int) -> Pool:
    """A pool that is still closed: its owner opens it. The database need not answer yet."""
    return SharedPool(
        url,
        min_size=min(_KEPT, size),
        max_size=size,
        open=False,
        name="tidings",
        timeout=_WAIT_SECONDS,
        reconnect_timeout=_WAIT_SECONDS,
        max_lifetime=1800,
        max_idle=300,
        configure=_configure,
        connection_class=_Connection,
        kwargs={
            "autocommit": True,  # each operation of the store is one statement
            "prepare_threshold": 0,  # and the statements are few: prepared when first used
            "connect_timeout": 5,
            "keepalives_idle": 30,
            "tcp_user_timeout": 20_000,
            "application_name": "tidings-api",
        },
    )


class SharedPool(AsyncConnectionPool[AsyncConnection[Any]]):
    """Whoever waits for a connection waits behind all others. The excess of one share waits outside of that queue."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._most = max(int(options["max_size"] * _SHARE), 2)
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()
        self._held: dict[AsyncConnection[Any], str] = {}

    async def getconn(self, timeout: float | None = None) -> AsyncConnection[Any]:
        if not (share := context.share.get()):
            return await super().getconn(timeout)
        until = time.monotonic() + (self.timeout if timeout is None else timeout)
        turn = self._turns.setdefault(share, asyncio.Semaphore(self._most))
        self._users[share] += 1
        try:
            async with asyncio.timeout(until - time.monotonic()):
                await turn.acquire()
        except BaseException as error:
            self._leave(share)
            if isinstance(error, TimeoutError):
                raise PoolTimeout(f"couldn't get a connection after {self.timeout:.2f} sec: {share} has its share") from None
            raise
        try:
            connection = await super().getconn(max(until - time.monotonic(), 0.01))
        except BaseException:
            turn.release()
            self._leave(share)
            raise
        self._held[connection] = share
        return connection

    async def putconn(self, conn: AsyncConnection[Any]) -> None:
        share = self._held.pop(conn, "")
        try:
            await super().putconn(conn)
        finally:
            if share:
                self._turns[share].release()
                self._leave(share)

    def _leave(self, share: str) -> None:
        """Who waits for nothing and has nothing is forgotten: there is no end of projects."""
        self._users[share] -= 1
        if not self._users[share]:
            del self._users[share], self._turns[share]


class _Numbered(NamedTuple):
    text: bytes
    names: tuple[str, ...]


@lru_cache(maxsize=512)
def _numbered(statement: str) -> _Numbered:
    """A statement as PostgreSQL takes it, with $1 for its first parameter, and the names of the parameters in that order."""
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"${numbers.setdefault(found[1], len(numbers) + 1)}" if found[1] else "%"

    text = re.sub(r"%(?:%|\((\w+)\)s)", number, statement)
    return _Numbered(text.encode(), tuple(numbers))


class _Connection(AsyncConnection[Any]):
    async def execute(self, query: Any, params: Any = None, **options: Any) -> AsyncCursor[Any]:
        """psycopg reads a statement of more than 4096 characters again each time: a tenth of what a PUT costs."""
        if not isinstance(params, dict) or not isinstance(query, str):
            return await super().execute(query, params, **options)
        numbered = _numbered(query)
        return await AsyncRawCursor(self).execute(numbered.text, [params[name] for name in numbered.names], **options)


async def run(pool: Pool, statement: LiteralString, parameters: Sequence[Any] | Mapping[str, Any]) -> AsyncCursor[Any]:
    """Run one statement on any connection. The whole result has come when this returns.

    In place of `pool.connection()`, which would begin by asking whether there is a transaction to commit.
    """
    connection = await pool.getconn()
    try:
        return await connection.execute(statement, parameters)
    finally:
        await pool.putconn(connection)


@asynccontextmanager
async def borrowed(pool: Pool) -> AsyncIterator[AsyncConnection[Any]]:
    """A connection for several statements, each by itself. See `run`."""
    connection = await pool.getconn()
    try:
        yield connection
    finally:
        await pool.putconn(connection)


@asynccontextmanager
async def transaction(pool: Pool) -> AsyncIterator[AsyncConnection[Any]]:
    """Several statements, all or none. Each sees what was committed before it began, also while it waited for a lock."""
    connection = await pool.getconn()
    try:
        async with connection.transaction():
            yield connection
    finally:
        await pool.putconn(connection)


async def _configure(connection: AsyncConnection[Any]) -> None:
    # Not among the connection's options: the URL may have options of its own, and one would hide the other.
    await connection.execute(f"set statement_timeout = '{_STATEMENT_SECONDS}s'")
