"""What keys have at a point of the history.

The newest row of a key in a line, at or before a commit, is one step in the primary key; a point has `MOST_LINES` lines to look
in at most. So a lookup costs the same however long the history is, and a listing a lookup for each key that was ever there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, LiteralString, NamedTuple

from psycopg import AsyncConnection

from tidings.catalog import limits
from tidings.catalog.model import Content, Key
from tidings.catalog.points import IN_PARTS, Point, parameters


class Held(NamedTuple):
    """A key's newest row: the commit that wrote it, and what it stored; None if it removed the key. Both types are known."""

    number: int
    type: str
    id: str
    content: Content | None

    @classmethod
    def of(cls, number: int, type: str, id: str, text: str | None) -> Held:
        return cls(number, type, id, None if text is None else Content(type, id, text))


State = Mapping[str, Held]
"""By the key as it is stored. A key that was never there is not in it."""


def newest(lines: LiteralString, upto: LiteralString, key: LiteralString) -> LiteralString:
    """A relation with the newest row of a key: `lines` and `upto` are arrays."""
    return f"""
    select c.number, c.type, c.content_id, c.content
    from unnest({lines}, {upto}) as p(line, upto)
    cross join lateral (
        select number, type, content_id, content from catalog_contents
        where line = p.line and key = {key} and number <= p.upto order by number desc limit 1
    ) c
    order by c.number desc limit 1
    """


_AT: LiteralString = f"""
    select k.key, x.number, x.type, x.content_id, x.content from unnest(%(keys)s::text[]) as k(key)
    cross join lateral ({newest("%(lines)s::bigint[]", "%(upto)s::bigint[]", "k.key")}) x
"""

_SIZE: LiteralString = f"select coalesce(sum(octet_length(at.content)), 0) from ({_AT}) at"

_NEXT: LiteralString = """
    select min(n.key) from unnest(%(lines)s::bigint[], %(upto)s::bigint[]) as p(line, upto) cross join lateral (
        select key from catalog_contents where line = p.line and key > {after} and number <= p.upto order by key limit 1) n
"""

LISTED: LiteralString = f"""
    with recursive keys as (
        select ({_NEXT.replace("{after}", "%(after)s")}) as key
        union all
        select ({_NEXT.replace("{after}", "keys.key")}) from keys where keys.key is not null
    )
    select keys.key, x.number, x.type, x.content_id, x.content from keys
    cross join lateral ({newest("%(lines)s::bigint[]", "%(upto)s::bigint[]", "keys.key")}) x
    where keys.key is not null
"""
"""Every key after one, in order. PostgreSQL takes the next step only when the next row is wanted."""

_CHANGED: LiteralString = f"select distinct k.key from {IN_PARTS} cross join lateral unnest(c.keys) as k(key) limit %s"


def places(of: Point) -> dict[str, Any]:
    """The parameters that say where to look."""
    return {"lines": list(of.lines[: of.reach]), "upto": list(of.upto[: of.reach])}


async def contents(connection: AsyncConnection[Any], of: Point, keys: Iterable[str]) -> State:
    wanted = list(keys)
    if not wanted or not of.lines:
        return {}
    values = {"keys": wanted, **places(of)}
    if len(wanted) > limits.FEW_KEYS:
        row = await (await connection.execute(_SIZE, values)).fetchone()
        assert row is not None
        limits.check_bytes(row[0])
    rows = await (await connection.execute(_AT, values)).fetchall()
    return {row[0]: Held.of(*row[1:]) for row in rows}


async def listed(connection: AsyncConnection[Any], of: Point, after: str, most: int) -> list[tuple[Key, Content]]:
    """Up to so many contents, in the order of their keys, from after a key on."""
    if not of.lines:
        return []
    statement = LISTED + " and x.content is not null limit %(most)s"
    rows = await (await connection.execute(statement, {"after": after, "most": most, **places(of)})).fetchall()
    return [(Key.stored(row[0]), Content(row[2], row[3], row[4])) for row in rows]


async def changed(connection: AsyncConnection[Any], one: Point, other: Point) -> list[str]:
    """The keys that may differ between two points: those that commits have changed that only one of the two has."""
    parts = list(one.apart(other))
    if not parts:
        return []
    rows = await (await connection.execute(_CHANGED, [*parameters(parts), limits.MOST_KEYS + 1])).fetchall()
    limits.check_keys(len(rows))
    return sorted(row[0] for row in rows)


def content_of(state: State, key: str) -> Content | None:
    held = state.get(key)
    return None if held is None else held.content
