"""Writers and readers of the change stream: the store's own put and delete, at once, beside a test, or held open."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import psycopg
from psycopg import AsyncConnection

from tidings.access.projects import create_project
from tidings.changestream import reader, windows
from tidings.db.pool import Pool, make_pool
from tidings.events.arn import PubSubTopic
from tidings.events.positions import START, Position
from tidings.rules import table
from tidings.rules.model import Rule
from tidings.store import buckets, deletes, objects
from tidings.store.model import Content, Origin, Place

EVERYTHING = ("s3:ObjectCreated:*", "s3:ObjectRemoved:*")
TOPIC = PubSubTopic("tidings-test", "one")
CONNECTIONS = 8

Change = dict[str, Any]
T = TypeVar("T")


class Held:
    """In the place of a pool: what the store does happens on one connection, in a transaction that the test ends."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection
        self.commit, self.rollback = connection.commit, connection.rollback

    async def getconn(self) -> AsyncConnection[Any]:
        return self._connection

    async def putconn(self, connection: AsyncConnection[Any]) -> None:
        assert connection is self._connection


class Writer:
    """A bucket whose changes are all wanted by one rule, and a loop to write to it. Every put has an eTag of its own."""

    def __init__(self, url: str, runner: asyncio.Runner) -> None:
        self.url = url
        self.bucket = "bucket"
        self._runner = runner
        self._numbers = itertools.count(1)
        self._sql = psycopg.connect(url, autocommit=True)
        self.project = create_project(self._sql, "one")
        self._pool = self.run(self._open())
        self.run(self._prepare())

    def run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return self._runner.run(awaited())

    async def _open(self) -> Pool:
        pool = make_pool(self.url, CONNECTIONS)
        await pool.open(wait=True)
        return pool

    async def _prepare(self) -> None:
        await buckets.create(self._pool, self.project, self.bucket)
        async with self._pool.connection() as connection:
            await table.replace(connection, self.project, self.bucket, [Rule("all", TOPIC, EVERYTHING)])

    def close(self) -> None:
        self.run(self._pool.close())
        self._sql.close()

    def request(self) -> tuple[str, Origin]:
        """A name for a put and its eTag, and where it comes from."""
        name = f"e{next(self._numbers)}"
        return name, Origin("AKIAEXAMPLE", "192.0.2.1", name)

    async def put_in(self, pool: Pool | Held, key: str) -> str:
        etag, origin = self.request()
        place = Place(self.project, self.bucket, key)
        await objects.commit_inline_object(cast(Pool, pool), place, Content(1, etag, "text/plain", {}, b"x"), origin)
        return etag

    async def delete_in(self, pool: Pool | Held, key: str) -> None:
        place = Place(self.project, self.bucket, key)
        await deletes.delete_object_last_committed(cast(Pool, pool), place, self.request()[1])

    def put(self, *keys: str) -> list[str]:
        """Put each key, one after the other; returns the eTags."""
        return [self.run(self.put_in(self._pool, key)) for key in keys]

    def delete(self, key: str) -> None:
        self.run(self.delete_in(self._pool, key))

    def read(self, start: Position = START, end: Position | None = None, part: int = 0, parts: int = 1) -> list[Change]:
        """The changes of (start, end] as a reader gets them; without an end, a window is cut and everything is read."""
        pieces = reader.slices(self._sql, start, end or windows.latest(self._sql))
        return [row for batch in reader.read(self.url, pieces, part, parts) for row in batch.to_pylist()]

    @contextmanager
    def held(self) -> Iterator[Held]:
        """A transaction for `put_in` and `delete_in` that stays open until the end of the block, and is committed there."""
        connection = self.run(AsyncConnection.connect(self.url))
        try:
            yield Held(connection)
            self.run(connection.commit())
        finally:
            self.run(connection.close())

    def at_once(self, *works: Callable[[Pool], Awaitable[None]]) -> None:
        async def gathered() -> None:
            await asyncio.gather(*(work(self._pool) for work in works))

        self.run(gathered())

    @contextmanager
    def writing(self, keys: Sequence[str], writers: int = 2, pause: float = 0.004) -> Iterator[None]:
        """Puts and some deletes beside the test, from a thread and connections of their own, until the end of the block."""
        over = threading.Event()
        failed: list[BaseException] = []

        async def one(pool: Pool, number: int) -> None:
            draw = random.Random(number)
            while not over.is_set():
                work = self.delete_in if draw.random() < 0.2 else self.put_in
                await work(pool, draw.choice(keys))
                await asyncio.sleep(pause * draw.random())

        async def every() -> None:
            async with make_pool(self.url, writers) as pool:
                await asyncio.gather(*(one(pool, number) for number in range(writers)))

        def thread() -> None:
            try:
                asyncio.run(every())
            except BaseException as error:
                failed.append(error)

        beside = threading.Thread(target=thread)
        beside.start()
        try:
            yield
        finally:
            over.set()
            beside.join()
        assert not failed, failed


@contextmanager
def writer_to(url: str) -> Iterator[Writer]:
    with asyncio.Runner() as runner:
        writer = Writer(url, runner)
        try:
            yield writer
        finally:
            writer.close()


def position(change: Change) -> Position:
    return Position(change["window"], change["seq"])


def etags(changes: Sequence[Change]) -> list[str]:
    return [change["etag"] for change in changes]
