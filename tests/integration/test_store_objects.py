"""What a put and a delete leave in the database: the object and its change, both or neither, numbered in order."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tidings.access.projects import create_project
from tidings.db.pool import Pool, make_pool
from tidings.errors import CallerError
from tidings.store import buckets, deletes, objects
from tidings.store.model import Content, Done, Origin, Place, Segment, Version

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ORIGIN = Origin("AKIAEXAMPLE", "192.0.2.1", "0123456789ABCDEF", datetime(2026, 1, 17, 10, 30, tzinfo=UTC), trace=TRACE)


class Store:
    """A project with one bucket, and a loop to run the store's operations in."""

    def __init__(self, url: str, connection: psycopg.Connection) -> None:
        self.url = url
        self.sql = connection
        self.project = create_project(connection, "one")
        self.bucket = "bucket"
        self.run(lambda pool: buckets.create(pool, self.project, self.bucket))

    def run(self, work: Callable[[Pool], Awaitable[Any]]) -> Any:
        async def opened() -> Any:
            async with make_pool(self.url, 8) as pool:
                return await work(pool)

        return asyncio.run(opened())

    def place(self, key: str = "key") -> Place:
        return Place(self.project, self.bucket, key)

    def put(self, key: str, content: Content) -> str | None:
        """Returns the blob that was replaced."""
        done: Done = self.run(lambda pool: objects.commit_inline_object(pool, self.place(key), content, ORIGIN))
        return next(iter(done.unused), None)

    def delete(self, key: str) -> str | None:
        done: Done = self.run(lambda pool: deletes.delete_object_last_committed(pool, self.place(key), ORIGIN))
        return next(iter(done.unused), None)

    def get(self, key: str, *, body: bool = True) -> Version:
        return self.run(lambda pool: objects.get(pool, self.place(key), body=body))

    def changes(self) -> list[dict[str, Any]]:
        rows = self.sql.execute("select to_jsonb(c) - 'xid' - 'id' - 'at' from changes c order by seq").fetchall()
        return [row[0] for row in rows]


@pytest.fixture
def store(database_url: str, database: psycopg.Connection) -> Iterator[Store]:
    return Store(database_url, database)


def content(body: bytes | None = b"hello", blob: str | None = None, etag: str = "e1", **metadata: str) -> Content:
    size = len(body) if body is not None else 5000
    segments = None if blob is None else [Segment(blob, size)]
    named = {name.replace("_", "-"): value for name, value in metadata.items()}
    return Content(size, etag, "text/plain", named, body, segments)


@pytest.mark.parametrize("body", [b"", b"\x00", b"x" * 4096])
def test_an_object_comes_back_as_it_was_put(store: Store, body: bytes) -> None:
    store.put("a/ü key", content(body, x_amz_meta_a="b  c", cache_control="no-store"))
    head = store.get("a/ü key")
    assert (head.size, head.etag, head.content_type, head.body, head.segments) == (len(body), "e1", "text/plain", body, [])
    assert head.metadata == {"x-amz-meta-a": "b  c", "cache-control": "no-store"}
    assert store.get("a/ü key", body=False) == head._replace(body=None)


def test_a_put_appends_one_change_that_says_everything(store: Store) -> None:
    made = replace(content(b"hello", etag="e9", x_amz_meta_a="b"), tags={"team": "one"})
    store.put("a b/ü", made)
    (change,) = store.changes()
    bucket_id = store.sql.execute("select id from bucket_metainfos").fetchone()
    assert bucket_id is not None
    assert change == {
        "seq": 1,
        "project": store.project,
        "bucket": "bucket",
        "bucket_id": bucket_id[0],
        "key": "a b/ü",
        "encoded": "a+b/%C3%BC",
        "event": "ObjectCreated:Put",
        "size": 5,
        "etag": "e9",
        "principal": "AKIAEXAMPLE",
        "source_ip": "192.0.2.1",
        "request_id": "0123456789ABCDEF",
        "config": 0,
        "rules": None,
        "operation": "commit inline",
        "version_id": None,
        "versioning": "unversioned",
        "old_size": None,
        "content_type": "text/plain",
        "metadata": '{"x-amz-meta-a": "b"}',
        "tags": '{"team": "one"}',
        "copy_source": None,
        "request_at": "2026-01-17T10:30:00+00:00",
        "replaced": None,
        "trace": TRACE,
        "catalog": None,
    }


def test_the_private_project_id_is_in_no_change(store: Store) -> None:
    store.put("key", content())
    store.delete("key")
    row = store.sql.execute("select id::text from projects").fetchone()
    assert row is not None
    assert row[0] not in json.dumps(store.changes())


def test_a_delete_appends_a_change_without_size_and_etag_and_with_what_was_there(store: Store) -> None:
    store.put("key", content(x_amz_meta_a="b"))
    assert store.delete("key") is None
    change = store.changes()[1]
    assert (change["old_size"], change["content_type"], change["metadata"]) == (5, "text/plain", '{"x-amz-meta-a": "b"}')
    assert (change["operation"], change["trace"]) == ("delete last committed", TRACE)
    assert (change["event"], change["size"], change["etag"], change["encoded"]) == ("ObjectRemoved:Delete", None, None, None)
    with pytest.raises(CallerError, match="NoSuchKey"):
        store.get("key")


def test_deleting_what_is_not_there_appends_nothing(store: Store) -> None:
    assert store.delete("key") is None
    assert store.changes() == []


def test_the_rules_that_match_are_written_into_the_change_with_the_version_they_are_of(store: Store) -> None:
    store.sql.execute("insert into lanes (project, destination) values (%s, 'arn')", [store.project])
    store.sql.execute("update bucket_metainfos set config = 7")
    store.sql.execute(
        "insert into bucket_eventing_configs (project_id, bucket_name, config_id, topic_name, events, filter_prefix, lane)"
        " select p.id, 'bucket', n, 't', array[e], f, (select id from lanes) from projects p, (values"
        " ('a', 's3:ObjectCreated:*', 'in/'),"
        " ('b', 's3:ObjectCreated:Put', null), ('c', 's3:ObjectRemoved:*', null)) r (n, e, f)"
    )
    rule = dict(store.sql.execute("select config_id, rule::text from bucket_eventing_configs").fetchall())
    store.put("in/x", content())
    store.put("out", content())
    store.delete("in/x")
    found = [(change["rules"], change["config"]) for change in store.changes()]
    assert found == [(f"{rule['a']},{rule['b']}", 7), (rule["b"], 7), (rule["c"], 7)]


def test_a_put_and_a_delete_tell_which_blob_they_set_free(store: Store) -> None:
    assert store.put("key", content(None, "b1")) is None
    assert store.put("key", content(None, "b2")) == "b1"
    assert store.put("key", content(b"small")) == "b2"
    assert store.put("key", content(None, "b3")) is None
    assert store.delete("key") == "b3"


def test_an_object_is_in_its_row_or_in_a_blob_and_never_in_both(store: Store) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        store.put("key", content(b"x", "blob"))
    assert store.changes() == []


@pytest.mark.parametrize("where", [{"bucket": "elsewhere"}, {"project": "nobody"}])
def test_without_the_bucket_nothing_can_be_put_read_or_deleted(store: Store, where: dict[str, str]) -> None:
    for name, value in where.items():
        setattr(store, name, value)
    for work in (lambda: store.put("key", content()), lambda: store.get("key"), lambda: store.delete("key")):
        with pytest.raises(CallerError, match="NoSuchBucket"):
            work()
    assert store.changes() == []


def test_a_bucket_belongs_to_its_project_alone(store: Store) -> None:
    store.put("key", content())
    store.project = create_project(store.sql, "other")
    with pytest.raises(CallerError, match="NoSuchBucket"):
        store.get("key")
    store.run(lambda pool: buckets.create(pool, store.project, "bucket"))
    with pytest.raises(CallerError, match="NoSuchKey"):
        store.get("key")


def test_a_put_that_waits_for_another_is_later_in_every_respect(store: Store) -> None:
    """The first holds the key's row; the second began before the first was done, and must still come after it."""

    async def work(pool: Pool) -> None:
        async with await psycopg.AsyncConnection.connect(store.url) as first:
            await first.execute("select pg_current_xact_id()")
            await objects.commit_inline_object(pool, store.place(), content(etag="zero"), ORIGIN)
            await first.execute("update heads set etag = 'first', modified_at = clock_timestamp()")
            made = objects.commit_inline_object(pool, store.place(), content(etag="second"), ORIGIN)
            second = asyncio.ensure_future(made)
            await asyncio.sleep(0.3)
            assert not second.done()
            await first.execute(
                "insert into changes select nextval('change_seq'), xid, at, id, project, bucket, bucket_id, key,"
                " encoded, event, size, 'first', principal, source_ip, request_id, config from changes"
            )
            done_at = (await (await first.execute("select clock_timestamp()")).fetchone())[0]  # type: ignore[index]
            await first.commit()
            await second
        head = await objects.get(pool, store.place())
        assert head.modified_at > done_at

    store.run(work)
    assert [change["etag"] for change in store.changes()] == ["zero", "first", "second"]


def test_many_writers_on_few_keys_are_numbered_in_the_order_of_the_row(store: Store) -> None:
    """Each put names a blob of its own and is told which one it replaced: a chain that only the true order satisfies."""
    keys = ["a", "b", "c"]
    replaced: dict[str, str | None] = {}

    async def writer(pool: Pool, number: int) -> None:
        draw = random.Random(number)
        for turn in range(40):
            key, name = draw.choice(keys), f"w{number}-{turn}"
            if draw.random() < 0.25:
                await deletes.delete_object_last_committed(pool, store.place(key), ORIGIN)
            else:
                made = content(None, name, etag=name)
                done = await objects.commit_object_with_segments(pool, store.place(key), made, ORIGIN)
                replaced[name] = next(iter(done.unused), None)

    async def work(pool: Pool) -> None:
        await asyncio.gather(*(writer(pool, number) for number in range(8)))

    store.run(work)
    changes = store.changes()
    assert sum(change["event"] == "ObjectCreated:Put" for change in changes) == len(replaced)
    for key in keys:
        before: str | None = None
        for change in (each for each in changes if each["key"] == key):
            if change["event"] == "ObjectCreated:Put":
                assert replaced[change["etag"]] == before
            else:
                assert before is not None, "a delete of nothing appended a change"
            before = change["etag"]
        last = store.sql.execute("select etag from heads where key = %s", [key]).fetchone()
        assert (last[0] if last else None) == before


def test_a_bucket_that_is_deleted_while_an_object_is_put_is_not_there(store: Store) -> None:
    async def work(pool: Pool) -> None:
        async with await psycopg.AsyncConnection.connect(store.url) as other:
            await other.execute("delete from bucket_metainfos")
            waiting = asyncio.ensure_future(objects.commit_inline_object(pool, store.place(), content(), ORIGIN))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await other.commit()
            with pytest.raises(CallerError, match="NoSuchBucket"):
                await waiting

    store.run(work)
    assert store.changes() == []


def test_a_bucket_is_not_deleted_under_an_object_that_is_being_put(store: Store) -> None:
    async def work(pool: Pool) -> None:
        async with await psycopg.AsyncConnection.connect(store.url) as other:
            await other.execute(
                "insert into heads (bucket_id, key, size, etag, content_type, metadata, config, body)"
                " select id, 'key', 0, '', '', '{}', 0, '' from bucket_metainfos"
            )
            waiting = asyncio.ensure_future(buckets.delete(pool, store.project, "bucket"))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await other.commit()
            with pytest.raises(CallerError, match="BucketNotEmpty"):
                await waiting

    store.run(work)
    assert store.get("key").size == 0
