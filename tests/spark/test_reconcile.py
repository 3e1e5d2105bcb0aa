"""A registry that has missed events is found out and repaired, however its bucket is listed."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest
from pyspark.sql import SparkSession

import small_registry
import writers
from tidings import settings
from tidings.consumers import reconcile
from tidings.consumers.bucket_listing import Ours, between, points
from tidings.consumers.files.notification import CREATED, MARKED, REMOVED, Record
from tidings.consumers.files.registry import merge_rows
from tidings.consumers.files.staged import row
from tidings.consumers.reconcile import Found
from tidings.db.pool import make_pool
from tidings.errors import OperatorError
from tidings.events.positions import START
from tidings.store import buckets

_FROM_EVENTS = """
insert into small_registry (bucket, key, version_id, etag, size, sequencer, gone)
select distinct on (key, version) bucket, key, version, nullif(etag, %(no_tag)s), size, lpad(upper(to_hex(seq)), 16, '0'),
       event = 'ObjectRemoved:Delete'
from (select *, coalesce(version_id, 'null') as version from changes) as c
where not key = any(%(withheld)s::text[]) or (key = 'half' and seq = (select min(seq) from changes where key = 'half'))
order by key, version, seq desc
"""


@pytest.fixture
def writer(spark_database: psycopg.Connection) -> Iterator[writers.Writer]:
    with writers.writer_to(settings.load().database_url) as made:
        spark_database.execute(small_registry.TABLE.encode())
        yield made


def fed(db: psycopg.Connection, *withheld: str) -> None:
    """The registry as events make it, without those of some keys; of the key `half` only the first counts."""
    db.execute(_FROM_EVENTS.encode(), {"withheld": [*withheld, "half"], "no_tag": "d41d8cd98f00b204e9800998ecf8427e"})


def run(spark: SparkSession, writer: writers.Writer, repair: bool, versions: bool) -> Found:
    with psycopg.connect(writer.url) as connection:
        listing = Ours.of(connection, writer.project, writer.bucket, wanted=5)
    registry = small_registry.Small(writer.url, versions)
    return reconcile.reconcile(spark, listing, registry, repair)


def counts(found: Found) -> tuple[int, int, int, int]:
    return found.missing, found.extra, found.different, found.misplaced


@pytest.mark.parametrize("versions", [False, True])
def test_what_was_withheld_is_found_and_repaired_to_equality(
    spark: SparkSession, spark_database: psycopg.Connection, writer: writers.Writer, versions: bool
) -> None:
    if versions:

        async def enable() -> None:
            async with make_pool(writer.url, 1) as pool:
                await buckets.put_versioning(pool, writer.project, writer.bucket, "enabled")

        writer.run(enable())
    writer.put(*(f"k/{number:03}" for number in range(120)), "half", "schön", "half", "never")
    fed(spark_database, "never")
    if not versions:
        writer.delete("k/007")  # the registry does not hear of it
    found = run(spark, writer, repair=False, versions=versions)
    # In a bucket with versions the second `half` is another version; without, the registry has an old one.
    assert counts(found) == ((2, 0, 0, 0) if versions else (1, 1, 1, 0))
    assert found.listed == found.known + found.missing - found.extra
    assert {row["key"] for row in found.examples} == {"never", "half"} | (set() if versions else {"k/007"})
    repaired = run(spark, writer, repair=True, versions=versions)
    assert repaired.repaired == sum(counts(found))
    after = run(spark, writer, repair=True, versions=versions)
    assert (counts(after), after.repaired) == ((0, 0, 0, 0), 0)
    held = spark_database.execute("select key, etag from small_registry where not gone order by 1, 2").fetchall()
    there = "select key, etag from heads union all select key, etag from versions order by 1, 2"
    assert held == spark_database.execute(there.encode()).fetchall()


def test_files_whose_events_were_withheld_are_repaired_with_the_right_one_as_the_latest(
    spark: SparkSession, spark_database: psycopg.Connection, writer: writers.Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_FILES__MISSING_SHA256", "await")
    draw = random.Random(7)
    keys = [f"gut/gut-v1/source-datasets/{number}.h5ad" for number in range(8)]

    async def work() -> None:
        async with make_pool(writer.url, 1) as pool:
            for _ in range(150):
                key = draw.choice(keys)
                if (what := draw.random()) < 0.1:
                    state = draw.choice(["enabled", "suspended"])
                    await buckets.put_versioning(pool, writer.project, writer.bucket, state)
                else:
                    await (writer.put_in if what < 0.7 else writer.delete_in)(pool, key)

    writer.run(work())
    writer.put("no file at all")
    records = [
        Record(
            {"ObjectRemoved:Delete": REMOVED, "ObjectRemoved:DeleteMarkerCreated": MARKED}.get(change["event"], CREATED),
            writer.bucket,
            change["key"],
            None if change["version_id"] in (None, "null") else change["version_id"],
            f"{change['seq']:032X}",
            change["etag"],
            change["size"],
            change["event"],
            "2026-11-16T01:02:03Z",
            None,
        )
        for change in writer.read(START)
        if change["key"] in keys and draw.random() < 0.5
    ]
    with spark_database.transaction():
        merge_rows(spark_database, [row(record, "ab" * 32, awaits=False) for record in records])
    spark_database.execute("update hat.files set integrity_status = 'valid'")
    with psycopg.connect(writer.url) as connection:
        listing = Ours.of(connection, writer.project, writer.bucket)
    registry = reconcile.load("files", settings.load())
    found = reconcile.reconcile(spark, listing, registry, repair=True)
    assert found.missing > 3
    assert found.repaired == sum(counts(found))
    assert counts(reconcile.reconcile(spark, listing, registry, repair=True)) == (0, 0, 0, 0)
    files = "select key, coalesce(version_id, 'null'), etag, size_bytes, is_latest from hat.files order by 1, 2"
    there = """
        select key, version_id, etag, size, latest from (
            select key, version_id, etag, size, true as latest, delete_marker from heads
            union all select key, version_id, etag, size, false, delete_marker from versions)
        where not delete_marker and key <> 'no file at all' order by 1, 2
    """
    held = spark_database.execute(files.encode()).fetchall()
    assert held == spark_database.execute(there.encode()).fetchall()
    # What was known and right keeps what was found out about it.
    [(untouched,)] = spark_database.execute("select count(*) from hat.files where integrity_status = 'valid'").fetchall()
    assert untouched >= found.listed - found.missing - found.different - _markers(spark_database) > 0


def _markers(db: psycopg.Connection) -> int:
    """Delete markers that the registry was told of before it was repaired, by notifications and not by a reconciliation."""
    rows = db.execute("select count(*) from hat.removals where is_marker and event_time = '2026-11-16T01:02:03Z'").fetchall()
    return int(rows[0][0])


def test_a_repair_never_wins_over_a_change_that_the_listing_has_not_seen(
    writer: writers.Writer,
) -> None:
    with writer.held() as open_:
        writer.run(writer.put_in(open_, "k"))
        writer.run(open_.commit())
        with psycopg.connect(writer.url) as connection:
            listing = Ours.of(connection, writer.project, writer.bucket)
    writer.put("k")
    before, after = writer.read(START)
    assert listing.sequencer is not None
    assert f"{before['seq']:016X}" < listing.sequencer < f"{after['seq']:016X}"


def test_the_ranges_of_a_bucket_hold_each_key_once() -> None:
    keys = sorted(["", "a", "a/", "a/b", "b", "bb/x", "c", "z", "ü", "\U0010ffff"])
    for cut in (points([], "", 4), points(["a/", "bb/"], "", 100), points(["a/", "b/", "c/", "d/"], "", 2), []):
        ranges = between(cut)
        for key in keys[1:]:
            assert sum(part.after < key and (part.upto is None or key <= part.upto) for part in ranges) == 1


def test_what_is_no_registry_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_DATABASE__URL", "postgresql:///any")
    loaded = settings.load()
    for name in ("nothing", "small_registry:nothing", "small_registry:Settings"):
        with pytest.raises(OperatorError, match=name):
            reconcile.load(name, loaded)
    assert isinstance(reconcile.load("small_registry:registry", loaded), small_registry.Small)
