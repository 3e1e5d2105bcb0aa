"""Projects own buckets. The private id never leaves the database; the rest of the world knows the public one."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

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


def find_project(connection: psycopg.Connection[Any], named: str) -> str | None:
    """The public id of the project with this name, or with this public id."""
    row = connection.execute(
        "select public_id from projects where %(named)s in (name, public_id) order by name = %(named)s desc", {"named": named}
    ).fetchone()
    return None if row is None else str(row[0])


def existing_project(connection: psycopg.Connection[Any], named: str) -> str:
    """The same, of one that must be there."""
    found = find_project(connection, named)
    if found is None:
        raise OperatorError(f"There is no project {named!r}: check its name.")
    return found


class Project(NamedTuple):
    public_id: str
    name: str
    path_encryption: bool
    created_at: datetime


def all_projects(connection: psycopg.Connection[Any]) -> list[Project]:
    rows = connection.execute("select public_id, name, path_encryption, created_at from projects order by name").fetchall()
    return [Project(*row) for row in rows]
