"""The catalog as one process serves it: a repository begins when it is first asked for, events go out after the commit."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection

from tidings.catalog import commits, references
from tidings.catalog.errors import bad_request
from tidings.catalog.events import Occasion
from tidings.catalog.hashes import BEGINNING
from tidings.catalog.merge import Result, Wish, merge
from tidings.catalog.model import Caller, Meta, Operation, check_hash, check_name
from tidings.catalog.points import ROOT, Point, find, resolve
from tidings.catalog.settings import CatalogSettings
from tidings.catalog.transplant import transplant
from tidings.db.pool import Pool, borrowed
from tidings.events.catalog import CatalogEvent, ReferenceType

Publish = Callable[[Sequence[CatalogEvent], str | None], None]
"""Takes the events of a call after its commit, with its trace, and returns at once; see `tidings.subscribers`."""


def _to_nobody(_events: Sequence[CatalogEvent], _trace: str | None) -> None:
    return None


class Catalog:
    def __init__(self, pool: Pool, settings: CatalogSettings, publish: Publish = _to_nobody) -> None:
        self._pool = pool
        self._settings = settings
        self._publish = publish
        self._sent_by = settings.sent_by or f"tidings@{socket.gethostname()}"
        self._default_branches: dict[str, str] = {}
        """Of the repositories that are known to be there."""

    async def default_branch(self, repository: str, caller: Caller) -> str:
        """The name of the branch that the repository began with; here it begins, if it has not."""
        known = self._default_branches.get(repository)
        if known is None:
            known = await self._begin(repository, caller)
            self._default_branches[repository] = known
        return known

    async def _begin(self, repository: str, caller: Caller) -> str:
        name = check_name(self._settings.default_branch)
        async with borrowed(self._pool) as connection:
            events = await references.begin(connection, self._occasion(repository, caller), name, BEGINNING, self._told)
            row = await (
                await connection.execute("select default_branch from catalog_repositories where name = %s", [repository])
            ).fetchone()
        self._tell(events or (), caller)
        assert row is not None
        return str(row[0])

    @asynccontextmanager
    async def reading(self, repository: str, caller: Caller) -> AsyncIterator[AsyncConnection[Any]]:
        """A connection to look into a repository with."""
        await self.default_branch(repository, caller)
        async with borrowed(self._pool) as connection:
            yield connection

    async def create(
        self, repository: str, caller: Caller, name: str, type: ReferenceType, source: str | None, hash: str | None
    ) -> Point:
        """A new reference: at a hash, which must be on the source if one is named; or at the source's head."""
        check_name(name)
        async with self.reading(repository, caller) as connection:
            at = await self._start(connection, repository, type, source, hash)
            occasion = self._occasion(repository, caller)
            events = await references.create(connection, occasion, name, type, at, self._told)
        self._tell(events, caller)
        return at

    async def _start(
        self, connection: AsyncConnection[Any], repository: str, type: ReferenceType, source: str | None, hash: str | None
    ) -> Point:
        if source is not None:
            return await resolve(connection, repository, source, hash)
        if hash is not None:
            return await resolve(connection, repository, "DETACHED", hash)
        if type == "TAG":
            raise bad_request("A tag needs a commit: send its hash, or sourceRefName.")
        return ROOT

    async def assign(
        self, repository: str, caller: Caller, type: ReferenceType, name: str, expected: str | None, to: str, hash: str | None
    ) -> None:
        check_name(name)
        async with self.reading(repository, caller) as connection:
            there = await resolve(connection, repository, to, hash)
            occasion = self._occasion(repository, caller)
            events = await references.assign(connection, occasion, type, name, _needed(expected), there, self._told)
        self._tell(events, caller)

    async def delete(self, repository: str, caller: Caller, type: ReferenceType, name: str, expected: str | None) -> None:
        check_name(name)
        if name == await self.default_branch(repository, caller):
            raise bad_request(f"The default branch '{name}' cannot be deleted.")
        async with self.reading(repository, caller) as connection:
            occasion = self._occasion(repository, caller)
            events = await references.delete(connection, occasion, type, name, _needed(expected), self._told)
        self._tell(events, caller)

    async def commit(
        self,
        repository: str,
        caller: Caller,
        branch: str,
        expected: str | None,
        operations: Sequence[Operation],
        meta: Meta,
    ) -> str:
        """Returns the hash of the new commit."""
        check_name(branch)
        await self.default_branch(repository, caller)
        occasion = self._occasion(repository, caller)
        done = await commits.commit(self._pool, occasion, branch, _checked(expected), operations, meta, self._told)
        self._tell(done.events, caller)
        return done.commit.hash

    async def merge(self, repository: str, caller: Caller, branch: str, expected: str | None, wish: Wish) -> Result:
        check_name(branch)
        await self.default_branch(repository, caller)
        occasion = self._occasion(repository, caller)
        result = await merge(self._pool, occasion, branch, _checked(expected), wish, self._told)
        self._tell(result.events, caller)
        return result

    async def transplant(
        self, repository: str, caller: Caller, branch: str, expected: str | None, hashes: Sequence[str], wish: Wish
    ) -> Result:
        check_name(branch)
        await self.default_branch(repository, caller)
        occasion = self._occasion(repository, caller)
        wanted = [check_hash(each) for each in hashes]
        result = await transplant(self._pool, occasion, branch, _checked(expected), wanted, wish, self._told)
        self._tell(result.events, caller)
        return result

    async def head(self, repository: str, caller: Caller, name: str) -> tuple[ReferenceType, Point]:
        async with self.reading(repository, caller) as connection:
            ref = await find(connection, repository, check_name(name))
        return ref.type, ref.head

    @property
    def _told(self) -> bool:
        return self._settings.events

    def _occasion(self, repository: str, caller: Caller) -> Occasion:
        return Occasion(repository, self._sent_by, caller)

    def _tell(self, events: Sequence[CatalogEvent], caller: Caller) -> None:
        if events:
            self._publish(events, caller.trace)


def _checked(hash: str | None) -> str | None:
    return None if hash is None else check_hash(hash)


def _needed(expected: str | None) -> str:
    if expected is None:
        raise bad_request("expectedHash is missing: say which commit the reference is expected to be at.")
    return check_hash(expected)
