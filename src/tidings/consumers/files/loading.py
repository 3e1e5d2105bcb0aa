"""Notifications by the million: Spark's workers read them by the rules of the webhook and copy them into tables beside the
registry, in parallel; then the webhook's own merge takes each of these tables, whole.

A table holds the keys of some stripes, so merges run side by side and never wait for each other. Each is a transaction of its
own: a load that ends half-way leaves whole versions behind, and the same load again does the rest and changes nothing else.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame

from tidings import settings as settings_module
from tidings.consumers.files import registry
from tidings.consumers.files.authorising import Allowed, allowed
from tidings.consumers.files.notification import Event, read_trusted
from tidings.consumers.files.refusals import Refusal
from tidings.consumers.files.staged import COLUMNS, Row, row
from tidings.consumers.rows_as_csv import as_csv
from tidings.db.connecting import noticing
from tidings.errors import OperatorError
from tidings.settings import Settings

Progress = Callable[[str], None]

PARTS = 8
"""Tables that a load is spread over; their number divides that of the stripes. A merge of one holds its stripes."""
_AT_ONCE = 20_000
"""Rows that a worker holds before it copies them."""
_MOST_WORDS = 20
_LOCK = 0x66696C6C  # "fill": one load at a time
_MERGERS = 4
_WORK_MEM = "96MB"
_READ = "notifications long, records long, refused long, words array<string>"


@dataclass(frozen=True, slots=True)
class Loaded:
    """`refused` counts notifications that the rules refuse, and versions that the registry does; `words` has some reasons."""

    notifications: int
    records: int
    refused: int
    operations: Counter[str]
    words: tuple[str, ...]
    seconds: tuple[float, float]
    """Of reading and copying, and of merging."""


def load(notifications: DataFrame, settings: Settings, progress: Progress = lambda _: None) -> Loaded:
    """Merge a column of notifications, as text: S3 events, or SNS messages with one in them.

    Whoever loads vouches for them: no signature is looked at, and no id is remembered. Buckets must be allowed as ever. The
    store is not asked for a SHA-256 that a notification does not have: it is refused or awaited, as the settings say.
    """
    may = allowed(settings.files)
    with _tables(settings.database_url) as tables:
        began = time.perf_counter()
        progress("reading and copying")
        work = partial(_copied, may=may, tables=tables)
        reports = notifications.mapInArrow(work, _READ).collect()
        copied = time.perf_counter()
        merged = _merged(settings, tables, progress)
        operations = sum((each.operations for each in merged), Counter[str]())
        words = [word for report in reports for word in report.words]
        words += [str(refusal) for each in merged for refusal in each.refusals]
        return Loaded(
            sum(report.notifications for report in reports),
            sum(report.records for report in reports),
            sum(report.refused for report in reports) + operations.pop("refused", 0),
            operations,
            tuple(words[:_MOST_WORDS]),
            (copied - began, time.perf_counter() - copied),
        )


@contextmanager
def _tables(url: str) -> Iterator[tuple[str, ...]]:
    """Tables for the rows, without a log: after a crash they are empty, and so is what they were for."""
    with psycopg.connect(noticing(url), autocommit=True, application_name="tidings-files-load") as connection:
        [(taken,)] = connection.execute("select pg_try_advisory_lock(%s)", [_LOCK])
        if not taken:
            raise OperatorError("Another load is under way: wait until it has ended.")
        tables = tuple(f"loading_{number}" for number in range(PARTS))
        _drop(connection, tables)  # of a load that did not come to its end
        declared = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in COLUMNS.items()
        )
        for table in tables:
            made = sql.SQL("create unlogged table {} ({}) with (autovacuum_enabled = off)")
            connection.execute(made.format(sql.Identifier("hat", table), declared))
        try:
            yield tables
        finally:
            _drop(connection, tables)


def _drop(connection: registry.Connection, tables: tuple[str, ...]) -> None:
    for table in tables:
        connection.execute(sql.SQL("drop table if exists {}").format(sql.Identifier("hat", table)))


def _copied(batches: Iterator[pa.RecordBatch], may: Allowed, tables: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """In a worker. A task that is tried again copies some rows twice, which makes no difference to the merge."""
    url = settings_module.load().database_url
    reading = _Reading(may, len(tables))
    with psycopg.connect(noticing(url), autocommit=True, application_name="tidings-files-load") as connection:
        for batch in batches:
            reading.read(batch.column(0))
            if reading.held >= _AT_ONCE:
                _copy(connection, tables, reading)
        _copy(connection, tables, reading)
    columns = [[value] for value in (reading.notifications, reading.records, reading.refused, reading.words)]
    yield pa.RecordBatch.from_arrays(
        [pa.array(columns[0]), pa.array(columns[1]), pa.array(columns[2]), pa.array(columns[3], pa.list_(pa.string()))],
        ["notifications", "records", "refused", "words"],
    )


class _Reading:
    """Notifications become rows, by table; what is refused is counted, and some of it told."""

    def __init__(self, may: Allowed, parts: int) -> None:
        self._may = may
        self.rows: list[list[Row]] = [[] for _ in range(parts)]
        self.held = self.notifications = self.records = self.refused = 0
        self.words: list[str] = []

    def read(self, texts: pa.Array) -> None:
        parts = len(self.rows)
        for text in texts.to_pylist():
            self.notifications += 1
            try:
                found = self._rows(text or "")
            except Refusal as refusal:
                self.refused += 1
                if len(self.words) < _MOST_WORDS:
                    self.words.append(str(refusal))
                continue
            for each in found:
                self.rows[each[0] % parts].append(each)
            self.held += len(found)
            self.records += len(found)

    def _rows(self, text: str) -> list[Row]:
        """All records of a notification, or none."""
        event = read_trusted(text)
        if not isinstance(event, Event):
            return []
        self._may.check_buckets(event.buckets)
        return [row(record, record.sha256) for record in event.records]


def _copy(connection: registry.Connection, tables: tuple[str, ...], reading: _Reading) -> None:
    for table, rows in zip(tables, reading.rows, strict=True):
        if rows:
            statement = sql.SQL("copy {} from stdin (format csv)").format(sql.Identifier("hat", table))
            with connection.cursor().copy(statement) as copy:
                copy.write(as_csv(rows, COLUMNS))
            rows.clear()
    reading.held = 0


def _merged(settings: Settings, tables: tuple[str, ...], progress: Progress) -> list[registry.Merged]:
    url, awaits = noticing(settings.database_url), settings.files.missing_sha256 == "await"
    done: list[registry.Merged] = []

    def merge(table: str) -> None:
        name = sql.Identifier("hat", table)
        with psycopg.connect(url, application_name="tidings-files-load") as connection:
            connection.execute(sql.SQL("analyze {}").format(name))
            connection.execute(f"set local work_mem = '{_WORK_MEM}'".encode())
            done.append(registry.merge(connection, name, awaits))
        progress(f"merging: {len(done)} of {len(tables)} parts")

    with ThreadPoolExecutor(min(_MERGERS, os.cpu_count() or 1)) as threads:
        list(threads.map(merge, tables))
    return done
