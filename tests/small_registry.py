"""A registry as small as one can be, in a table of its own: for `tidings reconcile --with small_registry:registry`."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession

from tidings.consumers import staging
from tidings.consumers.bucket_listing import Listing
from tidings.consumers.reconcile import Event, Registry, from_query
from tidings.settings import Settings

TABLE = """
create table small_registry (
    bucket text, key text, version_id text, etag text, size bigint, sequencer text, gone boolean not null default false,
    primary key (bucket, key, version_id))
"""
_COLUMNS = {
    "bucket": "text",
    "key": "text",
    "version_id": "text",
    "etag": "text",
    "size": "bigint",
    "sequencer": "text",
    "gone": "boolean",
}
_MERGE = """
insert into small_registry as r (bucket, key, version_id, etag, size, sequencer, gone)
select bucket, key, version_id, etag, size, sequencer, gone from staged
on conflict (bucket, key, version_id) do update
    set etag = excluded.etag, size = excluded.size, sequencer = excluded.sequencer, gone = excluded.gone
    where r.sequencer < excluded.sequencer collate "C"
"""


class Small(Registry):
    def __init__(self, url: str, versions: bool = True) -> None:
        self._url = url
        self.versions = self.markers = versions

    def known(self, spark: SparkSession, listing: Listing) -> DataFrame:
        query = sql.SQL("select *, null as delete_marker, null as latest from small_registry where bucket = {}")
        return from_query(spark, query.format(sql.Literal(listing.bucket)).as_string(None))

    def repair(self, events: Sequence[Event]) -> int:
        rows = [
            (e.bucket, e.key, e.version_id, e.etag, e.size, e.sequencer, e.event == "ObjectRemoved:Delete")
            for e in events
            if e.finding is not None
        ]
        with psycopg.connect(self._url) as connection:
            staging.stage(connection, "staged", _COLUMNS, rows)
            return connection.execute(_MERGE).rowcount


def registry(settings: Settings) -> Registry:
    return Small(settings.database_url)


def newest_only(settings: Settings) -> Registry:
    return Small(settings.database_url, versions=False)
