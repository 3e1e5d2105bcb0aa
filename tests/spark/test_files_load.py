"""Notifications by the many, through Spark: the same registry as through the webhook's own way, in the same words."""

from __future__ import annotations

import json

import psycopg
import pytest
from pyspark.sql import SparkSession

from files_registry import BUCKET, KEY, TEST_EVENT, add_atlas, event, everything, record
from tidings import settings as settings_module
from tidings.consumers.files import registry
from tidings.consumers.files.loading import Loaded, load
from tidings.consumers.files.notification import Event, read
from tidings.consumers.files.staged import row
from tidings.errors import OperatorError

NUMBER = 1000


def many() -> list[str]:
    """Two versions for most keys, some removed again, some twice; the newer version first."""
    found = []
    for number in range(NUMBER):
        folder = ("source-datasets", "integrated-objects", "manifests")[number % 3]
        key = f"gut/gut-v1/{folder}/{number:05} x.h5ad"
        found.append(event(record(key, 20, version=f"b{number}", etag=f"{number:032x}")))
        found.append(event(record(key, 10, version=f"a{number}", etag=f"{number:032x}")))
        if number % 5 == 0:
            found.append(event(record(key, 30, event="ObjectRemoved:Delete", version=f"b{number}")))
        if number % 7 == 0:
            found.append(found[-1])
    return found


def loaded(spark: SparkSession, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setenv("AWS_RESOURCE_CONFIG", json.dumps({"s3_buckets": [BUCKET]}))
    frame = spark.createDataFrame([(text,) for text in texts], "notification string").repartition(3)
    return load(frame, settings_module.load())


def test_a_load_gives_what_single_notifications_give_and_can_be_repeated(
    spark: SparkSession, spark_database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_atlas(spark_database)
    texts = many()
    done = loaded(spark, texts, monkeypatch)
    assert (done.notifications, done.records, done.refused) == (len(texts), len(texts), 0)
    found = everything(spark_database)
    again = loaded(spark, texts, monkeypatch)
    assert everything(spark_database) == found
    assert again.operations["inserted"] == 0
    spark_database.execute("truncate hat.files, hat.removals")
    singles = [read(text) for text in texts]
    for start in range(0, len(singles), 997):
        some = [each for one in singles[start : start + 997] if isinstance(one, Event) for each in one.records]
        with spark_database.transaction():
            registry.merge_rows(spark_database, [row(each, each.sha256) for each in some], awaits=False)
    assert everything(spark_database) == found
    latest = spark_database.execute("select count(*), count(distinct key) from hat.files where is_latest").fetchone()
    assert latest == (NUMBER, NUMBER)


def test_a_key_may_hold_whatever_csv_and_copy_have_signs_of_their_own_for(
    spark: SparkSession, spark_database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ('a"b', "a,b", "a\nb", "a\r\nb", "a\tb", "\\N", "\\.", "a\\nb", '"', "ß€😀", " a ")
    keys = [f"gut/gut-v1/source-datasets/{name}" for name in names]
    done = loaded(spark, [event(record(key, 1)) for key in keys], monkeypatch)
    assert done.operations == {"inserted": len(keys)}
    assert sorted(each[1] for each in everything(spark_database)) == sorted(keys)


def test_what_is_refused_is_told_and_the_rest_is_loaded(
    spark: SparkSession, spark_database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = json.dumps({"Type": "Notification", "Message": event(record(KEY, 1, version="v1"))})
    done = loaded(
        spark,
        [
            inside,
            TEST_EVENT,
            event(record(f"{KEY}2", 1), record("nowhere")),
            event(record(bucket="strange")),
            event(record(f"{KEY}3", sha256=None)),
            event(record("gut/gut-v9/manifests/x")),
            "not JSON",
        ],
        monkeypatch,
    )
    assert (done.notifications, done.records, done.refused) == (7, 3, 5)
    assert done.operations == {"inserted": 1}
    assert [each[1] for each in everything(spark_database)] == [KEY]
    for words in (
        "Invalid S3 key format",
        "Unauthorized S3 bucket",
        "SHA256 metadata is required",
        "Atlas not found",
        "not JSON",
    ):
        assert any(words in each for each in done.words), words
    assert spark_database.execute("select from pg_tables where tablename like 'loading%'").rowcount == 0


def test_one_load_at_a_time(spark: SparkSession, spark_database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidings.consumers.files import loading

    spark_database.execute("select pg_advisory_lock(%s)", [loading._LOCK])
    with pytest.raises(OperatorError, match="under way"):
        loaded(spark, [event()], monkeypatch)
