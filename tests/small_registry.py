"""A registry as small as one can be, in a table of its own: for `tidings reconcile --with small_registry:registry`."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession

from tidings.consumers import staging
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
    where excluded.sequencer is null or r.sequencer is null or r.sequencer < excluded.sequencer
"""


class Small(Registry):
    def __init__(self, url: str, versions: bool = True) -> None:
        self._url = url
        self.versions = self.markers = versions

    def known(self, spark: SparkSession, bucket: str) -> DataFrame:
        query = sql.SQL("select * from small_registry where not gone and bucket = {}").format(sql.Literal(bucket))
        return from_query(spark, query.as_string(None))

    def repair(self, events: Sequence[Event]) -> int:
        rows = [(e.bucket, e.key, e.version_id, e.etag, e.size, e.sequencer, e.event == "ObjectRemoved:Delete") for e in events]
        with psycopg.connect(self._url) as connection:
            staging.stage(connection, "staged", _COLUMNS, rows)
            return connection.execute(_MERGE).rowcount


def registry(settings: Settings) -> Registry:
    return Small(settings.database_url)


def newest_only(settings: Settings) -> Registry:
    return Small(settings.database_url, versions=False)
