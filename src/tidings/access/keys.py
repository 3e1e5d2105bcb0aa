"""Access keys: which project a signed request speaks for, and the secret that it must be signed with."""

from __future__ import annotations

import secrets
import string
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tidings.db.pool import Pool
from tidings.errors import OperatorError

# The shape of AWS's own keys, which some clients check: "AKIA" and 16 characters of base32; 40 for the secret.
_ID_CHARACTERS = string.ascii_uppercase + "234567"
_SECRET_CHARACTERS = string.ascii_letters + string.digits + "+/"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request: an access key, and the public id of its project."""

    access_key_id: str
    secret: str = field(repr=False)
    project: str


def create_key(connection: psycopg.Connection[Any], public_id: str) -> tuple[str, str]:
    """A new key for a project: (access key id, secret). The secret is shown here and never again."""
    access_key_id = "AKIA" + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(16))
    secret = "".join(secrets.choice(_SECRET_CHARACTERS) for _ in range(40))
    made = connection.execute(
        "insert into access_keys (access_key_id, secret_access_key, project_id)"
        " select %s, %s, id from projects where public_id = %s",
        [access_key_id, secret, public_id],
    )
    if made.rowcount != 1:
        raise OperatorError(f"There is no project {public_id!r}: create it first.")
    return access_key_id, secret


async def find_key(connection: psycopg.AsyncConnection[Any], access_key_id: str) -> Principal | None:
    cursor = await connection.execute(
        "select k.access_key_id, k.secret_access_key, p.public_id"
        " from access_keys k join projects p on p.id = k.project_id where k.access_key_id = %s",
        [access_key_id],
    )
    row = await cursor.fetchone()
    return None if row is None else Principal(*row)


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
