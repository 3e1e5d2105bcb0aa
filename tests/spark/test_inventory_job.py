"""The inventory through Spark: the data source over real brokers, and the job, stopped and killed in between."""

from __future__ import annotations

import csv
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from inventory_history import Event, History, listed
from tidings import settings as settings_module
from tidings.consumers.inventory import listing, offsets
from tidings.consumers.inventory.export import export
from tidings.consumers.inventory.job import LOCK, Inventory
from tidings.consumers.inventory.source import NAME, SCHEMA, KafkaSource
from tidings.consumers.inventory.telling import Rejected, ToldSource, pieces, told
from tidings.delivery import shipping
from tidings.errors import OperatorError
from tidings.local import kafka
from tidings.settings import Settings

TEST_EVENT = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}).encode()
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def brokers() -> Iterator[kafka.Running]:
    with kafka.running() as running:
        yield running


@pytest.fixture
def topic(brokers: kafka.Running) -> str:
    name = f"events-{next(_numbers)}"
    kafka.create_topic(brokers.address, name, 3)
    return name


@pytest.fixture
def known(
    spark: SparkSession, spark_database: psycopg.Connection, brokers: kafka.Running, topic: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    """The settings, with the brokers as the cluster `local`.

    Spark's workers have them without the topic: they would be others for each test, and so would the workers be, all of which
    take seconds to start.
    """
    assert spark_database
    before = dict(spark.sparkContext.environment)
    monkeypatch.setenv("TIDINGS_KAFKA__CLUSTERS", json.dumps({"local": {"bootstrap": brokers.bootstrap}}))
    shipping.ship_settings(spark, settings_module.load())
    monkeypatch.setenv("TIDINGS_INVENTORY__TOPICS", json.dumps([topic]))
    monkeypatch.setenv("TIDINGS_INVENTORY__MAX_ROWS", "100")
    spark.dataSource.register(KafkaSource)
    yield settings_module.load()
    spark.sparkContext.environment.update(before)


def send(brokers: kafka.Running, topic: str, events: list[Event | tuple[bytes | None, Any]]) -> None:
    """To partitions by chance, as their keys would have it."""
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for number, (body, sequencer) in enumerate(events):
        headers = [("id", f"id-{number}"), ("sequencer", sequencer)] if sequencer is not None else []
        producer.produce(topic, body, f"key-{number}", headers=headers)
    assert producer.flush(60) == 0


def source(spark: SparkSession, topic: str, **options: str) -> DataFrame:
    return spark.read.format(NAME).options(topics=topic, **options).load()


def history(seed: int, steps: int = 150) -> History:
    made = History(random.Random(seed), keys=8)
    for _ in range(steps):
        made.step()
    return made


def test_the_source_gives_keys_values_places_and_headers(
    spark: SparkSession, known: Settings, brokers: kafka.Running, topic: str
) -> None:
    assert known
    send(brokers, topic, [(b"one", "A"), (b"two", "B"), (None, None), (b"\xff\x00", b"\xff")])
    read = source(spark, topic)
    assert read.schema == SCHEMA
    rows = {row.key: row for row in read.collect()}
    assert [bytes(rows[key].value) if rows[key].value is not None else None for key in sorted(rows)] == [
        b"one",
        b"two",
        None,
        b"\xff\x00",
    ]
    assert [{header.key: bytes(header.value) for header in rows[key].headers} for key in sorted(rows)] == [
        {"id": b"id-0", "sequencer": b"A"},
        {"id": b"id-1", "sequencer": b"B"},
        {},
        {"id": b"id-3", "sequencer": b"\xff"},
    ]
    assert {row.topic for row in rows.values()} == {topic}
    assert len({(row.partition, row.offset) for row in rows.values()}) == 4
    assert all(row.timestamp is not None for row in rows.values())


def test_the_source_begins_at_its_positions_and_streams_in_batches_within_the_limit(
    spark: SparkSession, known: Settings, brokers: kafka.Running, topic: str, tmp_path: Path
) -> None:
    assert known
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for number in range(250):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    producer.flush(60)
    positions = json.dumps({topic: {"0": 120, "1": 125}})
    assert sorted(int(row.value) for row in source(spark, topic, positions=positions).collect()) == [240, 242, 244, 246, 248]
    batches: list[list[int]] = []

    def take(batch: DataFrame, _number: int) -> None:
        batches.append([int(row.value) for row in batch.collect()])

    def run() -> None:
        stream = spark.readStream.format(NAME).options(topics=topic, max_rows="100").load()
        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    run()
    assert max(map(len, batches)) <= 100
    assert sorted(itertools.chain(*batches)) == list(range(250))
    batches.clear()
    producer.produce(topic, b"250", partition=2)  # had nothing before
    producer.flush(60)
    run()
    assert batches == [[250]]


def test_the_job_makes_of_disorder_what_the_store_lists(
    spark: SparkSession, spark_database: psycopg.Connection, known: Settings, brokers: kafka.Running, topic: str, tmp_path: Path
) -> None:
    made = history(1)
    events = made.events()
    sent: list[Any] = [
        *events,
        *events[::3],
        (TEST_EVENT, None),
        (b"nonsense", "0" * 16),
        (events[0][0], None),
        (None, b"\xff"),
        (b"", "0" * 16),
    ]
    random.Random(1).shuffle(sent)
    send(brokers, topic, sent)
    lags: list[int] = []
    running = Inventory(spark, known, once=True)
    running.run(lags.append)
    assert listed(spark_database) == made.listed()
    assert (running.counts["events"], running.counts["tests"], running.counts["refused"]) == (len(sent) - 5, 1, 4)
    assert lags == sorted(lags, reverse=True)
    assert len(lags) > 1
    assert lags[-1] == 0
    reasons = [row["reason"] for row in listing.rejects(spark_database, 10)]
    assert sorted(reason.split(",")[0] for reason in reasons) == [
        "the body is not JSON",
        "the body is not JSON",
        "the message has no body",
        "there is no header sequencer",
    ]
    assert sum(row["next_offset"] for row in listing.positions(spark_database)) == len(sent)

    folder = tmp_path / "copy"
    assert export(spark, known, str(folder)) == len(made.listed())
    assert [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077] == [], "its owner's alone"
    copied = spark.read.parquet(str(folder))
    names = ("bucket", "bucket_id", "key", "version_id", "is_latest", "delete_marker", "size")
    versions = [tuple(row[name] for name in names) for row in copied.collect()]
    assert sorted(versions) == sorted(row[:7] for row in made.listed())
    days = {f"day={row.day}" for row in copied.select("day").distinct().collect()}
    assert {path.name for path in folder.glob("bucket=*/*")} == days
    with pytest.raises(OperatorError, match="is there already"):
        export(spark, known, str(folder))


def test_messages_that_go_through_spark_say_the_same(
    spark: SparkSession, known: Settings, brokers: kafka.Running, topic: str
) -> None:
    assert known
    events = history(2).events()
    send(
        brokers,
        topic,
        [*events, (TEST_EVENT, None), (b"nonsense", "0" * 16), (events[0][0], b"\xff"), (None, None), (b"", "0" * 16)],
    )
    spark.dataSource.register(ToldSource)

    def said(told_: DataFrame) -> tuple[list[list[str]], Counter[str], dict[int, int], list[Rejected]]:
        found = pieces(told_)
        rows = sorted(row for each in found for row in csv.reader(each.rows.decode().splitlines()))
        behind = {part: at for each in found for part, at in each.offsets[topic].items()}
        counts = sum((each.counts for each in found), Counter[str]())
        return rows, counts, behind, sorted(one for each in found for one in each.refused)

    direct = said(spark.read.format(ToldSource.name()).options(topics=topic).load())
    assert direct == said(told(source(spark, topic)))
    assert direct[1] == Counter(events=len(events), tests=1, refused=4)
    assert sum(direct[2].values()) == len(events) + 5


class Killed(Exception):
    """As if the process were gone at that line."""


def die(_lag: int) -> None:
    raise Killed


FAIL = """
create function fail() returns trigger language plpgsql as $$ begin raise exception 'the database fails here'; end $$;
create constraint trigger fail after insert or update on inventory_offsets deferrable initially deferred
    for each row execute function fail();
"""


def test_a_job_that_dies_at_the_end_of_a_merge_or_behind_it_repeats_nothing_wrong(
    spark: SparkSession, spark_database: psycopg.Connection, known: Settings, brokers: kafka.Running, topic: str
) -> None:
    made = history(2)
    sent = made.events()
    random.Random(2).shuffle(sent)
    send(brokers, topic, list(sent))
    spark_database.execute(FAIL)
    with pytest.raises(psycopg.errors.RaiseException, match="fails here"):
        Inventory(spark, known, once=True).run()
    assert listing.positions(spark_database) == listed(spark_database) == []
    spark_database.execute("drop function fail cascade")

    with pytest.raises(Killed):
        Inventory(spark, known, once=True).run(die)
    done = sum(row["next_offset"] for row in listing.positions(spark_database))
    assert 0 < done < len(sent)
    going_on = Inventory(spark, known, once=True)
    going_on.run()
    assert going_on.counts["events"] == len(sent) - done  # what was merged is not read again
    assert listed(spark_database) == made.listed()


def test_a_topic_that_was_made_anew_is_told_and_read_on_demand(
    spark: SparkSession, spark_database: psycopg.Connection, known: Settings, brokers: kafka.Running, topic: str
) -> None:
    made = history(3, 30)
    send(brokers, topic, list(made.events()))
    with spark_database.transaction():
        offsets.move(spark_database, "local", {}, {topic: {0: 1000}})
    with pytest.raises(OperatorError, match=f"{topic}/0 was read up to 1000.*--accept-loss"):
        Inventory(spark, known, once=True).run()
    Inventory(spark, known, once=True, accept_loss=True).run()
    assert listed(spark_database) == made.listed()


def test_what_is_missing_in_the_settings_is_one_clear_sentence(spark: SparkSession, known: Settings) -> None:
    with pytest.raises(OperatorError, match="--topic"):
        Inventory(spark, known.model_copy(update={"inventory": known.inventory.model_copy(update={"topics": ()})}))
    with pytest.raises(OperatorError, match=r"spark\.jars\.packages"):
        Inventory(spark, known.model_copy(update={"inventory": known.inventory.model_copy(update={"source": "kafka"})}))


def test_a_second_consumer_waits_for_the_first_to_end(
    spark: SparkSession, spark_database: psycopg.Connection, known: Settings, brokers: kafka.Running, topic: str
) -> None:
    made = history(4, 30)
    send(brokers, topic, list(made.events()))
    waiting = Inventory(spark, known, once=True)
    with psycopg.connect(known.database_url, autocommit=True) as first, ThreadPoolExecutor(1) as pool:
        first.execute("select pg_advisory_lock(%s)", [LOCK])
        done = pool.submit(waiting.run)
        with pytest.raises(TimeoutError):
            done.result(3)
        assert listed(spark_database) == []
        first.close()
        done.result(120)
    assert listed(spark_database) == made.listed()
