"""How much of a history one call takes in: it is held in memory, and a tenant's history is as large as the tenant likes.

Each is asked where the rows are read, just before; octet_length does not read what is stored apart from its row.
"""

from __future__ import annotations

from typing import Any, LiteralString

from psycopg import AsyncConnection

from tidings.catalog.errors import CatalogError, bad_request

MOST_COMMITS = 10_000
MOST_KEYS = 100_000
MOST_BYTES = 64 * 1024 * 1024
FEW_KEYS = 1000
"""Contents of so many keys are never more than that."""


async def check_commits(connection: AsyncConnection[Any], found: LiteralString, values: list[Any]) -> None:
    """Raises if `found`, what follows `select … from` for commits `c`, has too many of them, or too large ones."""
    size: LiteralString = "octet_length(c.operations) + octet_length(c.meta)"
    query: LiteralString = f"select count(*), coalesce(sum(s.size), 0) from (select {size} as size from {found} limit %s) s"
    row = await (await connection.execute(query, [*values, MOST_COMMITS + 1])).fetchone()
    assert row is not None
    if row[0] > MOST_COMMITS:
        raise _too_much(f"more than {MOST_COMMITS:,} commits")
    check_bytes(row[1])


def check_keys(number: int) -> None:
    if number > MOST_KEYS:
        raise _too_much(f"more than {MOST_KEYS:,} keys")


def check_bytes(size: int) -> None:
    if size > MOST_BYTES:
        raise _too_much(f"{size:,} bytes, and {MOST_BYTES:,} are the most")


def _too_much(what: str) -> CatalogError:
    return bad_request(f"This takes in {what} at once: go in steps, by naming a commit in between.")
