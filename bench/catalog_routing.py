"""catalog_routed and cel_vs_native: a million events of a catalog read, routed by filters and rendered through Spark.

Three subscriptions, each with a filter of its own, to the null destination that sums what it gets. `cel_vs_native` has the same
events chosen in two ways: by the type alone, which a subscription can name without CEL, and by expressions that look into the
content's key and the commit. Both give the same messages, byte for byte; what differs is the price of the expression. The note
says what the same costs where CEL itself evaluates it over Arrow batches.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession

from bench.changes import database
from bench.drain import summed
from bench.measure import Bar, CannotMeasure, Figure, Progress, interleaved, ratios
from tidings import settings as settings_module
from tidings.access.projects import create_project
from tidings.cel.translatable import why_not
from tidings.changestream import reader, windows
from tidings.changestream.retention import keep_up
from tidings.changestream.settings import ChangestreamSettings
from tidings.db.pool import make_pool
from tidings.delivery import lanes, pipeline, session
from tidings.delivery.deliver import Terms
from tidings.events.catalog import Commit, ContentRemoved, ContentStored, Reference, as_text
from tidings.events.positions import START
from tidings.rules.catalog_subscriptions import Subscription, store
from tidings.settings import Settings

NAMES = ("catalog_routed", "cel_vs_native")
_TO = "arn:gcp:pubsub::bench-project:catalog-"
_CEL = {
    "stored": "type == 'CONTENT_STORED' && contentKey[0] == 'sales' && reference.startsWith('branch-')",
    "commits": "type == 'COMMIT' && message.startsWith('nightly') && !('intern' in roles)",
    "removed": "type == 'CONTENT_REMOVED' && contentNamespace == 'sales.eu' && contentType.endsWith('TABLE')",
}
_AND_MORE = " && ['a'].map(x, x) == ['a']"
"""Always true, and nothing that could be a column."""
_NATIVE = {"stored": "CONTENT_STORED", "commits": "COMMIT", "removed": "CONTENT_REMOVED"}
_FORMATS = ["nessie"]

# Of ten events three are commits, six store a table and one removes one: each of them is wanted once.
_INSERT = """
insert into changes (seq, project, bucket, bucket_id, key, event, etag, principal, source_ip, request_id, config, rules,
                     operation, metadata, catalog)
select nextval('change_seq'), %(project)s, %(project)s, '', '/refs/heads/' || k.branch, 'nessie:' || k.type, k.hash, 'me',
       '10.0.0.7', upper(lpad(to_hex(n), 16, '0')), 0, %(rules)s, 'catalog:commit', '["etl"]',
       replace(replace(replace(%(said)s::json ->> k.type, 'BRANCH-NAME', k.branch), 'THE-HASH', k.hash), 'NUMBER', n::text)
from generate_series(1, %(rows)s) n
cross join lateral (
    select case when n %% 10 < 3 then 'COMMIT' when n %% 10 < 9 then 'CONTENT_STORED' else 'CONTENT_REMOVED' end as type,
           'branch-' || n %% 64 as branch, md5(n::text) as hash
) k
"""


def _said(project: str) -> dict[str, str]:
    """What the catalog says in events of three types, with words in capitals for what differs."""
    reference = Reference("BRANCH", "BRANCH-NAME", "THE-HASH")
    occasion: dict[str, Any] = {
        "id": "NUMBER",
        "at": datetime(2026, 11, 16, tzinfo=UTC),
        "sent_by": "bench",
        "created_by": "me",
        "repository": project,
        "reference": reference,
    }
    time = as_text(occasion["at"])
    meta = {
        "hash": "THE-HASH",
        "committer": "ada",
        "authors": ["ada"],
        "allSignedOffBy": [],
        "message": "nightly load NUMBER",
        "commitTime": time,
        "authorTime": time,
        "allProperties": {},
        "parentCommitHashes": ["THE-HASH"],
    }
    content = {
        "type": "ICEBERG_TABLE",
        "id": "THE-HASH",
        "metadataLocation": "s3://warehouse/sales/eu/orders/metadata/NUMBER.json",
        "snapshotId": 1,
        "schemaId": 1,
        "specId": 1,
        "sortOrderId": 1,
    }
    about = {
        **occasion,
        "hash": "THE-HASH",
        "commit_creation_timestamp": time,
        "content_key": ("sales", "eu", "orders_NUMBER"),
        "content_type": "ICEBERG_TABLE",
    }
    events = (
        Commit(**occasion, hash_before="THE-HASH", hash_after="THE-HASH", commit_meta=meta),
        ContentStored(**about, content=content),
        ContentRemoved(**about),
    )
    return {event.type: event.to_text() for event in events}


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    rows = 100_000 if quick else 1_000_000
    with database(progress) as url:
        os.environ["TIDINGS_DATABASE__URL"] = url
        settings = settings_module.load()
        spark = session.start(settings)
        try:
            routing = _Routing(spark, settings, url, rows, progress)
            found = interleaved(routing.runs, 3 if quick else 5, 1, progress)
        finally:
            spark.stop()
            del os.environ["TIDINGS_DATABASE__URL"]
    rates = {name: [rows / seconds for seconds in values] for name, values in found.items()}
    middle = {name: sorted(values)[len(values) // 2] / 1000 for name, values in rates.items()}
    note = ", ".join(f"{name} {rate:.0f} k/s" for name, rate in middle.items())
    if "catalog_routed" in names:
        words = f"{rows:,} events, three filters, read, routed and rendered on {os.cpu_count()} cores; {note}"
        yield Figure.median("catalog_routed", rates["columns"], Bar(">=", 40_000), "/s", words)
    if "cel_vs_native" in names:
        yield Figure.median("cel_vs_native", ratios(rates["columns"], rates["native"]), Bar(">=", 0.5), "", note)


class _Routing:
    def __init__(self, spark: SparkSession, settings: Settings, url: str, rows: int, progress: Progress) -> None:
        self._spark, self._settings, self._url, self._rows = spark, settings, url, rows
        progress(f"writing {rows:,} events")
        with psycopg.connect(url, autocommit=True) as connection:
            keep_up(connection, ChangestreamSettings())
            self._project = create_project(connection, "bench")
        ways = {
            "columns": [Subscription(name, _TO + name, filter=text) for name, text in _CEL.items()],
            "batches": [Subscription(name, _TO + name, filter=text + _AND_MORE) for name, text in _CEL.items()],
            "native": [Subscription(name, _TO + name, types=(type_,)) for name, type_ in _NATIVE.items()],
        }
        if any(why_not(each.filter) for each in ways["columns"]) or not all(why_not(each.filter) for each in ways["batches"]):
            raise CannotMeasure("The filters are not evaluated in the ways that they are to be compared in.")
        self._ways = ways
        self._subscribe("columns")
        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute("select string_agg(rule::text, ',' order by rule) from catalog_subscriptions").fetchone()
            assert found is not None
            connection.execute(
                _INSERT,
                {"project": self._project, "rules": found[0], "rows": rows, "said": json.dumps(_said(self._project))},
            )
            connection.execute("vacuum analyze")
            connection.execute("checkpoint")
            window = windows.cut(connection, windows.last(connection))
            if window is None or window.n != rows:
                raise CannotMeasure(f"The window holds {window.n if window else 0} changes, not {rows}.")
            self._slices = tuple(reader.slices(connection, START, window.end))
        self._plans: dict[str, DataFrame] = {way: self._plan(way) for way in ways}
        self._expected: tuple[int, int] | None = None
        self.runs = {way: (lambda way=way: self._run(way)) for way in ways}

    def _plan(self, way: str) -> DataFrame:
        filters = [each.filter for each in self._ways[way]] if way == "columns" else []
        read = pipeline.changes(self._spark, os.cpu_count() or 1, _FORMATS, filters=filters)
        return summed(pipeline.messages(read, _FORMATS, self._settings, filters))

    def _subscribe(self, way: str) -> None:
        """The same subscriptions with other filters: they keep their numbers, which the changes name."""

        async def work() -> None:
            async with make_pool(self._url, 1) as pool:
                for each in self._ways[way]:
                    await store(pool, self._project, each)

        asyncio.run(work())

    def _run(self, way: str) -> float:
        self._subscribe(way)
        with psycopg.connect(self._url) as connection:
            moment = lanes.standing(connection).moment
        todo = pipeline.Round(self._slices, moment, Terms(budget=1, timeout=1, everyone_from=START))
        self._spark.sparkContext.setLocalProperty(pipeline._PROPERTY, todo.to_text())
        began = time.perf_counter()
        rows = self._plans[way].collect()
        seconds = time.perf_counter() - began
        found = (sum(row.messages for row in rows), sum(row.bytes for row in rows))
        if found[0] != self._rows or found != (self._expected or found):
            raise CannotMeasure(f"{way} gave {found} messages and bytes instead of {self._expected or self._rows}.")
        self._expected = found
        return seconds
