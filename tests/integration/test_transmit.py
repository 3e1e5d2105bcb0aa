"""Which changes are kept and which rules they name: the steps of seed 000, "TransmitEvent Integration", in a real database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from tidings.access.projects import create_project
from tidings.changestream import reader, windows
from tidings.db.pool import Pool, make_pool
from tidings.errors import CallerError
from tidings.events.arn import PubSubTopic
from tidings.events.positions import START
from tidings.events.profiles import STORJ
from tidings.rules import table
from tidings.rules.lookup import Lookup
from tidings.rules.model import Eventing, KeyFilter, Rule
from tidings.rules.settings import BucketEventingSettings
from tidings.store import buckets, deletes, moves, objects, uploads
from tidings.store.model import Content, Origin, Place, Segment
from waiting import until

ONE, OTHER = PubSubTopic("tidings-test", "one"), PubSubTopic("tidings-test", "other")
CREATED, REMOVED = ("s3:ObjectCreated:*",), ("s3:ObjectRemoved:*",)
ORIGIN = Origin("KEY", "192.0.2.1", "0123456789ABCDEF")
HELLO = Content(5, "e", "text/plain", {}, b"hello")
PASSWORD = "only-for-tests"


@dataclass
class Bucket:
    url: str
    project: str
    sql: psycopg.Connection
    name: str = "bucket"

    def run(self, work: Callable[[Pool], Any], url: str | None = None) -> Any:
        async def opened() -> Any:
            async with make_pool(url or self.url, 4) as pool:
                return await work(pool)

        return asyncio.run(opened())

    def replace(self, *rules: Rule, expected: list[str] | None = None) -> str:
        async def work(connection: AsyncConnection[Any]) -> str:
            return await table.replace(connection, self.project, self.name, rules, expected)

        return str(self.run(lambda pool: _with(pool, work)))

    def put(self, key: str, eventing: Eventing = Eventing(), url: str | None = None) -> None:  # noqa: B008
        place = Place(self.project, self.name, key)
        self.run(lambda pool: objects.commit_inline_object(pool, place, HELLO, ORIGIN._replace(eventing=eventing)), url)

    def changes(self, columns: str = "event, key, rules") -> list[tuple[Any, ...]]:
        return self.sql.execute(f"select {columns} from changes order by seq".encode()).fetchall()

    def rule(self, config_id: str = "id") -> str:
        [(number,)] = self.sql.execute(
            "select rule::text from bucket_eventing_configs where config_id = %s and bucket_name = %s", [config_id, self.name]
        ).fetchall()
        return str(number)

    def read(self) -> list[dict[str, Any]]:
        pieces = reader.slices(self.sql, START, windows.latest(self.sql))
        return [row for batch in reader.read(self.url, pieces, 0, 1) for row in batch.to_pylist()]


async def _with(pool: Pool, work: Callable[[AsyncConnection[Any]], Any]) -> Any:
    async with pool.connection() as connection:
        return await work(connection)


@pytest.fixture
def bucket(database_url: str, database: psycopg.Connection) -> Bucket:
    made = Bucket(database_url, create_project(database, "one"), database)
    made.run(lambda pool: buckets.create(pool, made.project, made.name))
    return made


# steps 1 and 2: the gate


def test_of_a_project_without_eventing_no_change_is_kept(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, (*CREATED, *REMOVED)))

    async def work(pool: Pool) -> None:
        there = Place(bucket.project, bucket.name, "a")
        for projects in ("", "4d0452d9-395d-498d-927f-a54a6544764e", f"{bucket.project}"):
            lookup = Lookup(BucketEventingSettings(projects=projects), pool)
            origin = ORIGIN._replace(eventing=await lookup.begin(bucket.project, bucket.name))
            await objects.commit_inline_object(pool, there, HELLO, origin)
            await moves.finish_move_object(pool, there, Place(bucket.project, bucket.name, "b"), origin)
            await deletes.delete_object_last_committed(pool, Place(bucket.project, bucket.name, "b"), origin)

    bucket.run(work)
    number = bucket.rule()
    assert bucket.changes() == [  # the third round's
        ("ObjectCreated:Put", "a", number),
        ("ObjectCreated:Copy", "b", number),
        ("ObjectRemoved:Delete", "a", number),
        ("ObjectRemoved:Delete", "b", number),
    ]


# steps 4 to 8


def test_a_change_that_no_rule_wants_is_kept_without_rules(bucket: Bucket) -> None:
    bucket.put("before")
    bucket.replace(Rule("id", ONE, REMOVED), Rule("logs", ONE, CREATED, KeyFilter("logs/")))
    bucket.put("data/x")
    bucket.put("logs/x")
    assert bucket.changes("key, rules") == [("before", None), ("data/x", None), ("logs/x", bucket.rule("logs"))]
    assert [row["key"] for row in bucket.read()] == ["logs/x"]


def test_a_move_is_judged_in_both_its_places(bucket: Bucket) -> None:
    bucket.run(lambda pool: buckets.create(pool, bucket.project, "second"))
    second = Bucket(bucket.url, bucket.project, bucket.sql, "second")
    bucket.replace(Rule("old place", ONE, REMOVED))
    second.replace(Rule("new place", OTHER, ("s3:ObjectCreated:Copy",)))
    bucket.put("a")
    old, new = Place(bucket.project, bucket.name, "a"), Place(bucket.project, "second", "b")
    bucket.run(lambda pool: moves.finish_move_object(pool, old, new, ORIGIN))
    assert bucket.changes("event, bucket, rules")[1:] == [
        ("ObjectCreated:Copy", "second", second.rule("new place")),
        ("ObjectRemoved:Delete", "bucket", bucket.rule("old place")),
    ]


@pytest.mark.parametrize("profile", ["aws", "storj"])
def test_a_multipart_upload_has_a_name_of_its_own_unless_the_profile_says_put(bucket: Bucket, profile: str) -> None:
    eventing = Eventing(profile=STORJ) if profile == "storj" else Eventing()
    bucket.replace(Rule("put", ONE, ("s3:ObjectCreated:Put",)), Rule("all", OTHER, CREATED))

    async def work(pool: Pool) -> None:
        place = Place(bucket.project, bucket.name, "large")
        upload = await uploads.create(pool, place, Content(0, "", "text/plain", {}, b""), None, False)
        etag = "0" * 32
        soon = datetime.now(UTC) + timedelta(hours=1)
        await uploads.put_part(pool, place, upload, uploads.Wanted(1, etag), Segment("blob", 5), soon)
        origin = ORIGIN._replace(eventing=eventing)
        await uploads.complete(pool, place, upload, [uploads.Wanted(1, etag)], origin)

    bucket.run(work)
    [(event, rules)] = bucket.changes("event, rules")
    both = f"{bucket.rule('put')},{bucket.rule('all')}"
    expected = {"aws": ("ObjectCreated:CompleteMultipartUpload", bucket.rule("all")), "storj": ("ObjectCreated:Put", both)}
    assert (event, rules) == expected[profile]


def test_under_the_seed_s_profile_a_filter_speaks_of_the_literal_key_only(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, CREATED, KeyFilter("a+b")))
    bucket.put("a b")
    bucket.put("a b", Eventing(profile=STORJ))
    assert bucket.changes("rules") == [(bucket.rule(),), (None,)]


# step 3: the rules cannot be read


@pytest.fixture
def restricted(bucket: Bucket) -> Iterator[str]:
    """A URL of a role that may do everything but read the rules."""
    role = "without_rules"
    bucket.sql.execute(f"create role {role} login password '{PASSWORD}'".encode())
    bucket.sql.execute(f"grant all on all tables in schema public to {role}".encode())
    bucket.sql.execute(f"grant all on all sequences in schema public to {role}".encode())
    bucket.sql.execute(f"revoke select on bucket_eventing_configs from {role}".encode())
    try:
        yield psycopg.conninfo.make_conninfo(bucket.url, user=role, password=PASSWORD)
    finally:
        bucket.sql.execute(f"drop owned by {role}".encode())
        bucket.sql.execute(f"drop role {role}".encode())


def test_without_the_right_to_read_the_rules_every_operation_succeeds_and_is_transmitted(
    bucket: Bucket, restricted: str, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.replace(Rule("id", ONE, CREATED), Rule("logs", OTHER, REMOVED, KeyFilter("logs/")))
    with psycopg.connect(restricted) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("select from bucket_eventing_configs")

    async def work(pool: Pool) -> None:
        a, b = (Place(bucket.project, bucket.name, key) for key in ("a", "b"))
        await objects.commit_inline_object(pool, a, HELLO, ORIGIN)
        await moves.finish_move_object(pool, a, b, ORIGIN)
        await deletes.delete_object_last_committed(pool, b, ORIGIN)
        await objects.commit_inline_object(pool, a, HELLO, ORIGIN)
        await deletes.delete_objects(pool, bucket.project, bucket.name, [("a", None), ("b", None)], ORIGIN)

    with caplog.at_level(logging.ERROR):
        bucket.run(work, restricted)
    assert bucket.changes() == [
        ("ObjectCreated:Put", "a", "*"),
        ("ObjectCreated:Copy", "b", "*"),
        ("ObjectRemoved:Delete", "a", "*"),
        ("ObjectRemoved:Delete", "b", "*"),
        ("ObjectCreated:Put", "a", "*"),
        ("ObjectRemoved:Delete", "a", "*"),
    ]
    assert len([record for record in caplog.records if "permission denied" in record.getMessage()]) == 5
    # the stream then reads them as meant for every rule of the bucket, which it judges again
    assert {row["rules"] for row in bucket.read()} == {f"{bucket.rule('id')},{bucket.rule('logs')}"}


def test_what_the_caller_did_wrong_is_still_the_caller_s_when_the_rules_cannot_be_read(bucket: Bucket, restricted: str) -> None:
    place = Place(bucket.project, "absent", "a")
    with pytest.raises(CallerError, match="NoSuchBucket"):
        bucket.run(lambda pool: objects.commit_inline_object(pool, place, HELLO, ORIGIN), restricted)
    assert bucket.changes() == []


UNREAD = Eventing(source="unread")


def test_a_change_whose_rules_were_not_read_is_for_no_rule_that_came_later(bucket: Bucket) -> None:
    bucket.replace(Rule("old", ONE, CREATED))
    bucket.put("a", UNREAD)
    bucket.replace(Rule("old", ONE, REMOVED), Rule("new", OTHER, CREATED))
    bucket.put("b", UNREAD)
    assert [row["rules"] for row in bucket.read()] == [bucket.rule("old"), f"{bucket.rule('old')},{bucket.rule('new')}"]


def test_a_change_whose_rules_were_not_read_and_are_gone_is_for_a_rule_that_is_none(bucket: Bucket) -> None:
    bucket.put("a", UNREAD)
    assert [row["rules"] for row in bucket.read()] == ["0"]


def test_the_rules_of_a_bucket_made_again_see_nothing_of_the_one_before(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, CREATED))
    bucket.put("a", UNREAD)
    bucket.run(lambda pool: deletes.delete_object_last_committed(pool, Place(bucket.project, bucket.name, "a"), ORIGIN))
    bucket.run(lambda pool: buckets.delete(pool, bucket.project, bucket.name))
    bucket.run(lambda pool: buckets.create(pool, bucket.project, bucket.name))
    assert bucket.sql.execute("select from bucket_eventing_configs").fetchall() == []
    bucket.replace(Rule("id", ONE, CREATED))
    assert {row["rules"] for row in bucket.read()} == {"0"}


def test_a_lane_that_catches_up_reads_what_was_transmitted_without_rules(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, CREATED))
    bucket.put("a", UNREAD)
    bucket.put("b")
    pieces = reader.slices(bucket.sql, START, windows.latest(bucket.sql), [int(bucket.rule())])
    found = [row["key"] for batch in reader.read(bucket.url, pieces, 0, 1) for row in batch.to_pylist()]
    assert found == ["a", "b"]


# the cache: what it says counts only where it is as new as the bucket


def test_an_old_answer_of_the_cache_is_found_out(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, CREATED))
    old = bucket.run(lambda pool: _with(pool, lambda c: table.snapshot(c, bucket.project, bucket.name)))
    cached = Eventing(source="cache", cached=old)
    bucket.put("a", cached)
    bucket.replace(Rule("id", ONE, REMOVED))
    bucket.put("b", cached)
    bucket.replace(Rule("id", ONE, REMOVED), Rule("new", ONE, CREATED))
    bucket.put("c", cached)
    assert bucket.changes("key, rules") == [("a", bucket.rule()), ("b", None), ("c", bucket.rule("new"))]


NONSENSE = (
    *("", "nonsense", "[]", "{}", "null", '{"bucket": "b", "config": 1}'),
    '{"bucket": 1, "config": 1, "rules": []}',
    '{"bucket": "b", "config": "1", "rules": []}',
    '{"bucket": "b", "config": 1, "rules": 5}',
    '{"bucket": "b", "config": 1, "rules": [1]}',
    '{"bucket": "b", "config": 1, "rules": [{"rule": "x"}]}',
    '{"bucket": "b", "config": 1, "rules": [{"rule": 1, "events": 2}]}',
)


@pytest.mark.parametrize("document", NONSENSE)
def test_nonsense_in_the_cache_is_no_answer_and_the_database_is_asked(bucket: Bucket, document: str) -> None:
    bucket.replace(Rule("id", ONE, CREATED))
    cache = Memory(document)

    async def work(pool: Pool) -> None:
        lookup = Lookup(BucketEventingSettings(projects="*"), pool, cache)
        origin = ORIGIN._replace(eventing=await lookup.begin(bucket.project, bucket.name))
        await objects.commit_inline_object(pool, Place(bucket.project, bucket.name, "a"), HELLO, origin)

    bucket.run(work)
    assert bucket.changes("rules") == [(bucket.rule(),)]
    assert '"rules"' in cache.document, "a good answer has taken its place"


class Memory:
    """A cache that holds one document."""

    def __init__(self, document: str) -> None:
        self.document = document

    async def get(self, project: str, bucket: str) -> str | None:  # noqa: ARG002
        return self.document

    async def put(self, project: str, bucket: str, document: str) -> None:  # noqa: ARG002
        self.document = document

    async def forget(self, project: str, bucket: str) -> bool:  # noqa: ARG002
        return True


def test_what_the_cache_says_is_used_where_it_is_new(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, CREATED))
    said = bucket.run(lambda pool: _with(pool, lambda c: table.snapshot(c, bucket.project, bucket.name)))
    bucket.put("a", Eventing(source="cache", cached=said.replace(f'"rule" : {bucket.rule()}', '"rule" : 4711')))
    assert bucket.changes("rules") == [("4711",)]


# a change on its way to the default partition


def test_a_partition_that_is_made_under_a_change_fails_no_write(bucket: Bucket) -> None:
    bucket.put("before")
    bucket.sql.execute("create table made (like changes including all)")
    bucket.sql.execute("delete from changes_default")
    with psycopg.connect(bucket.url) as other, ThreadPoolExecutor(1) as thread:
        other.execute("alter table changes attach partition made for values from ('2000-01-01') to ('2100-01-01')")
        writing = thread.submit(bucket.put, "meanwhile")
        # PostgreSQL shows the first thousand characters of what it runs: `insert into changes` comes later.
        waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%insert into heads%'"
        until(lambda: bucket.sql.execute(waiting).rowcount, "the write waits for the partition")
        other.commit()
        writing.result()
    assert bucket.changes("key") == [("meanwhile",)]


# entity tags and former versions


def test_a_configuration_that_somebody_else_changed_is_not_overwritten(bucket: Bucket) -> None:
    first = bucket.replace(Rule("id", ONE, CREATED))
    second = bucket.replace(Rule("id", ONE, REMOVED), expected=[first])
    with pytest.raises(CallerError, match="PreconditionFailed"):
        bucket.replace(expected=[first])
    assert bucket.rule()
    back = bucket.replace(Rule("id", ONE, CREATED), expected=["other", second])
    assert len({first, second, back}) == 3, "what was changed back is another configuration"


def test_what_a_rule_said_before_is_kept_with_its_time(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, CREATED, KeyFilter("a/")))
    number = int(bucket.rule())
    bucket.replace(Rule("id", ONE, CREATED, KeyFilter("a/")))  # says the same
    bucket.replace(Rule("id", ONE, REMOVED))
    bucket.replace(Rule("id", OTHER, REMOVED))
    other = int(bucket.rule())
    bucket.run(lambda pool: buckets.delete(pool, bucket.project, bucket.name))
    kept = bucket.sql.execute(
        "select rule, config, config_id, topic_name, events, filter_prefix, ended_at >= began_at, project from rule_versions"
        " order by rule, config"
    ).fetchall()
    assert kept == [
        (number, 1, "id", ONE.name, list(CREATED), "a/", True, bucket.project),
        (number, 3, "id", ONE.name, list(REMOVED), None, True, bucket.project),
        (other, 4, "id", OTHER.name, list(REMOVED), None, True, bucket.project),
    ]
