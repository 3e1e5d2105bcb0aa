"""Where a change goes: rules, lanes, subscriptions and formats, as a worker looks them up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import writers
from tidings.delivery import lanes, lookup, render
from tidings.delivery.lookup import Moment
from tidings.events import arn
from tidings.events.formats import FORMAT_TAG
from tidings.rules import table
from tidings.rules.model import Rule
from tidings.settings import Settings

SETTINGS = Settings()
EPOCH = 7


@pytest.fixture
def writer(database_url: str) -> Iterator[writers.Writer]:
    with writers.writer_to(database_url) as writer, psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("update stream set epoch = %s, win = 3, seq = 30", [EPOCH])
        yield writer


def put_rules(writer: writers.Writer, *destinations: str) -> None:
    async def put() -> None:
        async with await psycopg.AsyncConnection.connect(writer.url, autocommit=True) as connection:
            rules = [Rule(f"rule-{i}", arn.parse(each), writers.EVERYTHING) for i, each in enumerate(destinations)]
            await table.replace(connection, writer.project, writer.bucket, rules)

    writer.run(put())


def found(database: psycopg.Connection, moment: Moment | None = None, settings: Settings = SETTINGS) -> list[dict[str, Any]]:
    numbers = [str(row[0]) for row in database.execute("select rule from bucket_eventing_configs order by rule").fetchall()]
    rows = lookup.found(database, numbers, moment or lanes.standing(database).moment, settings)
    assert {row["rule"] for row in rows} == set(numbers), "a rule that is there is known, though it may have no lane"
    return [row for row in rows if row["lane"] is not None]


def test_a_lane_that_was_made_after_the_round_began_is_not_served_by_it(
    writer: writers.Writer, database: psycopg.Connection
) -> None:
    before = lanes.standing(database).moment
    put_rules(writer, "arn:gcp:pubsub::my-project:new")
    after = lanes.standing(database).moment
    assert after.version > before.version
    assert found(database, before) == []
    assert len(found(database, after)) == 1


def subscribe(database: psycopg.Connection, topic: str, name: str, raw: bool = False, protocol: str = "https") -> int:
    """A confirmed subscription, as topics/ makes it."""
    row = database.execute(
        "insert into lanes (project, destination, state, win, seq)"
        " select 'p', %s, 'behind', win, seq from stream where name = 'main' returning id",
        [f"{topic}:{name}"],
    ).fetchone()
    assert row is not None
    database.execute(
        "insert into subscriptions (arn, topic, project, protocol, endpoint, raw, lane) values (%s, %s, 'p', %s, %s, %s, %s)",
        [f"{topic}:{name}", topic, protocol, name, raw, row[0]],
    )
    return int(row[0])


def test_a_rule_to_a_topic_leads_to_every_confirmed_subscription(writer: writers.Writer, database: psycopg.Connection) -> None:
    topic = f"arn:aws:sns:us-east-1:{writer.project}:t"
    database.execute("insert into topics (arn, project) values (%s, %s)", [topic, writer.project])
    put_rules(writer, topic)
    assert found(database) == []
    database.execute(
        "insert into subscriptions (arn, topic, project, protocol, endpoint) values ('x', %s, 'p', 'https', 'unconfirmed')",
        [topic],
    )
    before = lanes.standing(database).moment
    one, other = subscribe(database, topic, "one"), subscribe(database, topic, "other")
    assert found(database, before) == []
    assert [row["lane"] for row in found(database)] == [one, other]
    assert {lane.id: lane.cursor for lane in lanes.standing(database).lanes} == {one: (3, 30), other: (3, 30)}
    assert lanes.close_unused(database, EPOCH) == [1], "the topic of the first rule; subscriptions keep their lanes"

    database.execute("delete from subscriptions where arn = %s", [f"{topic}:one"])
    assert [row["lane"] for row in found(database)] == [other]
    assert lanes.close_unused(database, EPOCH) == [one]
    log = database.execute("select what, from_win, from_seq from lane_log where lane = %s", [one]).fetchall()
    assert log == [("closed", 3, 30)]


def test_the_format_is_chosen_by_tag_by_project_or_by_transport(writer: writers.Writer, database: psycopg.Connection) -> None:
    project = writer.project
    topic, queue = f"arn:aws:sns:us-east-1:{project}:t", f"arn:aws:sqs:us-east-1:{project}:q"
    database.execute("insert into topics (arn, project) values (%s, %s)", [topic, project])
    database.execute("insert into queues (project, name) values (%s, 'q')", [project])
    subscribe(database, topic, "enveloped")
    subscribe(database, topic, "raw", raw=True)
    subscribe(database, topic, "queue", raw=True, protocol="sqs")
    put_rules(writer, "arn:gcp:pubsub::my-project:topic", "arn:tidings:kafka::main:t", topic, queue, "arn:tidings:log:::l")

    def formats(settings: Settings = SETTINGS) -> list[str]:
        rows = found(database, settings=settings)
        assert {row["format"] for row in rows} <= set(lookup.formats_in_use(database, settings)), "or the plan would lack one"
        return [row["format"] for row in rows]

    assert formats() == ["s3", "cos+headers", "s3", "s3+headers", "s3", "s3", "s3"]
    version = lanes.standing(database).moment.version
    for change, values in (
        ("update topics set tags = %s", ['{"event-format": "cloudevents"}']),
        ("update queues set tags = %s", ['{"event-format": "r2", "team": "x"}']),
        ("update subscriptions set raw = true where endpoint = %s", ["enveloped"]),
    ):
        database.execute(change, values)
        assert lanes.standing(database).moment.version > version, "workers keep what they know for one version"
        version = lanes.standing(database).moment.version
    by_project = Settings(formats={"pubsub_formats": {project: "r2", "*": "cloudevents"}})
    assert formats(by_project) == [
        "r2",
        "cos+headers",
        "cloudevents+headers",
        "cloudevents+headers",
        "cloudevents",
        "r2",
        "s3",
    ]


@pytest.mark.parametrize("chosen", ["typo", "nessie", "nessie_cloudevents", "", "s3+headers", "__init__"])
def test_a_tag_that_nobody_may_choose_counts_for_nothing_and_the_plan_can_be_made(
    writer: writers.Writer, database: psycopg.Connection, chosen: str
) -> None:
    queue, topic = f"arn:aws:sqs:us-east-1:{writer.project}:q", f"arn:aws:sns:us-east-1:{writer.project}:t"
    database.execute("insert into topics (arn, project) values (%s, %s)", [topic, writer.project])
    database.execute("insert into queues (project, name) values (%s, 'q')", [writer.project])
    for table_ in ("queues", "topics"):
        database.execute(f"update {table_} set tags = %s".encode(), [json.dumps({FORMAT_TAG: chosen})])
    subscribe(database, topic, "raw", raw=True)
    put_rules(writer, queue, topic)
    assert sorted(row["format"] for row in found(database)) == ["s3", "s3+headers"]
    in_use = lookup.formats_in_use(database, SETTINGS)
    assert in_use == ["s3", "s3+headers"]
    render.details_of(in_use)


def test_a_catalog_s_rule_keeps_its_own_format_whatever_the_tag_says(
    writer: writers.Writer, database: psycopg.Connection
) -> None:
    tags = json.dumps({FORMAT_TAG: "r2"})
    database.execute("insert into queues (project, name, tags) values (%s, 'q', %s)", [writer.project, tags])
    put_rules(writer, f"arn:aws:sqs:us-east-1:{writer.project}:q")
    [row] = found(database)
    made = database.execute(
        "insert into catalog_subscriptions (project, name, destination, lane) values (%s, 'c', 'x', %s) returning rule",
        [writer.project, row["lane"]],
    ).fetchone()
    assert made is not None
    [of_catalog] = lookup.found(database, [str(made[0])], lanes.standing(database).moment, SETTINGS)
    assert (row["format"], of_catalog["format"]) == ("r2", "nessie")
    assert lookup.formats_in_use(database, SETTINGS) == ["nessie", "r2", "s3"]


def test_a_closed_lane_is_opened_again_by_the_next_rule_and_is_new_to_rounds(
    writer: writers.Writer, database: psycopg.Connection
) -> None:
    [was] = [row["lane"] for row in found(database)]
    put_rules(writer)
    failing = (
        "attempts = 5, slow = true, next_try = now() + interval '1 hour', error = 'down', state = 'behind', win = 1, seq = 1"
    )
    database.execute(f"update lanes set {failing} where id = %s".encode(), [was])
    assert lanes.close_unused(database, EPOCH) == [was]
    database.execute("update lanes set error = 'left over' where id = %s", [was])
    before = lanes.standing(database).moment
    put_rules(writer, writers.TOPIC.arn)
    assert found(database, before) == []
    assert [row["lane"] for row in found(database)] == [was]
    assert database.execute("select state, win from lanes where id = %s", [was]).fetchone() == ("live", None)
    began = "select began_win, began_seq from lanes where id = %s"
    assert database.execute(began, [was]).fetchone() == (3, 30), "what it was not sent while it was closed is not its affair"
    database.execute("update stream set win = 4")
    put_rules(writer, writers.TOPIC.arn)
    assert database.execute(began, [was]).fetchone() == (3, 30)
    fresh = ("live", None, None, 0, False, None, None)
    columns = "state, win, seq, attempts, slow, next_try, error"
    now = database.execute(f"select {columns} from lanes where id = %s".encode(), [was]).fetchone()
    assert now == fresh
    database.execute(f"update lanes set {failing} where id = %s".encode(), [was])
    put_rules(writer, writers.TOPIC.arn, "arn:tidings:log:::l")
    kept = database.execute("select state, attempts, slow, error, next_try > now() from lanes where id = %s", [was]).fetchone()
    assert kept == ("behind", 5, True, "down", True), "a lane that is open belongs to delivery"
    assert lanes.close_unused(database, EPOCH) == []


def test_a_lane_that_gets_a_rule_while_it_is_being_closed_stays_open(
    writer: writers.Writer, database: psycopg.Connection
) -> None:
    put_rules(writer)
    with psycopg.connect(writer.url) as tenant:
        # as a PUT does: the lane is locked before its rule is there
        tenant.execute("update lanes set since = since where id = 1")
        database.execute("set lock_timeout = '300ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            lanes.close_unused(database, EPOCH)
        tenant.rollback()
    put_rules(writer, writers.TOPIC.arn)
    assert lanes.close_unused(database, EPOCH) == []
