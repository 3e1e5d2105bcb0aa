"""Versioning as S3 has it, state by state, and the change that each delete appends (seed 001, "S3 versioning behavior")."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest

from tidings.access.projects import create_project
from tidings.db.pool import make_pool
from tidings.errors import CallerError
from tidings.store import buckets, deletes, moves, objects, uploads
from tidings.store.model import Condition, Content, Done, Origin, Place

ORIGIN = Origin("AKIAEXAMPLE", "192.0.2.1", "0123456789ABCDEF")
KEY = "key"


class Store:
    """One bucket; `changes` gives what was appended since it was last asked."""

    def __init__(self, url: str, sql: psycopg.Connection, runner: asyncio.Runner) -> None:
        self.sql = sql
        self.url = url
        self.project = create_project(sql, "one")
        self._runner = runner
        self._seen = 0
        self.pool = make_pool(url, 6)
        self.run(self.pool.open(wait=True))
        self.run(buckets.create(self.pool, self.project, "bucket"))

    def run(self, work: Any) -> Any:
        async def awaited() -> Any:
            return await work

        return self._runner.run(awaited())

    def place(self, key: str = KEY) -> Place:
        return Place(self.project, "bucket", key)

    def state(self, versioning: str) -> None:
        self.run(buckets.put_versioning(self.pool, self.project, "bucket", versioning))

    def put(self, body: bytes = b"body", key: str = KEY) -> Done:
        content = Content(len(body), f"etag of {body!r}", "text/plain", {"x-amz-meta-a": "b"}, body)
        done: Done = self.run(objects.commit_inline_object(self.pool, self.place(key), content, ORIGIN))
        return done

    def delete(self, version_id: str | None = None, key: str = KEY) -> Done:
        if version_id is None:
            work = deletes.delete_object_last_committed(self.pool, self.place(key), ORIGIN)
        else:
            work = deletes.delete_object_exact_version(self.pool, self.place(key), version_id, ORIGIN)
        done: Done = self.run(work)
        return done

    def body(self, version_id: str | None = None) -> bytes | None:
        found: bytes | None = self.run(objects.get(self.pool, self.place(), version_id)).body
        return found

    def versions(self) -> list[tuple[str, bool]]:
        """(id, is a delete marker), the newest first."""
        rows = self.sql.execute(
            "select version_id, delete_marker from (select * from heads union all select * from versions) v"
            " where key = %s order by ordinal desc",
            [KEY],
        )
        return [(row[0], row[1]) for row in rows.fetchall()]

    def changes(self) -> list[dict[str, Any]]:
        rows = self.sql.execute("select seq, to_jsonb(c) from changes c where seq > %s order by seq", [self._seen]).fetchall()
        self._seen = rows[-1][0] if rows else self._seen
        return [row[1] for row in rows]


@pytest.fixture
def store(database_url: str, database: psycopg.Connection) -> Iterator[Store]:
    with asyncio.Runner() as runner:
        made = Store(database_url, database, runner)
        yield made
        made.run(made.pool.close())


def told(change: dict[str, Any]) -> tuple[Any, ...]:
    names = ("event", "version_id", "versioning", "old_size", "content_type", "metadata", "replaced")
    return tuple(change[name] for name in names)


MARKER, DELETE = "ObjectRemoved:DeleteMarkerCreated", "ObjectRemoved:Delete"
META = '{"x-amz-meta-a": "b"}'


def test_enabled_keeps_every_version_and_covers_with_markers(store: Store) -> None:
    store.put(b"before")
    store.state("enabled")
    first, second = store.put(b"one").version_id, store.put(b"two").version_id
    assert store.versions() == [(second, False), (first, False), ("null", False)]
    store.changes()
    marker = store.delete()
    assert marker.delete_marker
    assert [told(change) for change in store.changes()] == [(MARKER, marker.version_id, "enabled", None, None, None, None)]
    assert store.versions()[0] == (marker.version_id, True)
    assert (store.body(first), store.body("null")) == (b"one", b"before")


def test_deleting_a_delete_marker_brings_the_object_back(store: Store) -> None:
    store.state("enabled")
    version = store.put(b"one").version_id
    marker = store.delete().version_id
    assert marker is not None
    store.changes()
    assert store.delete(marker).delete_marker
    assert [told(change)[:4] for change in store.changes()] == [(DELETE, marker, "enabled", 0)]
    assert (store.versions(), store.body()) == ([(version, False)], b"one")


def test_deleting_the_newest_version_uncovers_the_one_behind_it_and_the_last_one_the_key(store: Store) -> None:
    store.state("enabled")
    ids = [store.put(body).version_id or "" for body in (b"one", b"two", b"three")]
    store.changes()
    store.delete(ids[2])
    assert (store.body(), store.versions()) == (b"two", [(ids[1], False), (ids[0], False)])
    store.delete(ids[1])
    assert store.body() == b"one"
    store.delete(ids[0])
    assert store.versions() == []
    assert [told(change)[:2] for change in store.changes()] == [(DELETE, each) for each in reversed(ids)]
    third = store.put(b"three").version_id
    assert store.versions() == [(third, False)]


def test_suspended_replaces_the_null_version_wherever_it_is(store: Store) -> None:
    store.put(b"null one")
    store.state("enabled")
    kept = store.put(b"kept").version_id
    store.state("suspended")
    assert store.put(b"null two").version_id == "null"  # the older null version lay behind the kept one
    assert store.versions() == [("null", False), (kept, False)]
    assert store.put(b"null three").version_id == "null"  # and now in front
    assert (store.versions(), store.body("null")) == ([("null", False), (kept, False)], b"null three")


def test_a_delete_in_a_suspended_bucket_says_what_it_replaced(store: Store) -> None:
    store.state("suspended")
    store.delete()
    assert [told(change) for change in store.changes()] == [(MARKER, "null", "suspended", None, None, None, None)]
    store.delete()
    assert [told(change) for change in store.changes()] == [(MARKER, "null", "suspended", 0, None, "{}", "marker")]
    store.put(b"12345")
    store.changes()
    store.delete()
    assert [told(change) for change in store.changes()] == [(MARKER, "null", "suspended", 5, "text/plain", META, "version")]
    store.state("enabled")
    kept = store.put(b"kept").version_id
    store.state("suspended")
    store.changes()
    store.delete()  # the null marker lies behind the kept version
    assert [told(change)[3:] for change in store.changes()] == [(0, None, "{}", "marker")]
    assert store.versions() == [("null", True), (kept, False)]


def test_a_suspended_delete_finds_the_null_version_behind_others(store: Store) -> None:
    store.put(b"12345")
    store.state("enabled")
    kept = store.put(b"kept").version_id
    store.state("suspended")
    store.changes()
    store.delete()
    assert [told(change)[3:] for change in store.changes()] == [(5, "text/plain", META, "version")]
    assert store.versions() == [("null", True), (kept, False)]


def test_deleting_what_is_not_there_appends_nothing_but_a_marker_where_versions_are_kept(store: Store) -> None:
    store.delete()
    store.delete("null")
    store.state("enabled")
    store.delete("01990000-0000-7000-8000-000000000000")
    assert store.changes() == []
    assert store.delete().delete_marker
    assert [change["event"] for change in store.changes()] == [MARKER]


def test_a_move_appends_both_its_places_and_uncovers_what_was_behind(store: Store) -> None:
    store.state("enabled")
    store.put(b"one")
    second = store.put(b"two").version_id
    store.changes()
    moved = store.run(moves.finish_move_object(store.pool, store.place(), store.place("there"), ORIGIN))
    created, removed = store.changes()
    assert (created["key"], created["event"], created["version_id"]) == ("there", "ObjectCreated:Copy", moved.version_id)
    assert (removed["key"], removed["event"], removed["version_id"]) == (KEY, DELETE, second)
    assert {created["operation"], removed["operation"]} == {"finish move"}
    assert created["copy_source"] == removed["copy_source"] == f"bucket/{KEY}"
    assert store.body() == b"one"


def test_two_moves_in_opposite_directions_do_not_wait_for_each_other_in_a_circle(store: Store) -> None:
    async def both() -> None:
        for _ in range(20):
            forth = moves.finish_move_object(store.pool, store.place("a"), store.place("b"), ORIGIN)
            back = moves.finish_move_object(store.pool, store.place("b"), store.place("a"), ORIGIN)
            done = await asyncio.gather(forth, back, return_exceptions=True)
            assert all(isinstance(each, Done | CallerError) for each in done), done

    store.put(b"one", "a")
    store.put(b"two", "b")
    store.run(both())


def test_all_versions_go_each_with_its_change(store: Store) -> None:
    store.put(b"0")
    store.state("enabled")
    ids = [store.put(b"1").version_id, store.delete().version_id]
    store.changes()
    store.run(deletes.delete_objects_all_versions(store.pool, store.place(), ORIGIN))
    assert [(change["event"], change["version_id"]) for change in store.changes()] == [
        (DELETE, "null"),
        *((DELETE, each) for each in ids),
    ]
    assert store.versions() == []


@pytest.mark.parametrize("way", ["delete_objects", "move", "conditional put"])
def test_two_first_writers_of_a_key_leave_one_null_version(store: Store, way: str) -> None:
    """Both find no head to lock, and wait for a third; meanwhile the bucket goes from suspended to enabled.

    What the second looks for behind the head is as old as its statement: it must not go by that.
    """
    content = Content(1, "etag", "text/plain", {}, b"x")

    async def second(place: Place) -> None:
        if way == "delete_objects":
            await deletes.delete_objects(store.pool, store.project, "bucket", [(place.key, None)], ORIGIN)
        elif way == "move":
            await moves.finish_move_object(store.pool, store.place(f"from {place.key}"), place, ORIGIN)
        else:
            with contextlib.suppress(CallerError):
                await objects.commit_inline_object(store.pool, place, content, ORIGIN, Condition(absent=True))

    async def race(number: int) -> None:
        place = store.place(f"{number}")
        await buckets.put_versioning(store.pool, store.project, "bucket", "suspended")
        await objects.commit_inline_object(store.pool, store.place(f"from {number}"), content, ORIGIN)
        async with await psycopg.AsyncConnection.connect(store.url) as first:
            marker = deletes._parameters(place, "delete last committed", ORIGIN)
            await deletes._delete_last_under_lock(first, marker)
            waiting = [asyncio.create_task(second(place))]
            await asyncio.sleep(0.02)
            await buckets.put_versioning(store.pool, store.project, "bucket", "enabled")
            for _ in range(2):
                waiting.append(asyncio.create_task(objects.commit_inline_object(store.pool, place, content, ORIGIN)))
                await asyncio.sleep(0.02)
            await first.commit()
        await asyncio.gather(*waiting)
        await objects.commit_inline_object(store.pool, place, content, ORIGIN)

    async def races() -> None:
        for number in range(12):
            await race(number)

    store.run(races())
    twice = "select key from (select key, version_id from heads union all select key, version_id from versions) v"
    assert store.sql.execute(f"{twice} where version_id = 'null' group by key having count(*) > 1".encode()).fetchall() == []


def test_a_bucket_that_is_deleted_meanwhile_does_not_exist(store: Store) -> None:
    """Between finding the bucket and writing a row for it."""
    store.state("enabled")
    content = Content(1, "etag", "text/plain", {}, b"x")

    async def race(write: Callable[[Place], Awaitable[Any]]) -> None:
        async with await psycopg.AsyncConnection.connect(store.url) as deleting:
            await deleting.execute("delete from bucket_metainfos")
            waiting = asyncio.ensure_future(write(store.place()))
            await asyncio.sleep(0.05)
            await deleting.commit()
        with pytest.raises(CallerError) as caught:
            await waiting
        assert caught.value.code == "NoSuchBucket"
        await buckets.create(store.pool, store.project, "bucket")
        await buckets.put_versioning(store.pool, store.project, "bucket", "enabled")

    pool = store.pool
    store.run(race(lambda place: objects.commit_inline_object(pool, place, content, ORIGIN)))
    store.run(race(lambda place: deletes.delete_object_last_committed(pool, place, ORIGIN)))
    store.run(race(lambda place: deletes.delete_objects(pool, place.project, place.bucket, [(KEY, None)], ORIGIN)))
    store.run(race(lambda place: uploads.create(pool, place, content, None, False)))


def test_at_most_one_null_version_however_states_and_writers_race(store: Store) -> None:
    """Puts, deletes and changes of the state at once: whatever wins, a key has one null version at most and no hole."""

    async def writer(number: int) -> None:
        for turn in range(25):
            content = Content(1, f"{number}-{turn}", "text/plain", {}, b"x")
            if (number + turn) % 3:
                await objects.commit_inline_object(store.pool, store.place(), content, ORIGIN)
            else:
                await deletes.delete_object_last_committed(store.pool, store.place(), ORIGIN)

    async def switch() -> None:
        for turn in range(40):
            state = "enabled" if turn % 2 else "suspended"
            await buckets.put_versioning(store.pool, store.project, "bucket", state)
            await asyncio.sleep(0.002)

    async def everybody() -> None:
        await asyncio.gather(writer(0), writer(1), writer(2), switch())

    store.run(everybody())
    versions = store.versions()
    assert sum(version_id == "null" for version_id, _ in versions) <= 1
    assert len(versions) == len({version_id for version_id, _ in versions})
    kept = {change["version_id"] for change in store.changes() if change["versioning"] == "enabled"}
    assert kept <= {version_id for version_id, _ in versions}
