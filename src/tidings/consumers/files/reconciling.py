"""The file registry's side of `tidings reconcile`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession

from tidings.consumers.bucket_listing import Listing
from tidings.consumers.files import registry as merging
from tidings.consumers.files.asking import asked
from tidings.consumers.files.notification import CREATED, DIGITS, MARKED, REMOVED, Record
from tidings.consumers.files.objects import Objects
from tidings.consumers.files.paths import classify
from tidings.consumers.files.refusals import Invalid, Refusal
from tidings.consumers.files.staged import Row, row
from tidings.consumers.reconcile import Event, Registry, from_query
from tidings.db.connecting import noticing
from tidings.events import names
from tidings.settings import Settings

_log = logging.getLogger("tidings.files")
_THREADS = 16
_KINDS = {names.PUT: CREATED, names.MARKER: MARKED, names.DELETE: REMOVED}
_NULL = "null"

_KNOWN = """
select key, coalesce(version_id, 'null') as version_id, etag, size_bytes as size, false as delete_marker,
       is_latest as latest, sequencer, false as gone
from hat.files where bucket = {bucket}
union all
select key, coalesce(version_id, 'null'), null, null, true, null, sequencer, not is_marker
from hat.removals where bucket = {bucket}
"""

# A version that is as it should be is only put in its place.
_PLACE: LiteralString = """
update {table} f set sequencer = t.sequencer
from unnest(%(keys)s::text[], %(versions)s::text[], %(sequencers)s::text[]) as t (key, version_id, sequencer)
where f.bucket = %(bucket)s and f.key = t.key and coalesce(f.version_id, 'null') = t.version_id and f.sequencer < t.sequencer
"""

# Then which one is the latest is another question again. Never are there two: the one that is not goes first.
_LATEST: tuple[LiteralString, ...] = (
    """
    update hat.files f set is_latest = false, updated_at = now()
    where f.bucket = %(bucket)s and f.key = any(%(keys)s) and f.is_latest and (
        exists (select from hat.files o where o.bucket = f.bucket and o.key = f.key and o.sequencer > f.sequencer)
        or exists (select from hat.removals m where m.is_marker and m.bucket = f.bucket and m.key = f.key
                   and m.sequencer > f.sequencer))
    """,
    """
    update hat.files f set is_latest = true, updated_at = now()
    where f.bucket = %(bucket)s and f.key = any(%(keys)s) and not f.is_latest
      and not exists (select from hat.files o where o.bucket = f.bucket and o.key = f.key and o.sequencer > f.sequencer)
      and not exists (select from hat.removals m where m.is_marker and m.bucket = f.bucket and m.key = f.key
                      and m.sequencer > f.sequencer)
    """,
)


class FileRegistry(Registry):
    versions = True
    markers = True

    def __init__(self, settings: Settings) -> None:
        self._url = noticing(settings.database_url)
        self._awaits = settings.files.missing_sha256 == "await"
        self._objects = Objects(settings.files)

    def known(self, spark: SparkSession, listing: Listing) -> DataFrame:
        return from_query(spark, sql.SQL(_KNOWN).format(bucket=sql.Literal(listing.bucket)).as_string(None))

    def wanted(self, held: DataFrame) -> DataFrame:
        return held.mapInArrow(_of_files, held.schema)

    def repair(self, events: Sequence[Event]) -> int:
        """What the rules or the merge refuse is logged, and stays as it is."""
        with ThreadPoolExecutor(_THREADS) as threads:
            rows = [row for row in threads.map(self._row, [event for event in events if not event.is_right]) if row]
        with psycopg.connect(self._url, application_name="tidings-reconcile") as connection:
            merging.hold(connection, [(event.bucket, event.key) for event in events])
            _place(connection, [event for event in events if event.is_right])
            merged = merging.merge_rows(connection, rows)
            keys = {"bucket": events[0].bucket, "keys": list({event.key for event in events})}
            for statement in _LATEST:
                connection.execute(statement, keys)
        for refusal in merged.refusals:
            _log.warning("not repaired: %s", refusal)
        changed = sum(merged.operations[operation] for operation in ("inserted", "updated", "removed"))
        return changed + sum(event.finding == "misplaced" for event in events)

    def _row(self, event: Event) -> Row | None:
        record = _record(event)
        try:
            return row(record, asked(self._objects, record) if record.kind == CREATED else None, self._awaits)
        except Refusal as refusal:
            _log.warning("not repaired: %s", refusal)
            return None


def _of_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pa.array([_is_file(key) for key in batch.column("key").to_pylist()], pa.bool_()))


def _is_file(key: str) -> bool:
    """Anything may be in the bucket; what is no file was refused when it came."""
    try:
        classify(key)
    except Invalid:
        return False
    return True


def _record(event: Event) -> Record:
    at = event.at or datetime.now(UTC)
    return Record(
        _KINDS[event.event],
        event.bucket,
        event.key,
        None if event.version_id == _NULL else event.version_id,
        _padded(event.sequencer),
        event.etag,
        event.size,
        f"Reconciled:{event.finding}",
        at.isoformat(),
        None,
    )


def _padded(sequencer: str) -> str:
    """As all are here: see notification.py. What the registry itself has seen is so already; nothing at all is the lowest."""
    before, _, number = sequencer.rpartition(".")
    return f"{before and before.zfill(DIGITS)}.{number}"


def _place(connection: psycopg.Connection[Any], events: Sequence[Event]) -> None:
    if not events:
        return
    values = {
        "bucket": events[0].bucket,
        "keys": [event.key for event in events],
        "versions": [event.version_id for event in events],
        "sequencers": [_padded(event.sequencer) for event in events],
    }
    for table in ("files", "removals"):
        connection.execute(sql.SQL(_PLACE).format(table=sql.Identifier("hat", table)), values)


def registry(settings: Settings) -> Registry:
    return FileRegistry(settings)
