"""The keys of a bucket in order, with everything behind a delimiter rolled up.

With a delimiter the database walks from group to group, one look into the index for each: a group of a million keys
costs as much as a group of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tidings.db.pool import Pool, run
from tidings.errors import no_such_bucket

LAST = "\U0010ffff" * 256
"""What follows any key with a given prefix: the last character there is, as often as fits into a key's 1,024 bytes."""


class Entry(NamedTuple):
    """An object; or, where `size` is None, a common prefix."""

    name: str
    size: int | None
    etag: str
    modified_at: datetime


def behind(name: str, *, is_prefix: bool) -> str:
    """The value of `after` that goes on behind an entry: for a common prefix, behind every key under it."""
    return name + LAST if is_prefix else name


@dataclass(frozen=True, slots=True)
class Page:
    """`more` says that there are entries behind these; `behind` of the last one is where they start."""

    entries: Sequence[Entry]
    more: bool


# A bucket without a match still yields one row of nulls: an empty page is not a missing bucket.
_PLAIN = """
select h.key, h.size, h.etag, h.modified_at
from bucket_metainfos b join projects p on p.id = b.project_id
left join lateral (
    select key, size, etag, modified_at from heads
    where bucket_id = b.id and key > %(after)s and key >= %(prefix)s and key <= %(end)s and not delete_marker
    order by key limit %(most)s
) h on true
where p.public_id = %(project)s and b.name = %(bucket)s
order by h.key
"""

_GROUPED = """
with recursive b as (
    select b.id from bucket_metainfos b join projects p on p.id = b.project_id
    where p.public_id = %(project)s and b.name = %(bucket)s
),
walk as (
    select 0 as n, %(after)s::text collate "C" as after, null::text collate "C" as name, null::bigint as size,
           null::text as etag, null::timestamptz as modified_at
    from b
    union all
    select walk.n + 1, coalesce(g.prefix || %(last)s, h.key), coalesce(g.prefix, h.key),
           case when g.prefix is null then h.size end, h.etag, h.modified_at
    from walk, b
    cross join lateral (
        select key, size, etag, modified_at from heads
        where bucket_id = b.id and key > walk.after and key >= %(prefix)s and key <= %(end)s and not delete_marker
        order by key limit 1
    ) h
    cross join lateral (  -- null if the delimiter does not come after the prefix
        select left(h.key, %(skip)s::int + length(%(delimiter)s) - 1
                           + nullif(strpos(substr(h.key, %(skip)s::int + 1), %(delimiter)s), 0)) as prefix
    ) g
    where walk.n < %(most)s::int
)
select name, size, etag, modified_at from walk order by n
"""


async def page(
    pool: Pool, project: str, bucket: str, *, prefix: str = "", delimiter: str = "", after: str = "", most: int = 1000
) -> Page:
    """At most `most` entries behind `after`."""
    parameters = {
        "project": project,
        "bucket": bucket,
        "prefix": prefix,
        "end": prefix + LAST,
        "after": after,
        "most": most + 1,  # one more, to know whether there is more
        "delimiter": delimiter,
        "skip": len(prefix),
        "last": LAST,
    }
    rows = await (await run(pool, _GROUPED if delimiter else _PLAIN, parameters)).fetchall()
    if not rows:
        raise no_such_bucket(bucket)
    found = [Entry(*row) for row in rows if row[0] is not None]
    return Page(found[:most], len(found) > most > 0)
