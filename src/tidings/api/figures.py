"""Who may read the figures of the API's processes, and what the database adds to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container
from ipaddress import ip_address

import psycopg
from prometheus_client.core import Metric

from tidings import metrics
from tidings.db.pool import Pool
from tidings.delivery.lag import lag
from tidings.rules.counted import configurations

HIDDEN = "not shown here: TIDINGS_API__METRICS says to whom\n"
_WAIT_SECONDS = 2.0
_KEPT_SECONDS = 5.0
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


def may_read(shown_to: str, client: str, headers: Container[str]) -> bool:
    """Whether a client at this address may read them. What a proxy on this machine passes on comes from elsewhere."""
    if shown_to != "loopback":
        return shown_to == "open"
    return _is_loopback(client) and not any(name in headers for name in _FORWARDED)


def _is_loopback(client: str) -> bool:
    try:
        address = ip_address(client)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


class ApiFigures:
    """For `/-/metrics`. Whoever asks again and again gets what the database said a moment ago."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._one_asks = asyncio.Lock()
        self._gauges: list[Metric] = []
        self._old_at = 0.0

    async def shown(self) -> bytes:
        """The counts are ours and always there; what only the database knows is left out while it does not answer."""
        async with self._one_asks:
            if time.monotonic() >= self._old_at:
                self._gauges = await self._read()
                self._old_at = time.monotonic() + _KEPT_SECONDS
        return metrics.exposition(self._gauges)

    async def _read(self) -> list[Metric]:
        try:
            async with asyncio.timeout(_WAIT_SECONDS), self._pool.connection(_WAIT_SECONDS) as connection:
                lanes = await lag(connection)
                return metrics.of_database(await configurations(connection), lanes.by_state, lanes.oldest_behind_seconds)
        except (psycopg.Error, TimeoutError):
            return []
