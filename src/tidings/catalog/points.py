"""A place in the history: a commit, and the lines that lead to it.

Whether a commit comes after another, how far two have gone apart, which rows a key can be in: all of it is seen from two points
alone, without walking through the history. See `catalog_lines` in the migration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, LiteralString, NamedTuple

from psycopg import AsyncConnection

from tidings.catalog.errors import CatalogError, bad_request, no_commit, no_reference
from tidings.catalog.hashes import BEGINNING
from tidings.catalog.model import DETACHED, check_hash, check_name
from tidings.events.catalog import ReferenceType

MOST_LINES = 16
"""In which contents are looked for. A line that would have more before it begins with a copy of what is there."""


@dataclass(frozen=True, slots=True)
class Point:
    """`lines` are those of the commit and of what came before it, the nearest first, each up to the commit `upto`.

    Along them the numbers of commits go down, so the order of two commits of one history is that of their numbers.
    """

    hash: str
    number: int
    depth: int
    lines: tuple[int, ...]
    upto: tuple[int, ...]
    reach: int
    """In how many of the lines contents are looked for."""

    @property
    def line(self) -> int | None:
        return self.lines[0] if self.lines else None

    def limits(self) -> dict[int, int]:
        return dict(zip(self.lines, self.upto, strict=True))

    def has(self, other: Point) -> bool:
        """Whether the other is this one, or came before it in the same history."""
        return other.line is None or self.limits().get(other.line, 0) >= other.number

    def fork(self, other: Point) -> tuple[int, int]:
        """Where the two histories part, leaving merges aside: the line and number of the last commit that both have."""
        limits = other.limits()
        for line, upto in zip(self.lines, self.upto, strict=True):
            if line in limits:
                return line, min(upto, limits[line])
        return 0, 0

    def apart(self, other: Point) -> Iterator[tuple[int, int, int]]:
        """The parts of lines that only one of the two has: (line, after, upto)."""
        ours, theirs = self.limits(), other.limits()
        for line in {*ours, *theirs}:
            low, high = sorted((ours.get(line, 0), theirs.get(line, 0)))
            if low < high:
                yield line, low, high


ROOT = Point(BEGINNING, 0, 0, (), (), 0)

IN_PARTS: LiteralString = """
    unnest(%s::bigint[], %s::bigint[], %s::bigint[]) as p(line, after, upto)
    join catalog_commits c on c.line = p.line and c.number > p.after and c.number <= p.upto
"""
"""A relation: the commits in parts of lines, which are its parameters."""


def parameters(parts: Iterable[tuple[int, int, int]]) -> list[list[int]]:
    return [list(each) for each in zip(*parts, strict=True)]


class Ref(NamedTuple):
    """A named reference, its head, and whether its next commit goes on with the head's line."""

    name: str
    type: ReferenceType
    head: Point
    owned: bool


_REFERENCE: LiteralString = """
    select f.type, f.owned, f.hash, f.commit, coalesce(c.depth, 0), array_prepend(l.id, l.lines),
           array_prepend(f.commit, l.upto), l.reach
    from catalog_references f
    left join catalog_lines l on l.id = f.line
    left join catalog_commits c on c.line = f.line and c.number = f.commit
    where f.repository = %s and f.name = %s
"""

_COMMIT: LiteralString = """
    select c.hash, c.number, c.depth, array_prepend(l.id, l.lines), array_prepend(c.number, l.upto), l.reach
    from catalog_commits c join catalog_lines l on l.id = c.line
    where c.repository = %s and c.hash = %s
"""


def point(hash: str, number: int, depth: int, lines: list[int] | None, upto: list[int] | None, reach: int | None) -> Point:
    """From the columns of a row; a reference at the beginning has no line."""
    if not number:
        return ROOT
    return Point(hash, number, depth, tuple(lines or ()), tuple(upto or ()), reach or 0)


async def find(connection: AsyncConnection[Any], repository: str, name: str) -> Ref:
    """The reference with this name."""
    row = await (await connection.execute(_REFERENCE, [repository, name])).fetchone()
    if row is None:
        raise no_reference(name)
    return Ref(name, row[0], point(*row[2:]), row[1])


async def lock(connection: AsyncConnection[Any], repository: str, name: str) -> Ref:
    """The same, and nobody else changes it until the transaction ends."""
    statement = "select from catalog_references where repository = %s and name = %s for update"
    await connection.execute(statement, [repository, name])
    return await find(connection, repository, name)


async def at(connection: AsyncConnection[Any], repository: str, hash: str) -> Point:
    """The commit with this hash, wherever it is."""
    if hash == BEGINNING:
        return ROOT
    row = await (await connection.execute(_COMMIT, [repository, hash])).fetchone()
    if row is None:
        raise no_commit(hash)
    return point(*row)


async def resolve(connection: AsyncConnection[Any], repository: str, name: str, hash: str | None) -> Point:
    """What a caller means by a reference and perhaps a hash on it, or by a hash alone."""
    if name == DETACHED:
        if hash is None:
            raise bad_request(f"{DETACHED} needs a hash: say which commit is meant.")
        return await at(connection, repository, check_hash(hash))
    ref = await find(connection, repository, check_name(name))
    return ref.head if hash is None else await on(connection, repository, ref, check_hash(hash))


async def on(connection: AsyncConnection[Any], repository: str, ref: Ref, hash: str) -> Point:
    """A commit in the history of a reference."""
    if hash == ref.head.hash:
        return ref.head
    try:
        found = await at(connection, repository, hash)
    except CatalogError:
        raise no_commit(hash, ref.name) from None
    if not ref.head.has(found):
        raise no_commit(hash, ref.name)
    return found
