"""Access keys: which project a signed request speaks for, and the secret that it must be signed with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tidings.access import api_keys
from tidings.access.macaroons import BadKey, Macaroon
from tidings.access.permissions import ACTIONS, Grant
from tidings.db.pool import Pool


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request: an access key, the public id of its project, and what the API key behind it allows."""

    access_key_id: str
    secret: str = field(repr=False)
    project: str
    grant: Grant


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
        return Principal(access_key_id, secret, project, Grant(frozenset(ACTIONS)))
    try:
        key = Macaroon.parse(api_key)
        grant = Grant(frozenset(actions), key.limits())
    except BadKey:
        return None
    revoked = await connection.execute("select from revoked_tails where tail = any(%s)", [key.tails(root)])
    if not key.is_genuine(root) or revoked.rowcount:
        return None
    return Principal(access_key_id, secret, project, grant)


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
        known = self._known.get(access_key_id)
        if known is not None and self._clock() < known[0]:
            return known[1]
        async with self._pool.connection() as connection:
            principal = await find_key(connection, access_key_id)
        self._known.pop(access_key_id, None)
        if principal is not None:
            if len(self._known) >= self._most:
                self._known.pop(next(iter(self._known)))  # the one that was read longest ago
            self._known[access_key_id] = (self._clock() + self._seconds, principal)
        return principal
