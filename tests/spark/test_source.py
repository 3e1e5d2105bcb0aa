"""The change stream as a Spark data source: batch over a range, and streaming."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from tidings.changestream import windows
from tidings.changestream.source import TidingsSource
from tidings.events.schema import CHANGE


@pytest.fixture
def source(spark: SparkSession, spark_database: psycopg.Connection) -> SparkSession:
    assert spark_database
    spark.dataSource.register(TidingsSource)
    return spark


def append(database: psycopg.Connection, count: int, key: str = "key") -> None:
    database.execute(
        """
        insert into changes (seq, project, bucket, bucket_id, key, event, size, etag,
                             principal, source_ip, request_id, config, rules)
        select nextval('change_seq'), 'p', 'bucket', 'b', %s || n, 'ObjectCreated:Put', n, md5(n::text),
               'me', '127.0.0.1', 'R', 1, '1'
        from generate_series(1, %s) n
        """,
        [key, count],
    )


def stored(database: psycopg.Connection, spark: SparkSession) -> DataFrame:
    rows = database.execute("select seq, key, etag from changes order by seq").fetchall()
    return spark.createDataFrame(rows, "seq long, key string, etag string")


def test_the_schema_is_the_one_that_is_declared(source: SparkSession) -> None:
    assert source.read.format("tidings").load().schema == CHANGE


def test_a_batch_read_gives_every_change_once(source: SparkSession, spark_database: psycopg.Connection) -> None:
    append(spark_database, 500)
    windows.latest(spark_database)
    append(spark_database, 300)
    read = source.read.format("tidings").option("parts", "3").load()
    assertDataFrameEqual(read.select("seq", "key", "etag"), stored(spark_database, source))


def test_a_range_is_after_its_start_and_up_to_its_end(source: SparkSession, spark_database: psycopg.Connection) -> None:
    append(spark_database, 10)
    windows.latest(spark_database)
    append(spark_database, 10)
    windows.latest(spark_database)
    read = source.read.format("tidings").options(**{"from": "1/4", "to": "2/13"}).load()
    assert sorted(row.seq for row in read.select("seq").collect()) == list(range(5, 14))


def test_a_range_of_times_is_whole_windows(source: SparkSession, spark_database: psycopg.Connection) -> None:
    append(spark_database, 5)
    windows.latest(spark_database)
    between = datetime.now(UTC)
    spark_database.execute("update windows set cut_at = %s where id = 1", [between - timedelta(minutes=1)])
    append(spark_database, 7)
    after = source.read.format("tidings").option("from", between.isoformat()).load()
    before = source.read.format("tidings").option("to", between.isoformat()).load()
    assert (before.count(), after.count()) == (5, 7)


@pytest.mark.parametrize("option", [("from", "yesterday"), ("too", "1/2"), ("to", "1/x")])
def test_a_wrong_option_is_refused_by_name(source: SparkSession, option: tuple[str, str]) -> None:
    with pytest.raises(Exception, match=option[1] if option[0] != "too" else "too"):
        source.read.format("tidings").option(*option).load().collect()


def test_a_stream_reads_everything_in_batches_within_the_limit(
    source: SparkSession, spark_database: psycopg.Connection, tmp_path: Path
) -> None:
    append(spark_database, 250)
    windows.latest(spark_database)
    append(spark_database, 130)
    sizes: list[int] = []
    seen: list[int] = []

    def take(batch: DataFrame, _id: int) -> None:
        rows = [row.seq for row in batch.select("seq").collect()]
        sizes.append(len(rows))
        seen.extend(rows)

    def run() -> None:
        stream = source.readStream.format("tidings").option("max_rows", "100").load()
        query = stream.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(take)
        query.trigger(availableNow=True).start().awaitTermination(60)

    run()
    assert sorted(seen) == list(range(1, 381))
    assert max(sizes) <= 100
    append(spark_database, 20)
    run()  # goes on from its checkpoint
    assert sorted(seen) == list(range(1, 401))


def test_a_checkpoint_of_another_database_stops_the_query(
    source: SparkSession, spark_database: psycopg.Connection, tmp_path: Path
) -> None:
    append(spark_database, 3)
    stream = source.readStream.format("tidings").load()
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path)).format("noop")
    writer.trigger(availableNow=True).start().awaitTermination(60)
    for offsets in (tmp_path / "offsets").glob("[0-9]*"):
        offsets.write_text(offsets.read_text().replace('"token": "', '"token": "other-'))
        (tmp_path / "offsets" / f".{offsets.name}.crc").unlink(missing_ok=True)
    append(spark_database, 3)
    with pytest.raises(StreamingQueryException, match="belongs to other"):
        writer.trigger(availableNow=True).start().awaitTermination(60)
