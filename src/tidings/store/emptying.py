"""Emptying a bucket: every version of every key, each with its change. The operator's doing, not a caller's."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from tidings.db.pool import Pool
from tidings.rules.model import Eventing
from tidings.store import deletes, version_listing
from tidings.store.blobs import Blobs
from tidings.store.model import Origin, Place


async def empty(
    pool: Pool, blobs: Blobs, project: str, bucket: str, eventing: Eventing, progress: Callable[[int], None]
) -> int:
    """Returns how many keys there were; `progress` is told how many are gone."""
    origin = Origin("operator", "", uuid.uuid4().hex.upper()[:16], datetime.now(UTC), eventing)
    removed = 0
    while True:
        page = await version_listing.page(pool, project, bucket, prefix="", delimiter="", key="", ordinal=None, most=1000)
        keys = sorted({each.key for each in page.entries if not isinstance(each, str)})
        for key in keys:
            done = await deletes.delete_objects_all_versions(pool, Place(project, bucket, key), origin)
            for name in done.unused:
                await blobs.remove(name)
            removed += 1
            progress(removed)
        if not keys:
            return removed
