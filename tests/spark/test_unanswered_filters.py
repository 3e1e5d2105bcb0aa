"""A filter without an answer is a no that is counted where its owner sees it, and never the end of a worker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import AsyncConnection
from pyspark.sql import SparkSession

import hostile_cel
from tidings import settings
from tidings.access.projects import create_project
from tidings.api.catalog_subscriptions import _shown
from tidings.changestream import windows
from tidings.changestream.retention import keep_up
from tidings.delivery import cel_batches
from tidings.delivery.figures import Figures
from tidings.delivery.pipeline import Pipeline
from tidings.delivery.stream import Stream
from tidings.delivery.unanswered import Unanswered, merge, write
from tidings.events.positions import START
from tidings.rules import catalog_subscriptions
from tidings.rules.catalog_subscriptions import Subscription

EPOCH = 7
# Not those of other tests: a worker keeps where the numbers of lanes and rules lead.
FIRST_LANE, FIRST_RULE, VERSION = 91_001, 91_001, 910_000
EVENTS = 6
PLAIN = "contentKey.exists_one(part, part == 'sales')"
FAILS = "contentKey.map(part, part)[5] == 'x'"
FILTERS = {"plain": PLAIN, "fails": FAILS, **{f"planted-{length}": text for length, text in hostile_cel.FOUND.items()}}


class Place:
    """A project with subscriptions to its catalog, each with a lane of its own, as if registered before there were prices."""

    def __init__(self, database: psycopg.Connection) -> None:
        self.database = database
        keep_up(database, settings.load().changestream)
        self.project = create_project(database, "hostile")
        database.execute("update stream set epoch = %s, win = 0, seq = 0", [EPOCH])
        for number, (name, text) in enumerate(FILTERS.items()):
            to = f"arn:tidings:log:::{name}"
            database.execute(
                "insert into lanes (id, project, destination) overriding system value values (%s, %s, %s)",
                [FIRST_LANE + number, self.project, to],
            )
            database.execute(
                "insert into catalog_subscriptions (rule, project, name, destination, lane, filter, format)"
                " values (%s, %s, %s, %s, %s, %s, 'nessie')",
                [FIRST_RULE + number, self.project, name, to, FIRST_LANE + number, text],
            )
        database.execute("update rules_version set version = %s", [VERSION])

    def write(self, number: int) -> None:
        said = {
            **{"type": "CONTENT_STORED", "id": f"e{number}", "repositoryId": self.project, "contentType": "ICEBERG_TABLE"},
            "reference": {"type": "BRANCH", "name": "main", "fullName": "/refs/heads/main"},
            "contentKey": {"elements": ["sales", f"t{number}"]},
            "commitMeta": {"message": "a" * 65_536},
        }
        self.database.execute(
            """
            insert into changes (seq, project, bucket, bucket_id, key, event, size, etag, principal, source_ip, request_id,
                                 config, rules, catalog)
            select nextval('change_seq'), %(project)s, %(project)s, '', '/refs/heads/main', 'nessie:CONTENT_STORED', 0, '', '',
                   '', 'r', 0, (select string_agg(rule::text, ',' order by rule) from catalog_subscriptions), %(said)s
            """,
            {"project": self.project, "said": json.dumps(said)},
        )

    def listed(self) -> dict[str, dict[str, Any]]:
        """What the owner gets from the REST resource."""

        async def read() -> list[dict[str, Any]]:
            async with await AsyncConnection.connect(settings.load().database_url) as connection:
                return await catalog_subscriptions.all_of(connection, self.project)

        return {each["name"]: _shown(each) for each in asyncio.run(read())}


@pytest.fixture
def place(spark_database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("TIDINGS_DELIVERY__BUDGET_SECONDS", "60")
    return Place(spark_database)


def test_filters_that_were_registered_without_a_price_end_no_worker_and_their_owner_sees_why_nothing_comes(
    spark: SparkSession, place: Place
) -> None:
    loaded, figures = settings.load(), Figures()
    stream, pipeline = Stream(spark, loaded, figures=figures), Pipeline(spark, loaded, "rounds")
    for number in range(EVENTS):
        place.write(number)
    first = windows.cut(place.database, windows.BEFORE_ALL)
    assert first is not None
    assert stream._round(place.database, pipeline, EPOCH, START, first) is not None

    assert counted(figures, "tidings_lane_delivered") == {str(FIRST_LANE): EVENTS}
    assert place.database.execute("select distinct state from lanes").fetchall() == [("live",)]
    listed = place.listed()
    assert "unanswered" not in listed["plain"]
    assert listed["fails"]["unanswered"]["times"] == EVENTS
    assert "ndex" in listed["fails"]["unanswered"]["reason"]
    assert listed["fails"]["evaluated"] == "batches"
    for length in hostile_cel.FOUND:
        planted = listed[f"planted-{length}"]
        assert planted["unanswered"]["times"] == EVENTS
        assert "MiB, and 8 are the most" in planted["unanswered"]["reason"]
        assert planted["evaluated"] == "refused"
        assert "MiB, and 8 are the most" in planted["because"]

    place.write(EVENTS)
    second = windows.cut(place.database, first)
    assert second is not None
    stream._round(place.database, pipeline, EPOCH, first.end, second)
    assert counted(figures, "tidings_lane_delivered") == {str(FIRST_LANE): EVENTS + 1}
    assert place.listed()["fails"]["unanswered"]["times"] == EVENTS + 1
    unanswered = counted(figures, "tidings_catalog_filter_unanswered")
    assert unanswered == {str(FIRST_RULE + number): EVENTS + 1 for number in range(1, len(FILTERS))}


def counted(figures: Figures, name: str) -> dict[str, float]:
    samples = [each for metric in figures.collect() if metric.name == name for each in metric.samples]
    return {number: each.value for each in samples for number in each.labels.values()}


def test_another_filter_begins_at_nothing_and_the_same_one_does_not(place: Place) -> None:
    write(place.database, [Unanswered(FIRST_RULE, 2, "Index"), Unanswered(FIRST_RULE + 1, 1, "no \0 memory")])
    write(place.database, [Unanswered(FIRST_RULE, 1, "the last"), Unanswered(99, 1, "a subscription that is gone")])
    listed = place.listed()
    assert (listed["plain"]["unanswered"]["times"], listed["plain"]["unanswered"]["reason"]) == (3, "the last")
    assert listed["fails"]["unanswered"]["reason"] == "no  memory"

    async def put(name: str, filter_: str) -> None:
        async with await AsyncConnection.connect(settings.load().database_url) as connection:
            wanted = Subscription(name, f"arn:tidings:log:::{name}", filter=filter_)
            await catalog_subscriptions._store(connection, place.project, wanted)

    asyncio.run(put("plain", PLAIN))
    asyncio.run(put("fails", PLAIN))
    listed = place.listed()
    assert listed["plain"]["unanswered"]["times"] == 3
    assert "unanswered" not in listed["fails"]
    place.database.execute("delete from catalog_subscriptions where name = 'plain'")
    assert place.database.execute("select from unanswered_filters").rowcount == 0


def test_a_change_that_goes_to_several_lanes_of_a_subscription_counts_once() -> None:
    said = json.dumps({"contentKey": {"elements": ["a"]}})
    rows = [
        {"rule": rule, "seq": seq, "filter": FAILS, "project": "p", "catalog": said, "metadata": None}
        for rule, seq in (("1", 1), ("1", 1), ("1", 2), ("2", 2))
    ]
    left, found = cel_batches.matches(pa.RecordBatch.from_pylist(rows), ())
    assert left.num_rows == 0
    assert [(each.rule, each.times) for each in found] == [(1, 2), (2, 1)]


def test_counts_of_several_tasks_are_added_up() -> None:
    found = merge([Unanswered(1, 2, "one"), Unanswered(2, 1, "other"), Unanswered(1, 3, "last")])
    assert found == [Unanswered(1, 5, "last"), Unanswered(2, 1, "other")]
    assert Unanswered.from_text(found[0].to_text()) == found[0]
