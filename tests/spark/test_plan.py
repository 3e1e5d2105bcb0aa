"""What a rule would have matched: the Spark job counts what the Python matcher counts, over changes that the store wrote."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import psycopg
import pytest
from pyspark.sql import SparkSession

import writers
from tidings import settings
from tidings.changestream import history, retention
from tidings.changestream.settings import ChangestreamSettings
from tidings.delivery import plan
from tidings.rules.draft import Draft
from tidings.rules.listing import find_bucket
from tidings.rules.match import matches
from tidings.store import buckets
from truth_table import TABLES
from writers import EVERYTHING

CREATED, REMOVED, MARKER = "s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:ObjectRemoved:DeleteMarkerCreated"
DAYS = 3


class Change(NamedTuple):
    at: datetime
    seq: int
    event: str
    key: str


class History(NamedTuple):
    pieces: list[str]
    changes: list[Change]


@pytest.fixture
def written(spark_database: psycopg.Connection) -> History:
    """A few hundred changes of three days, in partitions and outside, and what must not count: a bucket of the same name that
    was deleted, another bucket, and what is older."""
    loaded = settings.load()
    dice = random.Random(11)
    keys = sorted({row.key for row in TABLES[False]} | {"logs/a b", "logs/ž.txt", "photos/2026/猫.jpg"})
    with writers.writer_to(loaded.database_url) as writer:
        writer.put("logs/of the old bucket.txt", "photos/2026/old.jpg")
        for key in ("logs/of the old bucket.txt", "photos/2026/old.jpg"):
            writer.delete(key)
        writer.at_once(lambda pool: buckets.delete(pool, writer.project, writer.bucket))
        writer.at_once(lambda pool: buckets.create(pool, writer.project, writer.bucket))
        writer.at_once(lambda pool: buckets.create(pool, writer.project, "another"))
        for key in dice.choices(keys, k=150):
            writer.put(key)
        for key in dice.sample(keys, 20):
            writer.delete(key)
        writer.at_once(lambda pool: buckets.put_versioning(pool, writer.project, writer.bucket, "enabled"))
        for key in dice.choices(keys, k=100):
            writer.put(key)
        for key in dice.sample(keys, 20):
            writer.delete(key)
        writer.bucket = "another"
        writer.put(*keys[:10])
    _spread(spark_database, dice)
    start, end = history.last_days(spark_database, DAYS)
    bucket = find_bucket(spark_database, "one", "bucket")
    rows = spark_database.execute("select bucket_id, at, seq, event, key from changes").fetchall()
    changes = [Change(*row) for bucket_id, *row in rows if bucket_id == bucket.id and start <= row[0] < end]
    assert 150 < len(changes) < len(rows) - 30
    return History(history.pieces(spark_database, bucket.id, start, end, blocks=3), changes)


def _spread(database: psycopg.Connection, dice: random.Random) -> None:
    """As if they had been written over five days: partitions for a part of them, the rest in the default one."""
    now = datetime.now(UTC)
    retention.make_ahead(database, ChangestreamSettings(partition_hours=24), now - timedelta(days=2))
    with database.cursor() as cursor:
        seqs = cursor.execute("select seq from changes").fetchall()
        moments = [now - timedelta(days=5) * dice.random() ** 2 - timedelta(seconds=1) for _ in seqs]
        cursor.executemany(
            "update changes set at = %s where seq = %s", [(at, seq) for (seq,), at in zip(seqs, moments, strict=True)]
        )


RULES = [
    Draft(EVERYTHING),
    Draft((CREATED, MARKER)),
    Draft((REMOVED,), "", ".txt"),
    Draft(("s3:ObjectCreated:Copy",)),
    Draft(EVERYTHING, "logs/", ".txt"),
    Draft(EVERYTHING, "žluť/"),
    Draft(EVERYTHING, "%C5%BE"),
    Draft((CREATED,), "写真/", "猫.jpg"),
    Draft(EVERYTHING, "my+file"),
    Draft(EVERYTHING, "a b", "c d"),
    Draft(EVERYTHING, "a b", "c+d"),
    Draft(EVERYTHING, "nobody has this"),
]


def test_the_job_counts_what_the_python_matcher_counts(spark: SparkSession, written: History) -> None:
    counts = []
    for draft in RULES:
        wanted = [
            change
            for change in sorted(written.changes, reverse=True)
            if matches(draft.events, draft.prefix, draft.suffix, event=change.event, key=change.key)
        ]
        found = plan.run(spark, draft, written.pieces)
        assert (found.changes, found.matched) == (len(written.changes), len(wanted)), draft
        every, matched = (
            Counter((change.at.astimezone(UTC).date(), change.event) for change in some) for some in (written.changes, wanted)
        )
        assert found.tallies == tuple(
            plan.Tally(day, event, number, matched[day, event]) for (day, event), number in sorted(every.items())
        )
        newest = {change.key: (change.at, change.event, change.key) for change in reversed(wanted)}
        assert found.examples == tuple(sorted(newest.values(), reverse=True)[: plan.MOST_EXAMPLES]), draft
        counts.append(len(wanted))
    assert len(set(counts)) > 7, "rules that all want the same would prove little"
    assert counts[0] == len(written.changes)
    assert counts[-1] == 0


def test_progress_is_told_in_tasks_up_to_the_last(spark: SparkSession, written: History) -> None:
    told: list[tuple[int, int]] = []
    for _ in range(2):  # a second run begins anew, with a count of its own
        told.clear()
        plan.run(spark, Draft(EVERYTHING), written.pieces, lambda done, total: told.append((done, total)))
        assert told[-1][0] == told[-1][1] >= len(written.pieces)
        assert told[-1][1] < 2 * len(written.pieces)
        assert told == sorted(told)


def test_a_bucket_without_changes_has_nothing(spark: SparkSession, spark_database: psycopg.Connection) -> None:
    start, end = history.last_days(spark_database, DAYS)
    found = plan.run(spark, Draft(EVERYTHING), history.pieces(spark_database, "nobody", start, end))
    assert found == plan.Found((), ())
