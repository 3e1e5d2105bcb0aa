"""Who makes a request, by the credential that it carries: an access key that signed it, or an API key.

The two kinds of proof never meet. An access key is looked up by its id, which everybody may know, and counts only when a
signature made with its secret was verified. An API key proves itself: it is genuine or it is not. A `Principal` holds no
secret, so the result of one proof cannot be taken for the input of the other, and each kind has a cache of its own.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import psycopg

from tidings.access import api_keys
from tidings.access.api_keys import ROOT, SECRET, TAIL
from tidings.access.macaroons import BadKey, Macaroon
from tidings.access.permissions import FIRST_ACTIONS, Grant
from tidings.db.pool import Pool
from tidings.secrets import keyring as keyrings
from tidings.secrets.keyring import Keyring

_NO_ROOT = secrets.token_bytes(32)
"""In place of the root of a key that is not known. Nobody has it, so no tail fits it."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request: an access key id, the public id of its project, and what the API key behind it allows.

    With an API key as its credential, the id is that of the access key that stands for it, or for the key it was made of.
    """

    access_key_id: str
    project: str
    grant: Grant
    roles: tuple[str, ...] = ()
    """For who filters the catalog's events."""


@dataclass(frozen=True, slots=True)
class AccessKey:
    """What a signature is verified against. The principal counts only after that."""

    principal: Principal
    secret: str = field(repr=False)
    read_at: float = field(default=0.0, compare=False)
    """When it was read from the database: a cache may keep it only so long from then on."""


def create_key(connection: psycopg.Connection[Any], public_id: str) -> tuple[str, str]:
    """A new key that may do everything in its project: (access key id, secret)."""
    made = api_keys.create(connection, public_id)
    return made.access_key_id, made.secret


async def find_key(connection: psycopg.AsyncConnection[Any], access_key_id: str, keyring: Keyring) -> AccessKey | None:
    """The key, not yet proven by a signature, unless it, or one that it was made of, was revoked."""
    cursor = await connection.execute(
        "select k.sealed_secret, p.public_id, k.head, k.caveats, k.sealed_tail, a.sealed_root, a.actions"
        " from access_keys k join projects p on p.id = k.project_id left join api_keys a on a.head = k.head"
        " where k.access_key_id = %s and k.revoked_at is null",
        [access_key_id],
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    sealed, project, head, caveats, sealed_tail, sealed_root, actions = row
    secret = (await keyring.open_async(connection, SECRET, access_key_id, sealed)).decode()
    if head is None:  # older than API keys
        return AccessKey(Principal(access_key_id, project, Grant(frozenset(FIRST_ACTIONS))), secret)
    tail = await keyring.open_async(connection, TAIL, access_key_id, sealed_tail)
    root = await keyring.open_async(connection, ROOT, head, sealed_root)
    try:
        grant = await _grant(connection, Macaroon(head, tuple(caveats), tail), root, actions)
    except BadKey:
        return None
    return None if grant is None else AccessKey(Principal(access_key_id, project, grant), secret)


async def find_by_api_key(connection: psycopg.AsyncConnection[Any], text: str, keyring: Keyring) -> Principal | None:
    """The key itself, as whoever holds it sends it; perhaps one that was narrowed elsewhere and that no access key stands for.

    A key that is not known takes the same two questions as one that was altered or revoked: how long the answer takes does
    not tell them apart.
    """
    try:
        key = Macaroon.parse(text)
        cursor = await connection.execute(
            "select a.sealed_root, a.actions, a.roles, p.public_id, (select k.access_key_id from access_keys k"
            # the narrowest that this key is, or was made of
            " where k.head = a.head order by k.caveats = (%s::bytea[])[:cardinality(k.caveats)] desc,"
            " cardinality(k.caveats) desc, k.created_at limit 1)"
            " from api_keys a join projects p on p.id = a.project_id where a.head = %s",
            [list(key.caveats), key.head],
        )
        sealed_root, actions, roles, project, access_key_id = await cursor.fetchone() or (None, [], [], None, None)
        root = _NO_ROOT
        if sealed_root is not None:
            root = await keyring.open_async(connection, ROOT, key.head, sealed_root)
        grant = await _grant(connection, key, root, actions)
    except BadKey:
        return None
    return None if grant is None or project is None else Principal(access_key_id or "", project, grant, tuple(roles))


async def _grant(connection: psycopg.AsyncConnection[Any], key: Macaroon, root: bytes, actions: list[str]) -> Grant | None:
    """What a key allows; None if it was not made with this root, or was revoked, or one that it was made of."""
    grant = Grant(frozenset(actions), key.limits())
    revoked = await connection.execute("select from revoked_tails where tail = any(%s)", [api_keys.hashed(key.tails(root))])
    return grant if key.is_genuine(root) and not revoked.rowcount else None


T = TypeVar("T")


class KeyCache:
    """The keys that were proven lately. A key that was revoked goes on working for `seconds` at most.

    `find` gives an access key to verify a signature with; whoever has verified it calls `keep`. Nothing is kept before: a
    request that anybody can make leaves no trace here, and nobody can fill the caches with ids that they only know.
    """

    def __init__(
        self,
        pool: Pool,
        seconds: float = 5.0,
        most: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
        keyring: Keyring | None = None,
    ) -> None:
        self._pool = pool
        self.keyring = keyring or keyrings.of_process()
        self._clock = clock
        self._access_keys = _Recent[AccessKey](seconds, most)
        self._api_keys = _Recent[Principal](seconds, most)

    async def find(self, access_key_id: str) -> AccessKey | None:
        """The access key of this id, whose holder has proven nothing yet."""
        now = self._clock()
        if (kept := self._access_keys.get(access_key_id, now)) is not None:
            return kept
        async with self._pool.connection() as connection:
            found = await find_key(connection, access_key_id, self.keyring)
        return None if found is None else replace(found, read_at=now)

    async def renewed(self, key: AccessKey) -> AccessKey | None:
        """The key as it is now, if it was read so long ago that it may have been revoked since."""
        if self._access_keys.is_recent(key.read_at, self._clock()):
            return key
        return await self.find(key.principal.access_key_id)

    def keep(self, key: AccessKey) -> None:
        """Call it when a signature made with this key's secret was verified."""
        self._access_keys.put(key.principal.access_key_id, key, key.read_at)

    async def find_by_api_key(self, text: str) -> Principal | None:
        """Who holds this API key; None if it is not genuine, or was revoked."""
        now = self._clock()
        if (kept := self._api_keys.get(text, now)) is not None:
            return kept
        async with self._pool.connection() as connection:
            principal = await find_by_api_key(connection, text, self.keyring)
        if principal is not None:
            self._api_keys.put(text, principal, now)
        return principal


class _Recent(Generic[T]):
    """Values by text, each until `seconds` after it was read; `most` at a time."""

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._values: dict[str, tuple[float, T]] = {}

    def get(self, text: str, now: float) -> T | None:
        read_at, value = self._values.get(text, (0.0, None))
        if value is None or self.is_recent(read_at, now):
            return value
        del self._values[text]
        return None

    def is_recent(self, read_at: float, now: float) -> bool:
        return now - read_at < self._seconds

    def put(self, text: str, value: T, read_at: float) -> None:
        if text not in self._values and len(self._values) >= self._most:
            self._values.pop(next(iter(self._values)))  # the one that came first
        self._values[text] = read_at, value

    def __len__(self) -> int:
        return len(self._values)
