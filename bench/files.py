"""files_vs_copy and files_vs_upserts: a million notifications into the file registry, through Spark.

The notifications are text in Parquet, as they came. The load reads and checks each, copies the rows beside the registry and
merges them into it: indexes, foreign keys, the latest version of each key. The first rival gets the registry's own rows, ready
as text, and only copies them into a table without an index; the second reads each notification by the same rules and upserts it
with one prepared statement, each in a transaction of its own, and decides nothing about which version is latest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.changes import database
from bench.measure import Bar, CannotMeasure, Figure, Progress, interleaved, ratios
from tidings import settings as settings_module
from tidings.consumers.files.loading import Loaded, load
from tidings.consumers.files.notification import Event, read
from tidings.consumers.files.staged import row
from tidings.delivery import session

NAMES = ("files_vs_copy", "files_vs_upserts")
_BUCKET = "bench-files"
_CHUNK = 1 << 20

# One in ten is a second version of a file; of ten files seven are source datasets, two integrated objects, one a manifest.
_NOTIFICATION = """
concat('{"Records":[{"eventVersion":"2.1","eventSource":"aws:s3","awsRegion":"us-east-1",'
       '"eventTime":"2026-11-16T01:02:03.456Z","eventName":"ObjectCreated:Put","userIdentity":{"principalId":"AWS:AIDAEXAMPLE"},'
       '"requestParameters":{"sourceIPAddress":"192.0.2.7"},"responseElements":{"x-amz-request-id":"C3D13FE58DE4C810",'
       '"x-amz-id-2":"FMyUVURIY8/IgAtTv8xRjskZQpcIZ9KG4V5Wp6S7S/JRWeUWerMUE5JgHvANOjpD"},"s3":{"s3SchemaVersion":"1.0",'
       '"configurationId":"files","bucket":{"name":"bench-files","ownerIdentity":{"principalId":"A3NL1KOZZKExample"},'
       '"arn":"arn:aws:s3:::bench-files"},"object":{"key":"gut/gut-v', file % 20 + 1, '/',
       case when file % 10 < 7 then 'source-datasets' when file % 10 < 9 then 'integrated-objects' else 'manifests' end,
       '/sample+', lpad(file, 9, '0'), '.h5ad","size":', 1000000 + id, ',"eTag":"', md5(string(id)), '","versionId":"',
       substr(sha1(string(id)), 1, 32), '","sequencer":"', lpad(hex(id), 16, '0'),
       '","userMetadata":{"source-sha256":"', sha2(string(id), 256), '"}}}}]}')
"""
_UPSERT = """
insert into hat.files as file (bucket, key, version_id, sequencer, etag, size_bytes, event_name, event_time, file_type,
                               sha256_client, is_latest, atlas_id)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, false, %s)
on conflict (bucket, key, version_id) do update set updated_at = now() where file.etag = excluded.etag
"""


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    rows = 100_000 if quick else 1_000_000
    with database(progress) as url, TemporaryDirectory(prefix="tidings-bench-") as folder:
        os.environ["TIDINGS_DATABASE__URL"] = url  # how Spark's workers learn of it
        os.environ["AWS_RESOURCE_CONFIG"] = f'{{"s3_buckets": ["{_BUCKET}"]}}'
        progress("starting Spark")
        spark = session.start(settings_module.load(), on_top=0)
        try:
            loading = _Loading(spark, url, rows, Path(folder), progress)
            if "files_vs_copy" in names:
                yield loading.against_copy(2 if quick else 3, progress)
            if "files_vs_upserts" in names:
                yield loading.against_upserts(2 if quick else 3, 1_000 if quick else 5_000, progress)
        finally:
            spark.stop()
            del os.environ["TIDINGS_DATABASE__URL"], os.environ["AWS_RESOURCE_CONFIG"]


class _Loading:
    def __init__(self, spark: SparkSession, url: str, rows: int, folder: Path, progress: Progress) -> None:
        self._url = url
        self._rows = rows
        self._copy_file = folder / "rows.copy"
        progress(f"writing {rows:,} notifications")
        numbered = spark.range(rows, numPartitions=8).withColumn("file", F.expr("cast(id * 9 / 10 as bigint)"))
        numbered.select(F.expr(_NOTIFICATION).alias("notification")).write.parquet(str(folder / "notifications"))
        self._notifications = spark.read.parquet(str(folder / "notifications"))
        self._last: Loaded | None = None
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "insert into hat.atlases (overview) select json_build_object('network', 'gut', 'shortName', 'Gut', 'version', "
                "n::text) from generate_series(1, 20) n"
            )
            connection.execute("create table copied (like hat.files)")

    def against_copy(self, repeats: int, progress: Progress) -> Figure:
        progress("the rows that COPY gets")
        self._load()
        self._keep_rows()
        seconds = interleaved({"copy": self._copy, "spark": self._load}, repeats, 1, progress)
        assert self._last is not None
        reading, merging = self._last.seconds
        note = (
            f"{self._rate(seconds['spark'])} loaded, {self._rate(seconds['copy'])} copied; of the last load {reading:.1f} s"
            f" were reading, checking and copying, {merging:.1f} s merging"
        )
        return Figure.median("files_vs_copy", ratios(seconds["copy"], seconds["spark"]), Bar(">=", 0.25), "", note)

    def against_upserts(self, repeats: int, upserts: int, progress: Progress) -> Figure:
        texts = [each.notification for each in self._notifications.limit(upserts).collect()]
        seconds = interleaved({"upserts": lambda: self._upserts(texts), "spark": self._load}, repeats, 1, progress)
        each = [value / upserts for value in seconds["upserts"]]
        found = ratios(each, [value / self._rows for value in seconds["spark"]])
        note = f"{self._rate(seconds['spark'])} loaded, {upserts / sorted(seconds['upserts'])[len(each) // 2]:,.0f}/s upserted"
        return Figure.median("files_vs_upserts", found, Bar(">=", 20), "x", note)

    def _rate(self, seconds: Sequence[float]) -> str:
        return f"{self._rows / sorted(seconds)[len(seconds) // 2] / 1000:.0f} k/s"

    def _load(self) -> float:
        self._empty()
        began = time.perf_counter()
        self._last = load(self._notifications, settings_module.load())
        seconds = time.perf_counter() - began
        if self._last.operations != {"inserted": self._rows} or self._last.refused:
            raise CannotMeasure(f"The load gave {self._last}, not {self._rows} rows.")
        return seconds

    def _keep_rows(self) -> None:
        with (
            psycopg.connect(self._url) as connection,
            connection.cursor().copy("copy hat.files to stdout") as copy,
            self._copy_file.open("wb") as file,
        ):
            for data in copy:
                file.write(data)

    def _copy(self) -> float:
        self._empty()
        with psycopg.connect(self._url) as connection, self._copy_file.open("rb") as file:
            began = time.perf_counter()
            with connection.cursor().copy("copy copied from stdin") as copy:
                while data := file.read(_CHUNK):
                    copy.write(data)
            connection.commit()
            seconds = time.perf_counter() - began
            [(copied,)] = connection.execute("select count(*) from copied")
        if copied != self._rows:
            raise CannotMeasure(f"COPY gave {copied} rows, not {self._rows}.")
        return seconds

    def _upserts(self, texts: Sequence[str]) -> float:
        self._empty()
        with psycopg.connect(self._url, autocommit=True, prepare_threshold=0) as connection:
            atlases = dict(connection.execute("select 'gut/gut-v' || (overview ->> 'version'), id from hat.atlases").fetchall())
            began = time.perf_counter()
            for text in texts:
                event = read(text)
                assert isinstance(event, Event)
                for record in event.records:
                    *_, bucket, key, version, sequencer, etag, size, name, at, kind, atlas, sha256 = row(record, record.sha256)
                    said = (bucket, key, version, sequencer, etag, size, name, at, kind, sha256, atlases.get(atlas))
                    connection.execute(_UPSERT, said)
            seconds = time.perf_counter() - began
            [(stored,)] = connection.execute("select count(*) from hat.files")
        if stored != len(texts):
            raise CannotMeasure(f"Upserts gave {stored} rows, not {len(texts)}.")
        return seconds

    def _empty(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("truncate hat.files, hat.removals, copied")
            connection.execute("checkpoint")  # or it comes in the middle of a repeat
