"""Access keys: which project a signed request speaks for, and the secret that it must be signed with."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tidings.access import api_keys
from tidings.access.macaroons import BadKey, Macaroon
from tidings.access.permissions import FIRST_ACTIONS, Grant
from tidings.db.pool import Pool

_NO_ROOT = secrets.token_bytes(32)
"""In place of the root of a key that is not known. Nobody has it, so no tail fits it."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request: an access key, the public id of its project, and what the API key behind it allows.

    Who came with the API key itself has nothing to sign with, and the access key that stands for it or for what it was made of.
    """

    access_key_id: str
    secret: str = field(repr=False)
    project: str
    grant: Grant
    roles: tuple[str, ...] = ()
    """For who filters the catalog's events."""


def create_key(connection: psycopg.Connection[Any], public_id: str) -> tuple[str, str]:
    """A new key that may do everything in its project: (access key id, secret)."""
    made = api_keys.create(connection, public_id)
    return made.access_key_id, made.secret


async def find_key(connection: psycopg.AsyncConnection[Any], access_key_id: str) -> Principal | None:
    """The key, unless it, or one that it was made of, was revoked."""
    cursor = await connection.execute(
        "select k.secret_access_key, p.public_id, k.api_key, a.secret, a.actions"
        " from access_keys k join projects p on p.id = k.project_id left join api_keys a on a.head = k.head"
        " where k.access_key_id = %s",
        [access_key_id],
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    secret, project, api_key, root, actions = row
    if api_key is None:  # older than API keys
        return Principal(access_key_id, secret, project, Grant(frozenset(FIRST_ACTIONS)))
    try:
        grant = await _grant(connection, Macaroon.parse(api_key), root, actions)
    except BadKey:
        return None
    return None if grant is None else Principal(access_key_id, secret, project, grant)


async def find_by_api_key(connection: psycopg.AsyncConnection[Any], text: str) -> Principal | None:
    """The key itself, as whoever holds it sends it; perhaps one that was narrowed elsewhere and that no access key stands for.

    A key that is not known takes the same two questions as one that was altered or revoked: how long the answer takes does
    not tell them apart.
    """
    try:
        key = Macaroon.parse(text)
        cursor = await connection.execute(
            "select a.secret, a.actions, a.roles, p.public_id, (select k.access_key_id from access_keys k where k.head = a.head"
            " order by k.api_key = %s desc, k.created_at limit 1)"
            " from api_keys a join projects p on p.id = a.project_id where a.head = %s",
            [text, key.head],
        )
        root, actions, roles, project, access_key_id = await cursor.fetchone() or (_NO_ROOT, [], [], None, None)
        grant = await _grant(connection, key, root, actions)
    except BadKey:
        return None
    return None if grant is None or project is None else Principal(access_key_id or "", "", project, grant, tuple(roles))


async def _grant(connection: psycopg.AsyncConnection[Any], key: Macaroon, root: bytes, actions: list[str]) -> Grant | None:
    """What a key allows; None if it was not made with this root, or was revoked, or one that it was made of."""
    grant = Grant(frozenset(actions), key.limits())
    revoked = await connection.execute("select from revoked_tails where tail = any(%s)", [key.tails(root)])
    return grant if key.is_genuine(root) and not revoked.rowcount else None


_Find = Callable[[psycopg.AsyncConnection[Any], str], Awaitable[Principal | None]]


class KeyCache:
    """The keys that requests came with lately. A key that was deleted goes on working for `seconds` at most.

    Only keys that exist are kept, so a new key works at once, and nobody can fill the cache with inventions.
    """

    def __init__(
        self, pool: Pool, seconds: float = 5.0, most: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = pool
        self._seconds = seconds
        self._most = most
        self._clock = clock
        self._known: dict[str, tuple[float, Principal]] = {}

    async def find(self, access_key_id: str) -> Principal | None:
        return await self._cached(access_key_id, find_key)

    async def find_by_api_key(self, text: str) -> Principal | None:
        """No API key looks like an access key's id, so both are in one cache."""
        return await self._cached(text, find_by_api_key)

    async def _cached(self, text: str, find: _Find) -> Principal | None:
        known = self._known.get(text)
        if known is not None and self._clock() < known[0]:
            return known[1]
        async with self._pool.connection() as connection:
            principal = await find(connection, text)
        self._known.pop(text, None)
        if principal is not None:
            if len(self._known) >= self._most:
                self._known.pop(next(iter(self._known)))  # the one that was read longest ago
            self._known[text] = (self._clock() + self._seconds, principal)
        return principal
