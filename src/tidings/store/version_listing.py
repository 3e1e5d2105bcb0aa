"""All versions of a bucket's keys: keys in order, of each the newest version first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, NamedTuple

from tidings.db.pool import Pool, run
from tidings.errors import no_such_bucket
from tidings.store.listing import LAST
from tidings.store.model import Place
from tidings.store.objects import no_such_version


class ListedVersion(NamedTuple):
    """A version or a delete marker; `ordinal` counts the key's versions."""

    key: str
    version_id: str
    ordinal: int
    latest: bool
    delete_marker: bool
    size: int
    etag: str
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class VersionPage:
    """Versions and common prefixes as they come, and whether there are more behind them."""

    entries: Sequence[ListedVersion | str]
    more: bool


_AFTER_A_GROUP = 8
"""So many rows are read next: behind a group there is often another one, for which all but the first would be in vain."""
_COLUMNS: LiteralString = "key, version_id, ordinal, delete_marker, size, etag, modified_at"
# Behind (key, ordinal) means: the key's older versions, then the keys after it.
_BEHIND: LiteralString = (
    "bucket_id = b.id and key >= %(prefix)s and key <= %(end)s and (key > %(key)s or key = %(key)s and ordinal < %(ordinal)s)"
)
_PAGE: LiteralString = f"""
select x.key, x.version_id, x.ordinal, x.latest, x.delete_marker, x.size, x.etag, x.modified_at
from bucket_metainfos b join projects p on p.id = b.project_id
left join lateral (
    (select {_COLUMNS}, true as latest from heads where {_BEHIND} order by key limit %(most)s)
    union all
    (select {_COLUMNS}, false as latest from versions where {_BEHIND} order by key, ordinal desc limit %(most)s)
    order by key, ordinal desc limit %(most)s
) x on true
where p.public_id = %(project)s and b.name = %(bucket)s
order by x.key, x.ordinal desc
"""


async def page(
    pool: Pool, project: str, bucket: str, *, prefix: str, delimiter: str, key: str, ordinal: int | None, most: int
) -> VersionPage:
    """At most `most` entries behind a version of a key; without an ordinal, behind the whole key."""
    entries: list[ListedVersion | str] = []
    at = (key, ordinal if ordinal is not None else 0)
    wanted = most + 1
    while True:
        found = await _versions(pool, project, bucket, prefix, at, wanted)
        ended = len(found) < wanted
        wanted *= 4
        for each in found:
            group = _group(each.key, prefix, delimiter)
            entries.append(each if group is None else group)
            at = (each.key, each.ordinal) if group is None else (group + LAST, 0)
            if group is not None:
                ended, wanted = False, _AFTER_A_GROUP
                break
        if ended or len(entries) > most:
            return VersionPage(entries[:most], len(entries) > most > 0)
        wanted = min(wanted, most + 1 - len(entries))


def _group(key: str, prefix: str, delimiter: str) -> str | None:
    place = key.find(delimiter, len(prefix)) if delimiter else -1
    return None if place < 0 else key[: place + len(delimiter)]


async def _versions(pool: Pool, project: str, bucket: str, prefix: str, at: tuple[str, int], most: int) -> list[ListedVersion]:
    parameters = {
        "project": project,
        "bucket": bucket,
        "prefix": prefix,
        "end": prefix + LAST,
        "key": at[0],
        "ordinal": at[1],
        "most": most,
    }
    rows = await (await run(pool, _PAGE, parameters)).fetchall()
    if not rows:
        raise no_such_bucket(bucket)
    return [ListedVersion(*row) for row in rows if row[0] is not None]


def behind(key: str, delimiter: str, prefix: str) -> str:
    """Where a page goes on behind a key marker: a marker that is a common prefix stands for all keys under it."""
    return key + LAST if delimiter and key.endswith(delimiter) and _group(key, prefix, delimiter) == key else key


async def ordinal(pool: Pool, place: Place, version_id: str) -> int:
    """The number of a version within its key."""
    found = await run(
        pool,
        "select x.ordinal from bucket_metainfos b join projects p on p.id = b.project_id, lateral ("
        " select ordinal from heads where bucket_id = b.id and key = %(key)s and version_id = %(version_id)s union all"
        " select ordinal from versions where bucket_id = b.id and key = %(key)s and version_id = %(version_id)s) x"
        " where p.public_id = %(project)s and b.name = %(bucket)s",
        {"project": place.project, "bucket": place.bucket, "key": place.key, "version_id": version_id},
    )
    row = await found.fetchone()
    if row is None:
        raise no_such_version(place.key, version_id)
    number: int = row[0]
    return number
