"""How many rules there are."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection


async def configurations(connection: AsyncConnection[Any]) -> int:
    """The number of active notification configurations, of all projects together (seed 000, "Observability")."""
    cursor = await connection.execute("select count(*) from bucket_eventing_configs")
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])
