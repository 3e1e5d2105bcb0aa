"""A commit: operations on keys, on top of a branch's head.

In the common case two statements: one reads the head and what the keys have, the other writes, if the head is still the same.
Who finds it moved takes the lock of the branch first, and reads again: then nobody can come in between.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import AsyncConnection

from tidings.catalog import writing
from tidings.catalog.contents import Held, State, newest
from tidings.catalog.errors import bad_request, conflict, no_commit, no_reference
from tidings.catalog.events import Occasion
from tidings.catalog.hashes import BEGINNING
from tidings.catalog.model import MAX_META, Content, Delete, Meta, Operation, Put, compact
from tidings.catalog.points import Point, Ref, point
from tidings.catalog.writing import Change, NewCommit
from tidings.db.pool import Pool, borrowed, transaction
from tidings.events.catalog import CatalogEvent

_TRIES = 5
OPERATION = "catalog:commit"

# One row: the head, the numbers for a new commit, where the expected hash is, and the newest rows of the keys. These come as
# JSON: of an array PostgreSQL would count the elements, and plan the statement anew every time.
_READ: LiteralString = f"""
    select f.type, f.owned, f.hash, f.commit, coalesce(c.depth, 0), array_prepend(l.id, l.lines),
           array_prepend(f.commit, l.upto), l.reach,
           nextval('catalog_commit_numbers'), case when f.owned then f.line else nextval('catalog_line_numbers') end,
           e.line, e.number,
           (select json_agg(json_build_array(k.key, x.number, x.type, x.content_id, x.content))
            from json_array_elements_text(%(keys)s::json) as k(key) cross join lateral (
                {newest("array_prepend(l.id, l.lines[:l.reach - 1])", "array_prepend(f.commit, l.upto[:l.reach - 1])", "k.key")}
            ) x where f.line is not null)
    from catalog_references f
    left join catalog_lines l on l.id = f.line
    left join catalog_commits c on c.line = f.line and c.number = f.commit
    left join catalog_commits e on e.repository = f.repository and e.hash = %(expected)s
    where f.repository = %(repository)s and f.name = %(name)s
"""

_LOCK: LiteralString = "select from catalog_references where repository = %s and name = %s for update"


class Read(NamedTuple):
    """What a commit stands on."""

    ref: Ref
    number: int
    line: int
    since: int
    """The number of the expected commit: what was written later is somebody else's change."""
    state: State


class Committed(NamedTuple):
    commit: NewCommit
    events: Sequence[CatalogEvent]


async def commit(
    pool: Pool,
    occasion: Occasion,
    branch: str,
    expected: str | None,
    operations: Sequence[Operation],
    meta: Meta,
    told: bool = True,
) -> Committed:
    """Add a commit, or raise: a conflict names the keys."""
    keys = [operation.key.text for operation in operations]
    if len(set(keys)) != len(keys):
        twice = next(operation.key for operation in operations if keys.count(operation.key.text) > 1)
        raise bad_request(f"The key '{twice}' has several operations in one commit: send one for each key.")
    values = {"repository": occasion.repository, "name": branch, "expected": expected, "keys": compact(keys)}

    async def attempt(connection: AsyncConnection[Any], locked: bool) -> Committed | None:
        read = await _read(connection, values)
        if writing.copies(read.ref) and not locked:
            return None
        now = Occasion(occasion.repository, occasion.sent_by, occasion.caller)
        head = read.ref.head
        changes = changes_of(operations, read.state, read.since)
        made = NewCommit.made(read.number, (head.hash, head.depth), said(meta, now), changes)
        events = now.committed(branch, [made]) if told else []
        try:
            added = await writing.write(
                connection, now.repository, read.ref, read.line, [made], events, OPERATION, occasion.caller
            )
        except (
            psycopg.errors.UniqueViolation
        ):  # the same commit was made elsewhere at the same moment: a later one has another hash
            return None
        return Committed(made, events) if added else None

    async with borrowed(pool) as connection:
        done = await attempt(connection, locked=False)
    for _ in range(_TRIES if done is None else 0):
        async with transaction(pool) as connection:
            await connection.execute(_LOCK, [occasion.repository, branch])
            done = await attempt(connection, locked=True)
            if done is None:
                raise psycopg.Rollback
        if done is not None:
            break
    if done is None:
        raise conflict([f"Branch '{branch}' is changed too often: try again"])
    return done


async def _read(connection: AsyncConnection[Any], values: Mapping[str, Any]) -> Read:
    row = await (await connection.execute(_READ, values)).fetchone()
    if row is None:
        raise no_reference(values["name"])
    kind, owned, *head = row[:8]
    number, line, expected_line, expected_number, found = row[8:]
    ref = Ref(values["name"], kind, point(*head), owned)
    check_branch(ref)
    since = _since(ref, values["expected"], expected_line, expected_number)
    return Read(ref, number, line, since, {row[0]: Held.of(*row[1:]) for row in found or ()})


def check_branch(ref: Ref) -> None:
    if ref.type != "BRANCH":
        raise bad_request(f"'{ref.name}' is a tag: only a branch can have new commits.")


def _since(ref: Ref, expected: str | None, line: int | None, number: int | None) -> int:
    head = ref.head
    if expected is None or expected == head.hash:
        return head.number
    if expected == BEGINNING:
        return 0
    if line is None or number is None or not head.has(Point(expected, number, 0, (line,), (number,), 1)):
        raise no_commit(expected, ref.name)
    return number


def changes_of(operations: Sequence[Operation], state: State, since: int) -> list[Change]:
    """What the operations do to what is there, or a conflict that names every key that has one."""
    changes: list[Change] = []
    problems: list[str] = []
    for operation in operations:
        held = state.get(operation.key.text)
        if held is not None and held.number > since:
            problems.append(f"Key '{operation.key}' was changed since the expected hash")
            continue
        found = None if held is None else held.content
        problem = _problem(operation, found)
        if problem:
            problems.append(problem)
        elif isinstance(operation, Put):
            content = Content.of(operation.content, found.id if found else str(uuid.uuid4()))
            changes.append(Change.stores(operation.key, content))
        elif isinstance(operation, Delete) and found is not None:
            changes.append(Change.removes(operation.key, found))
    if problems:
        raise conflict(problems)
    return changes


def _problem(operation: Operation, found: Content | None) -> str | None:
    key = operation.key
    if isinstance(operation, Delete):
        return f"Key '{key}' does not exist" if found is None else None
    if not isinstance(operation, Put):
        return None
    if operation.expected is not None and (found is None or compact(operation.expected) != found.text):
        return f"Key '{key}' does not have the expected content"
    if found is None:
        return None
    given = operation.content.get("id")
    if given is None:
        return f"Key '{key}' already exists: to change it, send its content id, '{found.id}'"
    if given != found.id:
        return f"Key '{key}' has the content id '{found.id}', not '{given}': to replace it, delete it first"
    if operation.content.get("type") != found.type:
        return f"Key '{key}' is of type {found.type}: to make it another, delete it first"
    return None


def said(meta: Meta, occasion: Occasion) -> dict[str, Any]:
    """What is stored of a commit's words, and hashed."""
    size = len(meta.message) + len(meta.author or "") + len(meta.signed_off_by or "") + len(compact(dict(meta.properties)))
    if size > MAX_META:
        raise bad_request(f"Message, author and properties of a commit have at most {MAX_META} characters; these have {size}.")
    return {
        "message": meta.message,
        "author": occasion.caller.name if meta.author is None else meta.author,
        "committer": occasion.caller.name,
        "signedOffBy": meta.signed_off_by,
        "commitTime": occasion.time,
        "authorTime": meta.author_time or occasion.time,
        "properties": dict(meta.properties),
    }
