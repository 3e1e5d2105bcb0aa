"""API keys in the database: making, narrowing, looking into, revoking. An access key for S3 stands for each."""

from __future__ import annotations

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

# The shape of AWS's own keys, which some clients check: "AKIA" and 16 characters of base32; 40 for the secret.
_ID_CHARACTERS = string.ascii_uppercase + "234567"
_SECRET_CHARACTERS = string.ascii_letters + string.digits + "+/"
_EVERYTHING = Caveat()
_ROLE = re.compile(r"[\w.:/@-]{1,100}")


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
    secret = secrets.token_bytes(32)
    key = Macaroon.new(secret)
    made = connection.execute(
        "insert into api_keys (head, secret, actions, roles, project_id)"
        " select %s, %s, %s, %s, id from projects where public_id = %s",
        [key.head, secret, wanted, held, public_id],
    )
    if made.rowcount != 1:
        raise OperatorError(f"There is no project {public_id!r}: create it first.")
    return _access(connection, key if limit == _EVERYTHING else key.restricted(limit))


def restrict(connection: psycopg.Connection[Any], text: str, limit: Caveat) -> Access:
    """A narrower key, made of one that is valid."""
    if inspect(connection, text).revoked:
        raise OperatorError("The key is revoked, or one that it was made of: what is made of it would be too.")
    return _access(connection, Macaroon.parse(_api_key(connection, text)).restricted(limit))


def _access(connection: psycopg.Connection[Any], key: Macaroon) -> Access:
    access_key_id = "AKIA" + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(16))
    secret = "".join(secrets.choice(_SECRET_CHARACTERS) for _ in range(40))
    connection.execute(
        "insert into access_keys (access_key_id, secret_access_key, project_id, head, api_key)"
        " select %s, %s, project_id, head, %s from api_keys where head = %s",
        [access_key_id, secret, str(key), key.head],
    )
    return Access(str(key), access_key_id, secret)


def revoke(connection: psycopg.Connection[Any], text: str) -> None:
    """End a key, and all that were made of it. Processes that know it take up to five seconds to hear of it."""
    key = Macaroon.parse(_api_key(connection, text))
    _row(connection, key)
    connection.execute("insert into revoked_tails (tail) values (%s) on conflict do nothing", [key.tail])


def inspect(connection: psycopg.Connection[Any], text: str) -> Known:
    key = Macaroon.parse(_api_key(connection, text))
    secret, actions, project, created_at, roles = _row(connection, key)
    found = connection.execute("select exists (select from revoked_tails where tail = any(%s))", [key.tails(secret)]).fetchone()
    assert found is not None
    access = connection.execute("select access_key_id from access_keys where api_key = %s", [str(key)]).fetchone()
    return Known(access[0] if access else None, project, actions, key.limits(), found[0], created_at, roles)


def listed(connection: psycopg.Connection[Any], public_id: str) -> list[Known]:
    """Every access key of a project, the oldest first."""
    rows = connection.execute(
        "select k.access_key_id, k.api_key, k.created_at from access_keys k join projects p on p.id = k.project_id"
        " where p.public_id = %s order by k.created_at, k.access_key_id",
        [public_id],
    ).fetchall()
    return [
        inspect(connection, api_key)
        if api_key
        else Known(access_key_id, public_id, list(FIRST_ACTIONS), [], False, created_at, [])
        for access_key_id, api_key, created_at in rows
    ]


def _api_key(connection: psycopg.Connection[Any], text: str) -> str:
    """The API key that is meant: by itself, or by the access key id that stands for it."""
    if not text.startswith("AKIA"):
        return text
    row = connection.execute("select api_key from access_keys where access_key_id = %s", [text]).fetchone()
    if row is None or row[0] is None:
        raise OperatorError(f"There is no API key behind the access key {text[:100]!r}: check it with `tidings access list`.")
    return str(row[0])


def _row(connection: psycopg.Connection[Any], key: Macaroon) -> tuple[bytes, list[str], str, datetime, list[str]]:
    row = connection.execute(
        "select a.secret, a.actions, p.public_id, a.created_at, a.roles from api_keys a join projects p on p.id = a.project_id"
        " where a.head = %s",
        [key.head],
    ).fetchone()
    if row is None or not key.is_genuine(row[0]):
        raise BadKey("The API key is not one of this installation, or was changed.")
    return row[0], row[1], row[2], row[3], row[4]
