"""How much of a history one call takes in: it is held in memory, and a tenant's history is as large as the tenant likes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, LiteralString

from psycopg import AsyncConnection

from tidings.catalog.errors import bad_request

MOST_COMMITS = 10_000
MOST_BYTES = 64 * 1024 * 1024

_SIZE: LiteralString = "select count(*), coalesce(sum(octet_length(c.operations)), 0)"
_PARTS: LiteralString = f"""
    {_SIZE} from unnest(%s::bigint[], %s::bigint[], %s::bigint[]) as p(line, after, upto)
    join catalog_commits c on c.line = p.line and c.number > p.after and c.number <= p.upto
"""
_NAMED: LiteralString = f"{_SIZE} from catalog_commits c where c.repository = %s and c.hash = any(%s)"


async def check_parts(connection: AsyncConnection[Any], parts: Iterable[tuple[int, int, int]]) -> None:
    """Raises where parts of lines (line, after, upto) are too much for one call."""
    lines = list(parts)
    if lines:
        await _check(connection, _PARTS, [list(each) for each in zip(*lines, strict=True)])


async def check_named(connection: AsyncConnection[Any], repository: str, hashes: Sequence[str]) -> None:
    await _check(connection, _NAMED, [repository, list(hashes)])


async def _check(connection: AsyncConnection[Any], statement: LiteralString, values: list[Any]) -> None:
    row = await (await connection.execute(statement, values)).fetchone()
    assert row is not None
    commits, size = row
    if commits > MOST_COMMITS or size > MOST_BYTES:
        raise bad_request(
            f"This takes in {commits:,} commits with {size:,} bytes of operations, and one call at most {MOST_COMMITS:,} with"
            f" {MOST_BYTES:,}: go in steps, by naming a commit in between."
        )
