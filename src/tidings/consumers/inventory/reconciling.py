"""The inventory's side of `tidings reconcile`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession

from tidings.consumers.bucket_listing import Listing
from tidings.consumers.inventory.merging import COLUMNS, merge
from tidings.consumers.inventory.rules import DELETE, MARKER, WRITE, Row
from tidings.consumers.reconcile import Event, Registry, from_query
from tidings.db.connecting import noticing
from tidings.events import names
from tidings.settings import Settings

_TYPES = {names.PUT: WRITE, names.MARKER: MARKER, names.DELETE: DELETE}

# Which version of a key is the latest is told by all of its rows: see the view inventory_versions.
_KNOWN = """
select key, version_id, etag, case when not delete_marker then size end as size, delete_marker,
       row_number() over (partition by bucket, bucket_id, key order by tombstone, sequencer desc) = 1 as latest,
       sequencer, tombstone as gone
from inventory where bucket = {bucket} and {id}
"""

_TOLD = """
select {columns} from inventory
join unnest(%(keys)s::text[], %(versions)s::text[]) as told (key, version_id) using (key, version_id)
where bucket = %(bucket)s and bucket_id = %(id)s and not tombstone
"""


class InventoryRegistry(Registry):
    versions = True
    markers = True

    def __init__(self, settings: Settings) -> None:
        self._url = noticing(settings.database_url)

    def known(self, spark: SparkSession, listing: Listing) -> DataFrame:
        of_id = sql.SQL("true") if listing.id is None else sql.SQL("bucket_id = {}").format(sql.Literal(listing.id))
        return from_query(spark, sql.SQL(_KNOWN).format(bucket=sql.Literal(listing.bucket), id=of_id).as_string(None))

    def repair(self, events: Sequence[Event]) -> int:
        """A version that is as it should be keeps what its own notification said; it is only put in its place."""
        with psycopg.connect(self._url, application_name="tidings-reconcile") as connection:
            # What is read here is not to change before it is told again. The consumer waits for the moment that it takes.
            connection.execute("lock table inventory in share row exclusive mode")
            bucket_id = events[0].bucket_id or _bucket_id(connection, events[0].bucket)
            rows = _told(connection, bucket_id, [event for event in events if event.is_right])
            rows += [_row(event, bucket_id) for event in events if not event.is_right]
            found = {(event.key, event.version_id) for event in events if event.finding is not None}
            merge(connection, [row for row in rows if (row.key, row.version_id) not in found])
            return merge(connection, [row for row in rows if (row.key, row.version_id) in found])


def _told(connection: psycopg.Connection[Any], bucket_id: str, events: Sequence[Event]) -> list[Row]:
    if not events:
        return []
    places = {(event.key, event.version_id): event.sequencer for event in events}
    names_ = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
    rows = connection.execute(
        sql.SQL(_TOLD).format(columns=names_),
        {
            "keys": [key for key, _ in places],
            "versions": [version for _, version in places],
            "bucket": events[0].bucket,
            "id": bucket_id,
        },
    )
    return [row._replace(sequencer=places[row.key, row.version_id]) for row in map(Row._make, rows)]


def _row(event: Event, bucket_id: str) -> Row:
    return Row(
        event.bucket,
        bucket_id,
        event.key,
        event.version_id,
        event.sequencer,
        _TYPES[event.event],
        delete_marker=event.event == names.MARKER,
        tombstone=event.event == names.DELETE,
        size=event.size or 0,
        etag=event.etag,
        content_type=None,  # no listing has it
        event_at=(event.at or datetime.now(UTC)).isoformat(),
    )


def _bucket_id(connection: psycopg.Connection[Any], bucket: str) -> str:
    """Of a bucket elsewhere: as its notifications have it; its name, if none has come."""
    row = connection.execute("select bucket_id from inventory where bucket = %s order by event_at desc limit 1", [bucket])
    found = row.fetchone()
    return found[0] if found else bucket


def registry(settings: Settings) -> Registry:
    return InventoryRegistry(settings)
