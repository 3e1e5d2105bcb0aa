"""What the side that delivers knows of subscriptions: read when first needed, and again after a few seconds at most."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import psycopg

from tidings.db import few
from tidings.db.few import Few
from tidings.secrets import keyring
from tidings.settings import Settings
from tidings.topics import signing, statements
from tidings.topics.model import Subscription
from tidings.topics.signing import Signer
from tidings.topics.subscribing import subscription

_FRESH_SECONDS = 3.0
_MAX_KNOWN = 10_000


class Known:
    """For all lanes of an event loop: what has grown old is read together, in one query."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._few: Few | None = None
        self._lock = asyncio.Lock()
        self._signer: Signer | None = None
        self._signer_until = 0.0
        self._read: dict[str, tuple[float, Subscription | None]] = {}

    async def subscription(self, arn: str) -> Subscription | None:
        """A confirmed subscription, or None where there is none any more."""
        read = self._read.get(arn)
        if read is None or time.monotonic() >= read[0]:
            async with self._lock:
                read = self._read.get(arn)
                if read is None or time.monotonic() >= read[0]:
                    await self._refresh(arn)
            read = self._read[arn]
        return read[1]

    async def subscriptions_of(self, topic: str) -> list[str] | None:
        """The confirmed subscriptions of a topic; None where there is no such topic."""
        async with self._connected() as connection:
            if not (await connection.execute(statements.READ_TOPIC, [topic])).rowcount:
                return None
            rows = await (await connection.execute(statements.CONFIRMED_OF_TOPIC, [topic])).fetchall()
            return [row[0] for row in rows]

    async def signer(self) -> Signer:
        if self._signer is None or time.monotonic() >= self._signer_until:
            async with self._lock:
                if self._signer is None or time.monotonic() >= self._signer_until:
                    async with self._connected() as connection:
                        self._signer = await signing.load(connection, self._settings, self._signer)
                    self._signer_until = time.monotonic() + signing.FRESH_SECONDS
        return self._signer

    async def _refresh(self, arn: str) -> None:
        now = time.monotonic()
        if len(self._read) >= _MAX_KNOWN:
            self._read.clear()
        wanted = [arn, *(each for each, (until, _) in self._read.items() if now >= until and each != arn)]
        async with self._connected() as connection:
            rows = await (await connection.execute(statements.CONFIRMED, [wanted])).fetchall()
            ring = keyring.under(self._settings.secrets)
            found = {row[0]: await subscription(connection, ring, row) for row in rows}
        self._read.update({each: (now + _FRESH_SECONDS, found.get(each)) for each in wanted})

    def _connected(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        if self._few is None:
            self._few = few.taken(self._settings.database_url)
        return self._few.one()

    async def close(self) -> None:
        if self._few is not None:
            given, self._few = self._few, None
            await few.given_back(given)
