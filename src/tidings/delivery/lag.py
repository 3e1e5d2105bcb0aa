"""How the lanes stand, in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection


@dataclass(frozen=True, slots=True)
class Lag:
    by_state: dict[str, int]
    oldest_behind_seconds: float
    """Since the lane that is behind for longest fell behind; 0 if none is."""


async def lag(connection: AsyncConnection[Any]) -> Lag:
    cursor = await connection.execute(
        "select state, count(*), extract(epoch from max(now() - since))::float8 from lanes group by state"
    )
    rows = await cursor.fetchall()
    states = ("live", "behind", "ready", "backfill", "paused", "closed")
    counts = dict.fromkeys(states, 0) | {state: number for state, number, _ in rows}
    return Lag(counts, next((seconds for state, _, seconds in rows if state == "behind"), 0.0))
