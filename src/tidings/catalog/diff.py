"""How two points of the history differ: key by key, what one has and what the other has."""

from __future__ import annotations

from typing import Any, NamedTuple

from psycopg import AsyncConnection

from tidings.catalog.contents import changed, content_of, contents
from tidings.catalog.model import Content, Key
from tidings.catalog.points import Point


class Difference(NamedTuple):
    key: Key
    one: Content | None
    other: Content | None


async def diff(connection: AsyncConnection[Any], one: Point, other: Point) -> list[Difference]:
    """In the order of the keys. It costs what the commits cost that only one of the two has, not what both hold."""
    keys = await changed(connection, one, other)
    ours, theirs = await contents(connection, one, keys), await contents(connection, other, keys)
    found = [Difference(Key.stored(key), content_of(ours, key), content_of(theirs, key)) for key in keys]
    return [each for each in found if each.one != each.other]
