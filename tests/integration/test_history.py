"""The history of a bucket: every change between two times once, from whichever partition, and no stranger's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tidings.changestream import history, retention
from tidings.changestream.settings import ChangestreamSettings

NOW = datetime(2026, 5, 20, 15, 30, tzinfo=UTC)


def append(database: psycopg.Connection, count: int, start: datetime, step: timedelta, bucket_id: str = "mine") -> None:
    database.execute(
        """
        insert into changes (seq, at, project, bucket, bucket_id, key, event, principal, source_ip, request_id, config, rules)
        select nextval('change_seq'), %s::timestamptz + n * %s::interval, 'p', 'bucket', %s, 'key ' || n, 'ObjectCreated:Put',
               'me', '127.0.0.1', 'R', 1, case when n %% 3 = 0 then '1' end
        from generate_series(0, %s - 1) n
        """,
        [start, step, bucket_id, count],
    )


def read(url: str, pieces: list[str]) -> list[int]:
    return sorted(row["seq"] for piece in pieces for batch in history.read(url, piece) for row in batch.to_pylist())


def expected(database: psycopg.Connection, start: datetime, end: datetime) -> list[int]:
    rows = database.execute("select seq, at, bucket_id from changes order by seq").fetchall()
    return [seq for seq, at, bucket_id in rows if bucket_id == "mine" and start <= at < end]


@pytest.mark.parametrize("blocks", [1, 3, 10_000])
def test_every_change_of_the_bucket_between_two_times_is_read_once(
    database: psycopg.Connection, database_url: str, blocks: int
) -> None:
    retention.make_ahead(database, ChangestreamSettings(), NOW - timedelta(hours=40))
    append(database, 900, NOW - timedelta(hours=90), timedelta(minutes=7))  # the older half has no partition of its own
    append(database, 300, NOW - timedelta(hours=90), timedelta(minutes=20), bucket_id="another")
    start, end = NOW - timedelta(hours=72), NOW - timedelta(hours=1)
    wanted = expected(database, start, end)
    assert 500 < len(wanted) < 900, "some are too old and some too new"
    pieces = history.pieces(database, "mine", start, end, blocks)
    assert read(database_url, pieces) == wanted
    assert len(pieces) > (20 if blocks == 1 else 6)


def test_the_bounds_are_from_the_first_moment_up_to_the_last(database: psycopg.Connection, database_url: str) -> None:
    retention.make_ahead(database, ChangestreamSettings(), NOW)
    append(database, 5, NOW, timedelta(hours=1))  # a partition ends within them, at 18:00
    pieces = history.pieces(database, "mine", NOW + timedelta(hours=1), NOW + timedelta(hours=4))
    assert read(database_url, pieces) == [2, 3, 4]


def test_a_partition_that_is_dropped_before_its_turn_is_no_error(database: psycopg.Connection, database_url: str) -> None:
    retention.make_ahead(database, ChangestreamSettings(), NOW)
    append(database, 2, NOW, timedelta(hours=3))
    pieces = history.pieces(database, "mine", NOW, NOW + timedelta(hours=4))
    [first] = [name for name in retention.partitions(database) if name.startswith("changes_20260520T12")]
    database.execute(f'drop table "{first}"'.encode())
    assert read(database_url, pieces) == [2]


def test_a_bucket_id_is_text_and_nothing_else(database: psycopg.Connection, database_url: str) -> None:
    append(database, 2, NOW, timedelta(hours=1), bucket_id="it's mine")
    pieces = history.pieces(database, "it's mine", NOW, NOW + timedelta(hours=4))
    assert read(database_url, pieces) == [1, 2]
    assert read(database_url, history.pieces(database, "' or true --", NOW, NOW + timedelta(hours=4))) == []


def test_the_last_days_end_now(database: psycopg.Connection) -> None:
    before = datetime.now(UTC)
    start, end = history.last_days(database, 3)
    assert end - start == timedelta(days=3)
    assert before - timedelta(seconds=5) < end < datetime.now(UTC) + timedelta(seconds=5)
