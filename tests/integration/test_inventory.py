"""The inventory in PostgreSQL: what it knows from notifications in any order is what the store lists."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import fresh_database
from inventory_history import Event, History, listed
from store_model import Version
from tidings.consumers.inventory import listing, offsets, rejects
from tidings.consumers.inventory.merging import COLUMNS, merge, merge_csv
from tidings.consumers.inventory.rollup import BY, rollup
from tidings.consumers.inventory.rules import Row, read
from tidings.consumers.inventory.telling import Rejected
from tidings.consumers.rows_as_csv import as_csv
from tidings.errors import Superseded
from tidings.local.postgres import Postgres


@pytest.fixture(scope="module")
def url(postgres: Postgres) -> str:
    return fresh_database(postgres, "inventory_test")


@pytest.fixture
def inventory(url: str) -> Iterator[psycopg.Connection[Any]]:
    """An empty inventory; each `with inventory.transaction()` is one."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("truncate inventory, inventory_offsets, inventory_rejects")
        yield connection


def rows(events: list[Event]) -> list[Row]:
    found = [read(*event) for event in events]
    assert all(isinstance(each, Row) for each in found)
    return found  # type: ignore[return-value]


def put_in(connection: psycopg.Connection[Any], events: list[Event], as_pieces: bool = False) -> int:
    with connection.transaction():
        told = rows(events)
        return (
            merge_csv(connection, [as_csv(told[:1], COLUMNS), b"", as_csv(told[1:], COLUMNS)])
            if as_pieces
            else merge(connection, told)
        )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_whatever_the_order_the_inventory_is_the_store_s_listing(
    inventory: psycopg.Connection[Any], draw: random.Random, steps: int
) -> None:
    inventory.execute("truncate inventory")
    history = History(draw)
    for _ in range(steps):
        history.step()
    events = history.events()
    sent = events + draw.choices(events, k=len(events) // 2) if events else []
    draw.shuffle(sent)
    while sent:
        size = draw.randint(1, len(sent))
        put_in(inventory, sent[:size], as_pieces=draw.random() < 0.5)
        del sent[:size]
    assert listed(inventory) == history.listed()


def test_histories_hold_every_event_type_and_every_kind_of_row(inventory: psycopg.Connection[Any]) -> None:
    """Else the property above would say little."""
    history = History(random.Random(1), keys=20)
    for _ in range(2000):
        history.step()
    events = history.events()
    put_in(inventory, events)
    assert len({json.loads(body)["event_type"] for body, _ in events}) == 4
    assert {("object_version" in json.loads(body)) for body, _ in events} == {True, False}
    kinds = inventory.execute("select distinct version_id = 'null', delete_marker, tombstone from inventory").fetchall()
    assert len(kinds) == 6
    assert listed(inventory) == history.listed()


def test_a_second_merge_of_the_same_changes_nothing(inventory: psycopg.Connection[Any]) -> None:
    history = History(random.Random(2))
    for _ in range(100):
        history.step()
    events = history.events()
    assert put_in(inventory, events) > 0
    before = inventory.execute("select * from inventory order by 1, 2, 3, 4").fetchall()
    assert put_in(inventory, events) == 0
    assert put_in(inventory, [random.Random(3).choice(events)]) == 0
    assert inventory.execute("select * from inventory order by 1, 2, 3, 4").fetchall() == before


def test_a_late_notification_does_not_bring_a_deleted_version_back(inventory: psycopg.Connection[Any]) -> None:
    history = History(random.Random(0), buckets=1, keys=1)
    key, bucket = history._keys[0], "bucket-0"
    history.model.put(bucket, key, Version("", body=b"1", etag="e"), None, "put")
    history.model.delete(bucket, key, None)
    written, deleted = history.events()
    put_in(inventory, [deleted])
    put_in(inventory, [written])
    assert listed(inventory) == []
    [known] = listing.history(inventory, bucket, key)
    assert (known["tombstone"], known["event_type"], known["size"]) == (True, "Object:Delete", 1)


def test_merges_of_the_same_at_the_same_time_neither_wait_in_a_circle_nor_disagree(
    inventory: psycopg.Connection[Any], url: str
) -> None:
    history = History(random.Random(4), keys=40)
    for _ in range(1500):
        history.step()
    events = history.events()

    def work(seed: int) -> None:
        mine = events.copy()
        random.Random(seed).shuffle(mine)
        with psycopg.connect(url, autocommit=True) as connection:
            for start in range(0, len(mine), 200):
                put_in(connection, mine[start : start + 200])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert listed(inventory) == history.listed()


def test_buckets_of_one_name_are_two_buckets(inventory: psycopg.Connection[Any]) -> None:
    history = History(random.Random(5), buckets=1)
    while not history.model.of("bucket-0", "folder/key 0 ß"):
        history.step()
    events = history.events()
    other = [(body.replace(b'"id-0"', b'"id-1"'), sequencer) for body, sequencer in events]
    put_in(inventory, [*events, *other])
    assert {row["bucket_id"] for row in listing.versions(inventory, "bucket-0")} == {"id-0", "id-1"}


def merge_and_move(connection: psycopg.Connection[Any], told: list[Row], expected: offsets.Offsets) -> None:
    with connection.transaction():
        merge(connection, told)
        offsets.move(connection, "local", expected, {"t": {1: 10, 2: 2}})


def test_positions_move_with_the_merge_or_not_at_all(inventory: psycopg.Connection[Any]) -> None:
    history = History(random.Random(6))
    while not history.model.changes:
        history.step()
    with inventory.transaction():
        offsets.move(inventory, "local", {}, {"t": {0: 5, 1: 7}})
    assert offsets.load(inventory, "local", ["t", "u"]) == {"t": {0: 5, 1: 7}}
    assert offsets.load(inventory, "other", ["t"]) == {}
    with inventory.transaction():
        offsets.move(inventory, "local", {"t": {0: 5, 1: 7}}, {"t": {1: 9, 2: 1}})
    for expected in ({"t": {0: 5, 1: 7, 2: 1}}, {"t": {0: 5, 1: 9}}, {}):  # another one, a new one, all of them
        with pytest.raises(Superseded):
            merge_and_move(inventory, rows(history.events()), expected)
    assert offsets.load(inventory, "local", ["t"]) == {"t": {0: 5, 1: 9, 2: 1}}
    assert listed(inventory) == []


def test_of_refused_messages_the_newest_are_kept_and_each_once(inventory: psycopg.Connection[Any]) -> None:
    def refused(numbers: range) -> list[Rejected]:
        return [Rejected("t", 0, number, f"reason {number}", b"\x00\xff" if number % 2 else None) for number in numbers]

    for numbers in (range(10), range(5, rejects.KEPT + 3)):
        with inventory.transaction():
            rejects.keep(inventory, "local", refused(numbers))
    kept = inventory.execute("select at_offset from inventory_rejects order by id").fetchall()
    assert [each for (each,) in kept] == list(range(3, rejects.KEPT + 3))
    newest = listing.rejects(inventory, 2)
    assert [(row["offset"], row["reason"], row["body"]) for row in newest] == [
        (10_002, "reason 10002", None),
        (10_001, "reason 10001", "\\000\\377"),
    ]


def told(**values: Any) -> Row:
    row = Row(
        "photos",
        "b1",
        "key",
        "null",
        "0000000000000001",
        "Object:Write",
        False,
        False,
        10,
        "e",
        "text/plain",
        "2026-01-17T23:30:00+00:00",
    )
    return row._replace(**values)


@pytest.fixture
def few(inventory: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    few = [
        told(key="top.txt"),
        told(key="a/one", version_id="v1", sequencer="1" * 16, size=100),
        told(key="a/one", version_id="v2", sequencer="2" * 16, size=200, content_type="image/png"),
        told(key="a/b/two", size=5, event_at="2026-01-18T00:30:00+01:00"),
        told(key="a/b/c/three", size=7, event_at="2026-01-18T00:30:00Z"),
        told(key="gone", tombstone=True, event_type="Object:Delete"),
        told(key="covered", version_id="v1", size=3),
        told(key="covered", version_id="v2", sequencer="2" * 16, size=0, etag=None, content_type=None, delete_marker=True),
        told(bucket="other", bucket_id="b2", size=1),
    ]
    with inventory.transaction():
        merge(inventory, few)
    return inventory


def sums(connection: psycopg.Connection[Any], by: Any, **more: Any) -> dict[tuple[Any, ...], tuple[int, ...]]:
    group = () if by == "bucket" else (by,)
    names = ("objects", "bytes", "versions", "version_bytes", "delete_markers")
    found = rollup(connection, by, **more)
    return {tuple(row[name] for name in ("bucket", *group)): tuple(row[name] for name in names) for row in found}


def test_rollups_count_what_a_reader_sees_and_all_that_is_kept(few: psycopg.Connection[Any]) -> None:
    assert sums(few, "bucket") == {("photos",): (4, 222, 6, 325, 1), ("other",): (1, 1, 1, 1, 0)}
    assert sums(few, "bucket", bucket="other") == {("other",): (1, 1, 1, 1, 0)}
    assert sums(few, "prefix", bucket="photos") == {
        ("photos", ""): (1, 10, 2, 13, 1),
        ("photos", "a/"): (3, 212, 4, 312, 0),
    }
    assert sums(few, "prefix", depth=2, bucket="photos") == {
        ("photos", ""): (1, 10, 2, 13, 1),
        ("photos", "a/"): (1, 200, 2, 300, 0),
        ("photos", "a/b/"): (2, 12, 2, 12, 0),
    }
    assert sums(few, "type", bucket="photos") == {
        ("photos", "image/png"): (1, 200, 1, 200, 0),
        ("photos", "text/plain"): (3, 22, 5, 125, 0),
        ("photos", None): (0, 0, 0, 0, 1),
    }
    assert sums(few, "day", bucket="photos") == {
        ("photos", date(2026, 1, 17)): (3, 215, 5, 318, 1),
        ("photos", date(2026, 1, 18)): (1, 7, 1, 7, 0),
    }
    assert {sum(each[0] for each in sums(few, by).values()) for by in BY} == {5}


def test_a_bucket_is_listed_by_key_with_the_newest_version_first(few: psycopg.Connection[Any]) -> None:
    everything = [(row["key"], row["version_id"], row["is_latest"]) for row in listing.versions(few, "photos")]
    assert everything == [
        ("a/b/c/three", "null", True),
        ("a/b/two", "null", True),
        ("a/one", "v2", True),
        ("a/one", "v1", False),
        ("covered", "v2", True),
        ("covered", "v1", False),
        ("top.txt", "null", True),
    ]
    current = [row["key"] for row in listing.versions(few, "photos", prefix="a/", current=True, most=2)]
    assert current == ["a/b/c/three", "a/b/two"]
