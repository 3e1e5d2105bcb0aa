"""A few connections for one event loop, shared by all who send into the database from it. They are made when first needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from psycopg import AsyncConnection

from tidings.db.connecting import noticing

_MOST = 4


class Few:
    """After a failure none of them is trusted any more: the database may have been away."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._free = asyncio.Semaphore(_MOST)
        self._idle: list[AsyncConnection[Any]] = []
        self.users = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A connection in autocommit."""
        async with self._free:
            if self._idle:
                connection = self._idle.pop()
            else:
                connection = await AsyncConnection.connect(
                    noticing(self._url), autocommit=True, prepare_threshold=0, application_name="tidings-stream"
                )
            try:
                yield connection
            except BaseException:
                await connection.close()
                await self.close()
                raise
            self._idle.append(connection)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()


_few: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Few]] = WeakKeyDictionary()


def taken(url: str) -> Few:
    """The few of this event loop. Who takes them gives them back with `given_back`."""
    few = _few.setdefault(asyncio.get_running_loop(), {}).setdefault(url, Few(url))
    few.users += 1
    return few


async def given_back(few: Few) -> None:
    """The last who gives them back closes them."""
    few.users -= 1
    if few.users == 0:
        await few.close()
