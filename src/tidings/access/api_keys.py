"""API keys in the database: making, narrowing, looking into, revoking. An access key for S3 stands for each."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from tidings.access.macaroons import BadKey, Caveat, Macaroon
from tidings.access.permissions import ACTIONS, FIRST_ACTIONS
from tidings.errors import OperatorError
from tidings.secrets import keyring
from tidings.secrets.keyring import SealedColumn

# The shape of AWS's own keys, which some clients check: "AKIA" and 16 characters of base32; 40 for the secret.
_ID_CHARACTERS = string.ascii_uppercase + "234567"
_SECRET_CHARACTERS = string.ascii_letters + string.digits + "+/"
_EVERYTHING = Caveat()
_ROLE = re.compile(r"[\w.:/@-]{1,100}")

SECRET = SealedColumn("access_keys", "sealed_secret", "access_key_id")
TAIL = SealedColumn("access_keys", "sealed_tail", "access_key_id")
ROOT = SealedColumn("api_keys", "sealed_root", "head")


class Access(NamedTuple):
    """A new key, in both forms. The secret is shown here and never again."""

    api_key: str
    access_key_id: str
    secret: str


class Known(NamedTuple):
    """What there is to know about a key. Without an API key it is from before there were any."""

    access_key_id: str | None
    project: str
    actions: list[str]
    caveats: list[Caveat]
    revoked: bool
    created_at: datetime
    roles: list[str]


def create(
    connection: psycopg.Connection[Any],
    public_id: str,
    actions: Iterable[str] = ACTIONS,
    limit: Caveat = _EVERYTHING,
    roles: Iterable[str] = (),
) -> Access:
    """A new key for a project, for these actions and within this limit. Roles allow nothing: the catalog's events tell them."""
    wanted, held = list(actions), list(roles)
    if wrong := [role for role in held if not _ROLE.fullmatch(role)]:
        raise OperatorError(f"{wrong[0][:100]!r} is not a role: use 1 to 100 letters, digits and . _ : / @ -.")
    if unknown := [action for action in wanted if action not in ACTIONS]:
        raise OperatorError(f"There is no action {unknown[0]!r}: there are {', '.join(ACTIONS)}.")
    root = secrets.token_bytes(32)
    key = Macaroon.new(root)
    with connection.transaction():
        made = connection.execute(
            "insert into api_keys (head, sealed_root, actions, roles, project_id)"
            " select %s, %s, %s, %s, id from projects where public_id = %s",
            [key.head, keyring.of_process().seal(connection, ROOT, key.head, root), wanted, held, public_id],
        )
        if made.rowcount != 1:
            raise OperatorError(f"There is no project {public_id!r}: create it first.")
        return _access(connection, key if limit == _EVERYTHING else key.restricted(limit))


def restrict(connection: psycopg.Connection[Any], text: str, limit: Caveat) -> Access:
    """A narrower key, made of one that is valid."""
    if inspect(connection, text).revoked:
        raise OperatorError("The key is revoked, or one that it was made of: what is made of it would be too.")
    with connection.transaction():
        return _access(connection, _api_key(connection, text).restricted(limit))


def _access(connection: psycopg.Connection[Any], key: Macaroon) -> Access:
    access_key_id = "AKIA" + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(16))
    secret = "".join(secrets.choice(_SECRET_CHARACTERS) for _ in range(40))
    ring = keyring.of_process()
    sealed = ring.seal(connection, SECRET, access_key_id, secret.encode())
    sealed_tail = ring.seal(connection, TAIL, access_key_id, key.tail)
    connection.execute(
        "insert into access_keys (access_key_id, sealed_secret, project_id, head, caveats, sealed_tail)"
        " select %s, %s, project_id, head, %s, %s from api_keys where head = %s",
        [access_key_id, sealed, list(key.caveats), sealed_tail, key.head],
    )
    return Access(str(key), access_key_id, secret)


def revoke(connection: psycopg.Connection[Any], text: str) -> None:
    """End a key, and all that were made of it. Processes that know it take up to five seconds to hear of it."""
    older = "update access_keys set revoked_at = coalesce(revoked_at, now()) where access_key_id = %s and head is null"
    if connection.execute(older, [text]).rowcount:
        return
    key = _api_key(connection, text)
    _row(connection, key)
    connection.execute("insert into revoked_tails (tail) values (%s) on conflict do nothing", hashed([key.tail]))


def inspect(connection: psycopg.Connection[Any], text: str) -> Known:
    key = _api_key(connection, text)
    root, actions, project, created_at, roles = _row(connection, key)
    tails = hashed(key.tails(root))
    found = connection.execute("select exists (select from revoked_tails where tail = any(%s))", [tails]).fetchone()
    assert found is not None
    access = connection.execute(
        "select access_key_id from access_keys where head = %s and caveats = %s::bytea[]", [key.head, list(key.caveats)]
    ).fetchone()
    return Known(access[0] if access else None, project, actions, key.limits(), found[0], created_at, roles)


def listed(connection: psycopg.Connection[Any], public_id: str) -> list[Known]:
    """Every access key of a project, the oldest first."""
    rows = connection.execute(
        "select k.access_key_id, k.head, k.created_at, k.revoked_at is not null"
        " from access_keys k join projects p on p.id = k.project_id"
        " where p.public_id = %s order by k.created_at, k.access_key_id",
        [public_id],
    ).fetchall()
    return [
        inspect(connection, access_key_id)
        if head
        else Known(access_key_id, public_id, list(FIRST_ACTIONS), [], revoked, created_at, [])
        for access_key_id, head, created_at, revoked in rows
    ]


def hashed(tails: Iterable[bytes]) -> list[bytes]:
    """As revoked ones are kept: who reads the table has no key."""
    return [hashlib.sha256(tail).digest() for tail in tails]


def _api_key(connection: psycopg.Connection[Any], text: str) -> Macaroon:
    """The API key that is meant: by itself, or by the access key id that stands for it."""
    if not text.startswith("AKIA"):
        return Macaroon.parse(text)
    row = connection.execute(
        "select head, caveats, sealed_tail from access_keys where access_key_id = %s and head is not null", [text]
    ).fetchone()
    if row is None:
        raise OperatorError(f"There is no API key behind the access key {text[:100]!r}: check it with `tidings access list`.")
    head, caveats, sealed_tail = row
    return Macaroon(head, tuple(caveats), keyring.of_process().open(connection, TAIL, text, sealed_tail))


def _row(connection: psycopg.Connection[Any], key: Macaroon) -> tuple[bytes, list[str], str, datetime, list[str]]:
    row = connection.execute(
        "select a.sealed_root, a.actions, p.public_id, a.created_at, a.roles"
        " from api_keys a join projects p on p.id = a.project_id where a.head = %s",
        [key.head],
    ).fetchone()
    root = keyring.of_process().open(connection, ROOT, key.head, row[0]) if row is not None else b""
    if row is None or not key.is_genuine(root):
        raise BadKey("The API key is not one of this installation, or was changed.")
    return root, row[1], row[2], row[3], row[4]
