"""Branches and tags: made, assigned to another commit, deleted, listed. Each change is one statement, with its event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString, NamedTuple

from psycopg import AsyncConnection

from tidings.catalog import appending
from tidings.catalog.errors import bad_request, exists, moved
from tidings.catalog.events import Occasion
from tidings.catalog.points import Point, Ref, find, point
from tidings.events.catalog import CatalogEvent, Reference, ReferenceType

_BEGUN: LiteralString = f"""
    with b as (
        insert into catalog_repositories (name, default_branch) values (%(repository)s, %(name)s)
        on conflict do nothing returning true
    ), r as (
        insert into catalog_references (repository, name, type, hash, commit)
        select %(repository)s, %(name)s, 'BRANCH', %(hash)s, 0 from b returning true
    ), e as ({appending.appended("r")})
    select from r
"""

_CREATED: LiteralString = f"""
    with r as (
        insert into catalog_references (repository, name, type, hash, commit, line)
        values (%(repository)s, %(name)s, %(type)s, %(hash)s, %(number)s, %(line)s) on conflict do nothing returning true
    ), e as ({appending.appended("r")})
    select from r
"""

_ASSIGNED: LiteralString = f"""
    with r as (
        update catalog_references set hash = %(hash)s, commit = %(number)s, line = %(line)s, owned = false
        where repository = %(repository)s and name = %(name)s and hash = %(hash_before)s and type = %(type)s returning true
    ), e as ({appending.appended("r")})
    select from r
"""

_DELETED: LiteralString = f"""
    with r as (
        delete from catalog_references
        where repository = %(repository)s and name = %(name)s and hash = %(hash_before)s and type = %(type)s returning true
    ), e as ({appending.appended("r")})
    select from r
"""

_LISTED: LiteralString = """
    select f.name, f.type, f.owned, f.hash, f.commit, coalesce(c.depth, 0), array_prepend(l.id, l.lines),
           array_prepend(f.commit, l.upto), l.reach, c.meta
    from catalog_references f
    left join catalog_lines l on l.id = f.line
    left join catalog_commits c on c.line = f.line and c.number = f.commit
    where f.repository = %s and f.name > %s order by f.name limit %s
"""


class Shown(NamedTuple):
    ref: Ref
    meta: str | None
    """What its newest commit says, as JSON; None at the beginning."""


async def begin(
    connection: AsyncConnection[Any], occasion: Occasion, branch: str, hash: str, told: bool
) -> Sequence[CatalogEvent] | None:
    """Make the repository with its first branch, unless it is there: then None. Of two at once, one makes it."""
    events = occasion.created(Reference("BRANCH", branch, hash)) if told else []
    values = appending.parameters(occasion.repository, "catalog:begin", events, occasion.caller)
    made = await connection.execute(_BEGUN, {**values, "name": branch, "hash": hash})
    return events if made.rowcount else None


async def create(
    connection: AsyncConnection[Any], occasion: Occasion, name: str, type: ReferenceType, at: Point, told: bool
) -> Sequence[CatalogEvent]:
    events = occasion.created(Reference(type, name, at.hash)) if told else []
    values = appending.parameters(occasion.repository, "catalog:create", events, occasion.caller)
    where = {"name": name, "type": type, "hash": at.hash, "number": at.number, "line": at.line}
    if not (await connection.execute(_CREATED, values | where)).rowcount:
        raise exists(name)
    return events


async def assign(
    connection: AsyncConnection[Any], occasion: Occasion, type: ReferenceType, name: str, expected: str, to: Point, told: bool
) -> Sequence[CatalogEvent]:
    """Make the reference name another commit. To assign it to where it is changes nothing."""
    ref = await _checked(connection, occasion.repository, name, type, expected)
    if to.hash == ref.head.hash:
        return []
    events = occasion.updated(Reference(type, name, to.hash), expected) if told else []
    values = appending.parameters(occasion.repository, "catalog:assign", events, occasion.caller)
    where = {"name": name, "type": type, "hash_before": expected, "hash": to.hash, "number": to.number, "line": to.line}
    if not (await connection.execute(_ASSIGNED, values | where)).rowcount:
        await _checked(connection, occasion.repository, name, type, expected)
        raise moved(name, expected, "another one")
    return events


async def delete(
    connection: AsyncConnection[Any], occasion: Occasion, type: ReferenceType, name: str, expected: str, told: bool
) -> Sequence[CatalogEvent]:
    await _checked(connection, occasion.repository, name, type, expected)
    events = occasion.deleted(Reference(type, name, expected)) if told else []
    values = appending.parameters(occasion.repository, "catalog:delete", events, occasion.caller)
    if not (await connection.execute(_DELETED, values | {"name": name, "type": type, "hash_before": expected})).rowcount:
        await _checked(connection, occasion.repository, name, type, expected)
        raise moved(name, expected, "another one")
    return events


async def _checked(connection: AsyncConnection[Any], repository: str, name: str, type: ReferenceType, expected: str) -> Ref:
    ref = await find(connection, repository, name)
    if ref.type != type:
        raise bad_request(f"'{name}' is a {ref.type.lower()}, not a {type.lower()}.")
    if ref.head.hash != expected:
        raise moved(name, expected, ref.head.hash)
    return ref


async def listed(connection: AsyncConnection[Any], repository: str, after: str, most: int) -> list[Shown]:
    """In the order of their names."""
    rows = await (await connection.execute(_LISTED, [repository, after, most])).fetchall()
    return [Shown(Ref(row[0], row[1], point(*row[3:9]), row[2]), row[9]) for row in rows]
