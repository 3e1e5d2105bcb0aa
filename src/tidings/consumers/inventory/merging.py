"""The one merge: rows in any order, any number of times, from one notification or from a million."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, LiteralString

import psycopg

from tidings.consumers.inventory.rules import Row
from tidings.consumers.staging import stage, stage_csv

COLUMNS: dict[str, LiteralString] = {
    "bucket": 'text collate "C"',
    "bucket_id": 'text collate "C"',
    "key": 'text collate "C"',
    "version_id": 'text collate "C"',
    "sequencer": 'text collate "C"',
    "event_type": "text",
    "delete_marker": "boolean",
    "tombstone": "boolean",
    "size": "bigint",
    "etag": "text",
    "content_type": "text",
    "event_at": "timestamptz",
}
"""As `Row` has them."""

_STAGED: LiteralString = "inventory_told"

# In the order of the primary key: two merges at the same time must not wait for each other in a circle.
_MERGE: LiteralString = f"""
insert into inventory as known (bucket, bucket_id, key, version_id, sequencer, event_type, delete_marker, tombstone, size, etag,
                                content_type, event_at)
select distinct on (bucket, bucket_id, key, version_id)
       bucket, bucket_id, key, version_id, sequencer, event_type, delete_marker, tombstone, size, etag, content_type, event_at
from pg_temp.{_STAGED}
order by bucket, bucket_id, key, version_id, sequencer desc
on conflict (bucket, bucket_id, key, version_id) do update
set sequencer = excluded.sequencer, event_type = excluded.event_type, delete_marker = excluded.delete_marker,
    tombstone = excluded.tombstone, size = excluded.size, etag = excluded.etag, content_type = excluded.content_type,
    event_at = excluded.event_at
where excluded.sequencer > known.sequencer
"""


def merge(connection: psycopg.Connection[Any], rows: Iterable[Row]) -> int:
    """In the caller's transaction; returns how many rows of the inventory are new or other than before."""
    stage(connection, _STAGED, COLUMNS, rows)
    return _merged(connection)


def merge_csv(connection: psycopg.Connection[Any], pieces: Iterable[bytes]) -> int:
    """The same for rows that were written as CSV where they were read."""
    stage_csv(connection, _STAGED, COLUMNS, pieces)
    return _merged(connection)


def _merged(connection: psycopg.Connection[Any]) -> int:
    connection.execute("set local work_mem = '64MB'")  # sorted in memory
    changed = connection.execute(_MERGE).rowcount
    connection.execute(f"drop table pg_temp.{_STAGED}")  # the caller may have more to merge in this transaction
    return changed
