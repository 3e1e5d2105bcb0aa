"""Sums over the inventory: how many objects there are and how much they hold, by bucket, prefix, content type or day."""

from __future__ import annotations

from typing import Any, Literal, LiteralString, get_args

import psycopg
from psycopg.rows import dict_row

By = Literal["bucket", "prefix", "type", "day"]
BY: tuple[By, ...] = get_args(By)

_GROUPS: dict[By, LiteralString] = {
    "bucket": "",
    "prefix": r", substring(key from '^(?:[^/]*/){0,%(depth)s}') as prefix",
    "type": ", content_type as type",
    "day": ", (event_at at time zone 'utc')::date as day",
}

# What a reader sees are the objects; all versions that are kept take up room.
_SUMS: LiteralString = """
       count(*) filter (where is_latest and not delete_marker) as objects,
       coalesce(sum(size) filter (where is_latest and not delete_marker), 0)::bigint as bytes,
       count(*) filter (where not delete_marker) as versions,
       coalesce(sum(size), 0)::bigint as version_bytes,
       count(*) filter (where delete_marker) as delete_markers
"""


def rollup(connection: psycopg.Connection[Any], by: By, depth: int = 1, bucket: str | None = None) -> list[dict[str, Any]]:
    """A row for each group, in each bucket. `depth` is how many folders deep prefixes go."""
    group = _GROUPS[by].replace("%(depth)s", str(int(depth)))
    name = f", {by}" if by != "bucket" else ""
    statement = f"""
select bucket, bucket_id{name}, {_SUMS}
from (select bucket, bucket_id, size, is_latest, delete_marker{group} from inventory_versions
      where %(bucket)s::text is null or bucket = %(bucket)s) v
group by bucket, bucket_id{name} order by bucket, bucket_id{name}
"""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement.encode(), {"bucket": bucket}).fetchall()
