"""A copy of the inventory for analysis: Parquet, in folders by bucket and day, all of one moment."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings import settings as settings_module
from tidings.errors import OperatorError
from tidings.settings import Settings

SCHEMA = (
    "bucket string, bucket_id string, key string, version_id string, is_latest boolean, delete_marker boolean, size long,"
    " etag string, content_type string, event_type string, sequencer string, event_at timestamp"
)


def export(spark: SparkSession, settings: Settings, folder: str) -> int:
    """Write every version and delete marker below `folder`, which must not be there yet; returns how many there are."""
    with psycopg.connect(settings.database_url) as connection:
        connection.execute("set transaction isolation level repeatable read")
        row = connection.execute("select pg_export_snapshot(), (select count(*) from inventory where not tombstone)").fetchone()
        assert row is not None
        snapshot, count = row
        _write(_read(spark, snapshot), folder)  # while the transaction is open, its snapshot is there for the workers
    return int(count)


def _read(spark: SparkSession, snapshot: str) -> DataFrame:
    """Whole keys in each part: which of their versions is the latest is for one statement to say."""
    parts = spark.sparkContext.defaultParallelism
    names = ", ".join(each.split()[0] for each in SCHEMA.split(", "))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column("part").to_pylist():
                yield from _rows(snapshot, f"select {names} from inventory_versions", part, parts)

    return spark.range(0, parts, numPartitions=parts).select(F.col("id").alias("part")).mapInArrow(read, SCHEMA)


def _rows(snapshot: str, select: str, part: int, parts: int) -> Iterator[pa.RecordBatch]:
    import adbc_driver_postgresql.dbapi as adbc  # heavy, and only workers need it

    mine = f"(hashtextextended(key, 0) & {0x7FFFFFFF}) % {parts} = {part}"
    with adbc.connect(settings_module.load().database_url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("begin isolation level repeatable read read only")
        cursor.execute(f"set transaction snapshot '{snapshot}'")
        cursor.execute(f"{select} where {mine}")
        yield from cursor.fetch_record_batch()
        cursor.execute("commit")


def _write(versions: DataFrame, folder: str) -> None:
    by_day = versions.withColumn("day", F.to_date("event_at")).repartition("bucket", "day")
    try:
        by_day.write.partitionBy("bucket", "day").parquet(folder)
    except AnalysisException as error:
        if error.getCondition() == "PATH_ALREADY_EXISTS":
            raise OperatorError(f"{folder} is there already: an export takes a new folder.") from None
        raise


def local_folder(folder: str) -> str:
    """A path of this machine in full, for Spark; anything with a scheme is left as it is."""
    return folder if "://" in folder else f"file://{os.path.abspath(folder)}"
