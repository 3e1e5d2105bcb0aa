"""Rules in a real PostgreSQL, and the service that puts them there after a test event through a real Pub/Sub server."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import grpc
import psycopg
import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from tidings.access.keys import Principal
from tidings.access.permissions import ACTIONS, Grant
from tidings.db.pool import Pool
from tidings.delivery.settings import DeliverySettings, PubSubSettings
from tidings.errors import CallerError
from tidings.events import names
from tidings.events.arn import PubSubTopic
from tidings.events.keys import encoded_if_different
from tidings.local.pubsub import PubSubServer, running
from tidings.rules import table
from tidings.rules.lookup import Lookup
from tidings.rules.match import matches
from tidings.rules.model import KeyFilter, Rule
from tidings.rules.notification import Notifications
from tidings.rules.settings import BucketEventingSettings
from tidings.settings import Settings
from truth_table import TABLES, Row, random_rows
from waiting import PATIENCE_SECONDS

ONE, OTHER = PubSubTopic("tidings-test", "one"), PubSubTopic("tidings-test", "other")
CREATED, REMOVED = ("s3:ObjectCreated:*",), ("s3:ObjectRemoved:*", "s3:ObjectRemoved:Delete")
T = TypeVar("T")
_numbers = itertools.count(1)


@dataclass
class Bucket:
    """A bucket in a project of its own, and what the tables say about it."""

    url: str
    project: str
    name: str

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql, {"project": self.project, "bucket": self.name})
            return cursor.fetchall() if cursor.description else []

    def run(self, work: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with await AsyncConnection.connect(self.url) as connection:
                return await work(connection)

        return asyncio.run(connected())

    def replace(self, *rules: Rule) -> None:
        self.run(lambda connection: table.replace(connection, self.project, self.name, rules))

    def read(self) -> list[Rule]:
        return list(self.run(lambda connection: table.read(connection, self.project, self.name)).rules)

    def numbers(self) -> dict[str, int]:
        return dict(self.query(f"select config_id, rule {_CONFIGS}"))

    def config(self) -> int:
        [(config,)] = self.query(f"select config {_BUCKET}")
        return int(config)


_BUCKET = """from bucket_metainfos b where name = %(bucket)s
    and project_id = (select id from projects where public_id = %(project)s)"""
_CONFIGS = """from bucket_eventing_configs where bucket_name = %(bucket)s
    and project_id = (select id from projects where public_id = %(project)s)"""


def make_bucket(url: str) -> Bucket:
    bucket = Bucket(url, str(uuid.uuid4()), f"bucket-{next(_numbers)}")
    with psycopg.connect(url) as connection:
        connection.execute(
            "with p as (insert into projects (public_id, name) values (%s, %s) returning id) "
            "insert into bucket_metainfos (project_id, name) select id, %s from p",
            [bucket.project, bucket.project, bucket.name],
        )
    return bucket


@pytest.fixture
def bucket(database_url: str) -> Bucket:
    return make_bucket(database_url)


# the table


def test_what_was_put_is_read_back(bucket: Bucket) -> None:
    rule = Rule("Meine Regel", ONE, REMOVED, KeyFilter("logs/ž\r\n", "🦊"))
    bucket.replace(rule)
    assert bucket.read() == [rule]
    bucket.replace()
    assert bucket.read() == []


def test_a_filter_that_is_not_set_is_null_in_the_table(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, CREATED, KeyFilter(suffix=".txt")))
    assert bucket.query(f"select filter_prefix, filter_suffix, topic_name {_CONFIGS}") == [(None, ".txt", ONE.name)]


def test_a_rule_keeps_its_number_while_its_topic_stays(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, CREATED))
    before, [(created, updated)] = bucket.numbers(), bucket.query(f"select created_at, updated_at {_CONFIGS}")
    bucket.replace(Rule("id", ONE, REMOVED, KeyFilter("logs/")))
    assert bucket.numbers() == before
    assert bucket.read() == [Rule("id", ONE, REMOVED, KeyFilter("logs/"))]
    [(created_again, updated_again)] = bucket.query(f"select created_at, updated_at {_CONFIGS}")
    assert created_again == created
    assert updated_again > updated


def test_a_rule_gets_a_new_number_and_lane_when_its_topic_changes(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, CREATED))
    [(number, lane)] = bucket.query(f"select rule, lane {_CONFIGS}")
    bucket.replace(Rule("id", OTHER, CREATED))
    [(new_number, new_lane)] = bucket.query(f"select rule, lane {_CONFIGS}")
    assert new_number > number
    assert new_lane != lane
    bucket.replace(Rule("id", ONE, CREATED))
    [(third_number, third_lane)] = bucket.query(f"select rule, lane {_CONFIGS}")
    assert third_number > new_number
    assert third_lane == lane


def test_rules_that_are_not_named_any_more_are_deleted_and_the_others_stay(bucket: Bucket) -> None:
    bucket.replace(Rule("a", ONE, CREATED), Rule("b", ONE, REMOVED), Rule("c", OTHER, CREATED))
    before = bucket.numbers()
    bucket.replace(Rule("c", OTHER, REMOVED), Rule("a", OTHER, CREATED), Rule("d", ONE, CREATED))
    after = bucket.numbers()
    assert after.keys() == {"a", "c", "d"}
    assert after["c"] == before["c"]
    assert after["a"] not in before.values()
    assert [rule.config_id for rule in bucket.read()] == ["c", "a", "d"]


def test_the_buckets_of_a_project_share_the_lane_of_a_destination(bucket: Bucket) -> None:
    own = "from projects where public_id = %(project)s"
    bucket.query(f"insert into bucket_metainfos (project_id, name) select id, 'second' {own}")
    second, stranger = Bucket(bucket.url, bucket.project, "second"), make_bucket(bucket.url)
    for each in (bucket, second, stranger):
        each.replace(Rule("id", ONE, CREATED))
    lane, same, another = (each.query(f"select lane {_CONFIGS}")[0][0] for each in (bucket, second, stranger))
    assert lane == same != another
    [found] = bucket.query("select destination, state, win, seq from lanes where project = %(project)s")
    assert found == (ONE.arn, "live", None, None)


def test_a_lane_that_is_behind_is_left_as_it_is(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, CREATED))
    bucket.query("update lanes set state = 'behind', win = 3, seq = 7, error = 'e' where project = %(project)s")
    bucket.replace(Rule("id", ONE, REMOVED))
    bucket.replace()
    assert bucket.query("select state, win, seq, error from lanes where project = %(project)s") == [("behind", 3, 7, "e")]


def test_every_replacement_counts_the_version_of_the_configuration(bucket: Bucket) -> None:
    versions = [bucket.config()]
    for rules in ([Rule("id", ONE, CREATED)], [Rule("id", ONE, CREATED)], []):
        bucket.replace(*rules)
        versions.append(bucket.config())
    assert versions == [0, 1, 2, 3]


def test_a_replacement_that_fails_changes_nothing(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, CREATED))
    before = bucket.numbers()
    impossible = Rule("id", OTHER, CREATED)
    object.__setattr__(impossible, "events", ("\0",))  # PostgreSQL refuses it, in the last statement of all
    with pytest.raises(psycopg.Error):
        bucket.replace(impossible)
    assert (bucket.config(), bucket.numbers(), bucket.read()) == (1, before, [Rule("id", ONE, CREATED)])


def test_rules_go_with_their_bucket(bucket: Bucket) -> None:
    bucket.replace(Rule("id", ONE, CREATED))
    bucket.query(f"delete {_BUCKET}")
    assert bucket.numbers() == {}


@pytest.mark.parametrize("missing", ["bucket", "project"])
def test_a_bucket_that_is_not_there_can_be_neither_read_nor_changed(bucket: Bucket, missing: str) -> None:
    owner = bucket.project if missing == "bucket" else make_bucket(bucket.url).project
    absent = Bucket(bucket.url, owner, bucket.name if missing == "project" else "absent")
    for use in (absent.read, lambda: absent.replace(Rule("id", ONE, CREATED)), absent.replace):
        with pytest.raises(CallerError) as refused:
            use()
        assert (refused.value.code, refused.value.status) == ("NoSuchBucket", 404)
    assert bucket.config() == 0
    assert not absent.query("select from lanes where project = %(project)s")


def test_a_writer_of_a_new_key_does_not_wait_for_a_replacement(bucket: Bucket) -> None:
    async def write_during_a_replacement(connection: AsyncConnection[Any]) -> None:
        async with connection.transaction():
            await table.replace(connection, bucket.project, bucket.name, [Rule("id", ONE, CREATED)])
            async with await AsyncConnection.connect(bucket.url) as writer:
                await writer.execute("set lock_timeout = '2s'")
                await writer.execute(
                    "insert into heads (bucket_id, key, size, etag, content_type, metadata, config, body) "
                    "select id, 'k', 0, '', '', '{}', 0, '' from bucket_metainfos where name = %s",
                    [bucket.name],
                )

    bucket.run(write_during_a_replacement)
    assert bucket.config() == 1


def test_two_that_make_the_same_lanes_do_not_wait_for_each_other_in_a_circle(bucket: Bucket) -> None:
    """Everybody makes them in the order of their names: who waits for the first has not made the second yet."""
    make = "insert into lanes (project, destination) values (%s, %s)"

    async def make_them_too(neighbour: AsyncConnection[Any]) -> None:
        await neighbour.execute(make, [bucket.project, ONE.arn])
        async with await AsyncConnection.connect(bucket.url) as connection:
            rules = [Rule("a", OTHER, CREATED), Rule("b", ONE, CREATED)]
            waiting = asyncio.create_task(table.replace(connection, bucket.project, bucket.name, rules))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await neighbour.execute(make, [bucket.project, OTHER.arn])
            await neighbour.commit()
            await waiting

    bucket.run(make_them_too)
    assert bucket.numbers().keys() == {"a", "b"}


def test_replacements_at_the_same_time_take_turns(bucket: Bucket) -> None:
    async def replace(topics: Sequence[PubSubTopic]) -> None:
        rules = [Rule(topic.topic, topic, CREATED) for topic in topics]
        async with await AsyncConnection.connect(bucket.url) as connection:
            await table.replace(connection, bucket.project, bucket.name, rules)

    async def all_at_once() -> None:
        await asyncio.gather(*(replace(order) for order in [(ONE, OTHER), (OTHER, ONE)] * 5))

    asyncio.run(all_at_once())
    assert bucket.config() == 10
    assert bucket.numbers().keys() == {"one", "other"}


# matching in SQL


def matched(bucket: Bucket, rows: Sequence[Row], literal: bool = False) -> list[str | None]:
    """What the write path would store for each row's change, with whatever rules the bucket has, from table and cache."""
    changes = [
        {
            "wanted": names.wanted_by(row.event),
            "key": row.key,
            "form": None if literal else encoded_if_different(row.key),
            "cached": bucket.run(lambda connection: table.snapshot(connection, bucket.project, bucket.name)),
        }
        for row in rows
    ]
    where, statement = {"project": bucket.project, "bucket": bucket.name}, f"select {table.MATCHED}, {table.MATCHED_IN_CACHE}"
    with psycopg.connect(bucket.url) as connection:
        found = [connection.execute(f"{statement} {_BUCKET}", where | change).fetchall()[0] for change in changes]
    assert all(from_table == from_cache for from_table, from_cache in found)
    return [from_table for from_table, _ in found]


def put_rule_of_each(bucket: Bucket, rows: Sequence[Row]) -> list[int]:
    rules = [Rule(str(n), ONE, row.events, KeyFilter(row.prefix, row.suffix)) for n, row in enumerate(rows)]
    bucket.replace(*rules)
    numbers = bucket.numbers()
    return [numbers[rule.config_id] for rule in rules]


@pytest.mark.parametrize("literal", TABLES)
def test_the_sql_answers_as_the_truth_table_says(bucket: Bucket, literal: bool) -> None:
    rows = TABLES[literal]
    numbers = put_rule_of_each(bucket, rows)
    wrong = [
        row.question
        for row, number, found in zip(rows, numbers, matched(bucket, rows, literal), strict=True)
        if (str(number) in (found or "").split(",")) is not row.expected
    ]
    assert not wrong


def test_the_matched_rules_are_listed_in_order_and_none_is_null(bucket: Bucket) -> None:
    bucket.replace(Rule("b", ONE, CREATED), Rule("a", ONE, CREATED), Rule("c", ONE, REMOVED))
    numbers = bucket.numbers()
    created, removed, unknown = matched(bucket, [Row("k"), Row("k", event=names.DELETE), Row("k", event="ObjectAcl:Put")])
    assert created == f"{numbers['b']},{numbers['a']}"
    assert (removed, unknown) == (str(numbers["c"]), None)


@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller seed is not a simpler batch
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # one database will do: each example makes its own bucket
)
@given(st.integers(0, 2**32), st.booleans())
def test_the_sql_and_the_python_matcher_agree_on_random_rows(database_url: str, seed: int, literal: bool) -> None:
    bucket, rows = make_bucket(database_url), list(random_rows(seed, 60))
    numbers = put_rule_of_each(bucket, rows)
    for change, found in zip(rows, matched(bucket, rows, literal), strict=True):
        expected = [
            number
            for rule, number in zip(rows, numbers, strict=True)
            if matches(rule.events, rule.prefix, rule.suffix, event=change.event, key=change.key, literal=literal)
        ]
        assert found == (",".join(map(str, expected)) or None), change.question


# the service


@pytest.fixture(scope="module")
def server() -> Iterator[PubSubServer]:
    with running() as server:
        yield server


@pytest.fixture
def topic(server: PubSubServer) -> Iterator[PubSubTopic]:
    """A topic that exists, with a subscription of the same name."""
    made = PubSubTopic("tidings-test", f"topic-{next(_numbers)}")
    with grpc.insecure_channel(server.address) as channel:
        PublisherClient(transport=PublisherGrpcTransport(channel=channel)).create_topic(name=made.name)
        subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        subscriber.create_subscription(name=made.name.replace("/topics/", "/subscriptions/"), topic=made.name)
    yield made
    server.set_fault("*", None)


def received(server: PubSubServer, topic: PubSubTopic) -> list[dict[str, str]]:
    with grpc.insecure_channel(server.address) as channel:
        subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        name = topic.name.replace("/topics/", "/subscriptions/")
        answer = subscriber.pull(subscription=name, max_messages=10)
    return [json.loads(message.message.data) for message in answer.received_messages]


IDS = {"request_id": "4F5A6B", "host_id": "host"}


def service(pool: Pool, server: PubSubServer) -> Notifications:
    chosen = Settings(
        delivery=DeliverySettings(publish_timeout_seconds=0.5),
        pubsub=PubSubSettings(emulator_host=server.address),
        bucket_eventing=BucketEventingSettings(projects="*"),
    )
    return Notifications(chosen, pool, Lookup(chosen.bucket_eventing, pool))


def caller(bucket: Bucket) -> Principal:
    return Principal("KEY", bucket.project, Grant(frozenset(ACTIONS)))


async def put(pool: Pool, bucket: Bucket, server: PubSubServer, rules: Sequence[Rule]) -> None:
    async def read() -> Sequence[Rule]:
        return rules

    await service(pool, server).put(caller(bucket), bucket.name, read, **IDS)


def put_now(bucket: Bucket, server: PubSubServer, *rules: Rule) -> None:
    async def pooled() -> None:
        async with AsyncConnectionPool(bucket.url, min_size=1, max_size=1, open=False) as pool:
            await put(pool, bucket, server, rules)

    asyncio.run(pooled())


def test_a_destination_gets_a_test_event_before_the_configuration_is_taken(
    bucket: Bucket, server: PubSubServer, topic: PubSubTopic
) -> None:
    rule = Rule("id", topic, CREATED)
    put_now(bucket, server, rule)
    assert bucket.read() == [rule]
    [event] = received(server, topic)
    time = event.pop("Time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(time)) < timedelta(minutes=1)
    said = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": bucket.name}
    assert event == {**said, "RequestId": IDS["request_id"], "HostId": IDS["host_id"]}


def test_a_destination_gets_one_test_event_however_many_rules_name_it(
    bucket: Bucket, server: PubSubServer, topic: PubSubTopic
) -> None:
    put_now(bucket, server, Rule("a", topic, CREATED), Rule("b", topic, REMOVED))
    assert len(received(server, topic)) == 1


def test_an_empty_configuration_deletes_what_there_was_and_sends_nothing(
    bucket: Bucket, server: PubSubServer, topic: PubSubTopic
) -> None:
    bucket.replace(Rule("id", topic, CREATED))
    put_now(bucket, server)
    assert bucket.read() == []
    assert topic.name not in server.stats()


ANSWERS = {
    "not_found": "NOT_FOUND",
    "permission_denied": "PERMISSION_DENIED",
    "unavailable": "UNAVAILABLE",
    "hang": "no answer from Pub/Sub within 0.5 s",
}


@pytest.mark.parametrize("fault", ANSWERS)
def test_a_destination_that_does_not_take_the_test_event_leaves_the_old_configuration(
    bucket: Bucket, server: PubSubServer, topic: PubSubTopic, fault: str
) -> None:
    old = Rule("old", ONE, REMOVED)
    bucket.replace(old)
    server.set_fault(topic.name, fault)
    with pytest.raises(CallerError) as refused:
        put_now(bucket, server, Rule("new", topic, CREATED))
    assert refused.value.code == "InvalidArgument"
    assert refused.value.elements == {"ArgumentName": "Topic", "ArgumentValue": topic.arn}
    assert "Unable to validate the following destination configurations: " in refused.value.message
    assert topic.arn in refused.value.message
    assert ANSWERS[fault] in refused.value.message
    assert bucket.read() == [old]


def test_nobody_gets_a_test_event_for_a_bucket_that_is_not_there(
    bucket: Bucket, server: PubSubServer, topic: PubSubTopic
) -> None:
    absent = Bucket(bucket.url, bucket.project, "absent")
    with pytest.raises(CallerError, match="NoSuchBucket"):
        put_now(absent, server, Rule("id", topic, CREATED))
    assert topic.name not in server.stats()


def test_no_connection_is_held_while_a_destination_is_waited_for(
    bucket: Bucket, server: PubSubServer, topic: PubSubTopic
) -> None:
    server.set_fault(topic.name, "hang")

    async def ask_meanwhile() -> None:
        async with AsyncConnectionPool(bucket.url, min_size=1, max_size=1, timeout=PATIENCE_SECONDS, open=False) as pool:
            waiting = asyncio.create_task(put(pool, bucket, server, [Rule("id", topic, CREATED)]))
            await asyncio.sleep(0.2)
            assert (await service(pool, server).get(caller(bucket), bucket.name)).rules == []
            assert not waiting.done()
            with pytest.raises(CallerError):
                await waiting

    asyncio.run(ask_meanwhile())
