"""The catalog's service over a real database, for tests that are not asynchronous themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

from catalog_changes import Told
from tidings.access.projects import create_project
from tidings.catalog import contents, log, references
from tidings.catalog.diff import Difference, diff
from tidings.catalog.model import Caller, Content, Key, Meta, Operation
from tidings.catalog.points import find, resolve
from tidings.catalog.service import Catalog
from tidings.catalog.settings import CatalogSettings
from tidings.db.pool import Pool, make_pool
from tidings.events.catalog import CatalogEvent

T = TypeVar("T")
WHO = Caller("somebody", ("analyst",), "127.0.0.1", "request")


class Calls:
    """One repository. `told` are its rows in the change stream, `published` what subscribers were given."""

    def __init__(self, runner: asyncio.Runner, pool: Pool, connection: psycopg.Connection[Any], **settings: Any) -> None:
        self._runner = runner
        self.pool = pool
        self.connection = connection
        self.project = create_project(connection, f"project-{id(self)}")
        self.published: list[CatalogEvent] = []
        self.catalog = Catalog(pool, CatalogSettings(**settings), lambda events, _trace: self.published.extend(events))
        self.told = Told(connection)
        self.told.rows()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def commit(self, branch: str, expected: str | None, *operations: Operation, message: str = "") -> str:
        return self.run(self.catalog.commit(self.project, WHO, branch, expected, operations, Meta(message)))

    def create(self, name: str, source: str | None = "main", hash: str | None = None, type: Any = "BRANCH") -> str:
        return self.run(self.catalog.create(self.project, WHO, name, type, source, hash)).hash

    def head(self, name: str = "main") -> str:
        return self.run(self.catalog.head(self.project, WHO, name))[1].hash

    def state(self, name: str = "main", hash: str | None = None) -> dict[Key, Content]:
        async def work() -> dict[Key, Content]:
            async with self.catalog.reading(self.project, WHO) as connection:
                at = await resolve(connection, self.project, name, hash)
                return dict(await contents.listed(connection, at, "", 10_000))

        return self.run(work())

    def content(self, key: Key, name: str, hash: str | None = None) -> Content | None:
        async def work() -> Content | None:
            async with self.catalog.reading(self.project, WHO) as connection:
                at = await resolve(connection, self.project, name, hash)
                return contents.content_of(await contents.contents(connection, at, [key.text]), key.text)

        return self.run(work())

    def log(self, name: str = "main", hash: str | None = None) -> list[log.Entry]:
        async def work() -> list[log.Entry]:
            async with self.catalog.reading(self.project, WHO) as connection:
                at = await resolve(connection, self.project, name, hash)
                return [entry async for entry in log.entries(connection, at)]

        return self.run(work())

    def diff(self, one: str, other: str) -> list[Difference]:
        async def work() -> list[Difference]:
            async with self.catalog.reading(self.project, WHO) as connection:
                points = [await resolve(connection, self.project, each, None) for each in (one, other)]
                return await diff(connection, *points)

        return self.run(work())

    def references(self) -> dict[str, tuple[str, str]]:
        async def work() -> dict[str, tuple[str, str]]:
            async with self.catalog.reading(self.project, WHO) as connection:
                found = await references.listed(connection, self.project, "", 10_000)
                return {each.ref.name: (each.ref.type, each.ref.head.hash) for each in found}

        return self.run(work())

    def lines(self, name: str = "main") -> int:
        """How many lines contents are looked for in."""

        async def work() -> int:
            async with self.catalog.reading(self.project, WHO) as connection:
                return (await find(connection, self.project, name)).head.reach

        return self.run(work())


@contextmanager
def calls(database_url: str, **settings: Any) -> Iterator[Calls]:
    with asyncio.Runner() as runner, psycopg.connect(database_url, autocommit=True) as connection:
        pool = make_pool(database_url, 10)
        runner.run(pool.open())
        try:
            yield Calls(runner, pool, connection, **settings)
        finally:
            runner.run(pool.close())
