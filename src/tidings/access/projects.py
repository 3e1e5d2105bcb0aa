"""Projects own buckets. The private id never leaves the database; the rest of the world knows the public one."""

from __future__ import annotations

from typing import Any

import psycopg

from tidings.errors import OperatorError


def create_project(connection: psycopg.Connection[Any], name: str, path_encryption: bool = False) -> str:
    """A new project; returns its public id. With path encryption its keys are not readable here: it has no eventing."""
    row = connection.execute(
        "insert into projects (name, path_encryption) values (%s, %s) on conflict (name) do nothing returning public_id",
        [name, path_encryption],
    ).fetchone()
    if row is None:
        raise OperatorError(f"There is already a project called {name!r}: take another name, or add a key to that one.")
    public_id: str = row[0]
    return public_id


def find_project(connection: psycopg.Connection[Any], name: str) -> str | None:
    """The public id of the project with this name."""
    row = connection.execute("select public_id from projects where name = %s", [name]).fetchone()
    return None if row is None else str(row[0])
