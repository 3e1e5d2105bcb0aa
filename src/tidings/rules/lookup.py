"""Where a write looks for the rules of its bucket: in its own statement, or first in a cache that all processes share.

The steps are those of seed 000, "TransmitEvent Integration". The statement that writes an object decides, so nothing is
ever stale: what a cache says counts only where it is as new as the bucket's row. Where the rules cannot be read at all the
write goes on, its change is marked for the stream to decide on, and the error is logged.
"""

from __future__ import annotations

import json
import logging
from typing import Protocol

import psycopg

from tidings import metrics
from tidings.db.pool import Pool
from tidings.rules import table
from tidings.rules.model import Eventing
from tidings.rules.settings import BucketEventingSettings

log = logging.getLogger(__name__)


class Cache(Protocol):
    """See `tidings.rules.cache`. It never raises, and is never slow."""

    async def get(self, project: str, bucket: str) -> str | None: ...

    async def put(self, project: str, bucket: str, document: str) -> None: ...

    async def forget(self, project: str, bucket: str) -> bool: ...

    async def close(self) -> None: ...


def cache_for(settings: BucketEventingSettings) -> Cache | None:
    """The cache that the settings ask for, if any."""
    if settings.lookup != "redis":
        return None
    from tidings.rules.cache import RedisRules  # with its client, only where it is used

    return RedisRules(settings.redis_url.get_secret_value())


class Lookup:
    def __init__(self, settings: BucketEventingSettings, pool: Pool, cache: Cache | None = None) -> None:
        self._settings = settings
        self._pool = pool
        self._cache = cache
        self._plain = {
            recorded: Eventing(recorded, settings.dialect, "database" if recorded else "unread") for recorded in (True, False)
        }

    async def begin(self, project: str, bucket: str) -> Eventing:
        """At the start of an operation that will write."""
        known = self._plain[self._settings.enabled(project)]
        if not known.recorded:
            return known
        if self._cache is None:
            metrics.looked_up("database")
            return known
        cached = _sound(await self._cache.get(project, bucket))
        metrics.looked_up("database" if cached is None else "redis")
        if cached is None:
            cached = await self._fill(self._cache, project, bucket)
        return known if cached is None else known._replace(source="cache", cached=cached)

    async def _fill(self, cache: Cache, project: str, bucket: str) -> str | None:
        try:
            async with self._pool.connection() as connection:
                found = await table.snapshot(connection, project, bucket)
        except psycopg.Error:
            return None  # the write itself will meet the same error, and knows what to do
        if found is not None:
            await cache.put(project, bucket, found)
        return found

    async def forget(self, project: str, bucket: str) -> None:
        """After the rules of a bucket have changed."""
        if self._cache is not None and not await self._cache.forget(project, bucket):
            log.warning("the cache of rules did not forget a bucket that changed; its old rules do not count any more")


def _sound(document: str | None) -> str | None:
    """What the cache gave, if it is what `table.snapshot` makes. Anything else is no answer, and the database is asked."""
    if document is None:
        return None
    try:
        found = json.loads(document)
        whole = isinstance(found["bucket"], str) and type(found["config"]) is int
        whole = whole and all(type(rule["rule"]) is int and _texts(rule["events"]) for rule in found["rules"])
    except (ValueError, KeyError, TypeError):
        whole = False
    return document if whole else None


def _texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
