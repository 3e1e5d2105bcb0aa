"""The commits that lead to a point, the newest first."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, LiteralString, NamedTuple

from psycopg import AsyncConnection

from tidings.catalog import limits
from tidings.catalog.points import IN_PARTS, Point, parameters

_BATCH = 250


class Entry(NamedTuple):
    """A commit as it is stored: `meta` and `operations` are JSON."""

    line: int
    number: int
    depth: int
    hash: str
    parents: list[str]
    meta: str
    operations: str

    @property
    def commit_meta(self) -> dict[str, Any]:
        return {**json.loads(self.meta), "hash": self.hash}


COLUMNS: LiteralString = "c.line, c.number, c.depth, c.hash, c.parents, c.meta, c.operations"

# Every line has a commit at least, so no more lines are looked into than commits are wanted.
_PAGE: LiteralString = f"""
    select {COLUMNS} from unnest((%(lines)s::bigint[])[:%(most)s], (%(upto)s::bigint[])[:%(most)s]) as p(line, upto)
    cross join lateral (
        select * from catalog_commits where line = p.line and number <= p.upto and number > %(after)s order by number desc
        limit %(most)s
    ) c
    order by c.number desc limit %(most)s
"""


async def entries(connection: AsyncConnection[Any], start: Point, after: int = 0) -> AsyncIterator[Entry]:
    """From a point back to the commit with the number `after`, which is not among them."""
    limits = [(line, upto) for line, upto in zip(start.lines, start.upto, strict=True) if upto > after]
    while limits:
        values = {"lines": [line for line, _ in limits], "upto": [upto for _, upto in limits], "most": _BATCH, "after": after}
        rows = await (await connection.execute(_PAGE, values)).fetchall()
        for row in rows:
            yield Entry(*row)
        if len(rows) < _BATCH:
            return
        last = rows[-1][1]
        # Along the lines numbers go down: what is nearer than the last one has been seen.
        limits = [(line, min(upto, last - 1)) for line, upto in limits if line == rows[-1][0] or upto < last]


async def between(connection: AsyncConnection[Any], parts: list[tuple[int, int, int]]) -> list[Entry]:
    """The commits in parts of lines (line, after, upto), the oldest first."""
    if not parts:
        return []
    values = parameters(parts)
    await limits.check_commits(connection, IN_PARTS, values)
    rows = await (await connection.execute(f"select {COLUMNS} from {IN_PARTS} order by c.number", values)).fetchall()
    return [Entry(*row) for row in rows]
