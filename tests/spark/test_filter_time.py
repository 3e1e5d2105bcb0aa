"""Filters take time of a round; those of one project take no more than their share, and nothing is lost by it."""

from __future__ import annotations

import json

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidings import settings
from tidings.access.projects import create_project
from tidings.cel.expression import Expression
from tidings.changestream import windows
from tidings.changestream.retention import keep_up
from tidings.delivery import cel_batches
from tidings.delivery.cel_batches import UNREADY, FilterTime
from tidings.delivery.figures import Figures
from tidings.delivery.ownership import Owner
from tidings.delivery.pipeline import Pipeline
from tidings.delivery.stream import Stream
from tidings.events.positions import START

EPOCH = 7
# Not those of other tests: a worker keeps where the numbers of lanes and rules lead.
FIRST, VERSION = 92_001, 920_000
DEAR = "[{0}].map(x, [{0}].map(y, y)).size() != {1}"
LANES, EVENTS = 12, 8


def dear(number: int) -> str:
    """It wants everything, and no two have the same text."""
    return DEAR.format(",".join(map(str, range(70))), number)


class Place:
    """A project whose subscriptions have dear filters, and another with a single subscription that has none."""

    def __init__(self, database: psycopg.Connection) -> None:
        self.database = database
        keep_up(database, settings.load().changestream)
        self.dear, self.quiet = (create_project(database, name) for name in ("dear", "quiet"))
        database.execute("update stream set epoch = %s, win = 0, seq = 0", [EPOCH])
        for number in range(LANES):
            self._subscribe(number, self.dear, dear(number))
        self._subscribe(LANES, self.quiet, None)
        database.execute("update rules_version set version = %s", [VERSION])

    def _subscribe(self, number: int, project: str, text: str | None) -> None:
        name, to = f"s{number}", f"arn:tidings:log:::s{number}"
        values = {"id": FIRST + number, "project": project, "name": name, "to": to, "filter": text}
        self.database.execute(
            "insert into lanes (id, project, destination) overriding system value values (%(id)s, %(project)s, %(to)s)", values
        )
        self.database.execute(
            "insert into catalog_subscriptions (rule, project, name, destination, lane, filter, format)"
            " values (%(id)s, %(project)s, %(name)s, %(to)s, %(id)s, %(filter)s, 'nessie')",
            values,
        )

    def write(self, project: str, number: int) -> None:
        said = {
            **{"type": "CONTENT_STORED", "id": f"e{number}", "repositoryId": project, "contentType": "ICEBERG_TABLE"},
            "reference": {"type": "BRANCH", "name": "main", "fullName": "/refs/heads/main"},
            "contentKey": {"elements": ["sales", f"t{number}"]},
        }
        self.database.execute(
            """
            insert into changes (seq, project, bucket, bucket_id, key, event, size, etag, principal, source_ip, request_id,
                                 config, rules, catalog)
            select nextval('change_seq'), %(project)s, %(project)s, '', '/refs/heads/main', 'nessie:CONTENT_STORED', 0, '', '',
                   '', 'r', 0, (select string_agg(rule::text, ',' order by rule) from catalog_subscriptions
                                where project = %(project)s), %(said)s
            """,
            {"project": project, "said": json.dumps(said)},
        )

    def states(self, project: str) -> list[str]:
        rows = self.database.execute("select state from lanes where project = %s order by id", [project])
        return [state for (state,) in rows]


def test_dear_filters_delay_nobody_else_and_everything_arrives_once(
    spark: SparkSession, spark_database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_DELIVERY__BUDGET_SECONDS", "60")
    Expression(dear(1))  # it is one that may be registered
    place, loaded = Place(spark_database), settings.load()
    figures = Figures()
    stream = Stream(spark, loaded, figures=figures)
    rounds, beside = Pipeline(spark, loaded, "rounds"), Pipeline(spark, loaded, "beside")
    for number in range(EVENTS):
        place.write(place.dear, number)
    place.write(place.quiet, EVENTS)
    newest = windows.cut(place.database, windows.BEFORE_ALL)
    assert newest is not None
    stream._round(place.database, rounds, EPOCH, START, newest)

    first = delivered(figures)
    assert (first.pop(FIRST + LANES), place.states(place.quiet)) == (1, ["live"]), "nobody waits for the others"
    assert 0 < sum(first.values()) < LANES * EVENTS
    assert "behind" in place.states(place.dear)

    owner = Owner(EPOCH, newest.end)
    for _ in range(LANES * EVENTS):
        if {*place.states(place.dear)} == {"live"}:
            break
        for group in ("quick", "slow"):
            stream._catch_up(place.database, beside, owner, group)  # type: ignore[arg-type]
        stream._round(place.database, rounds, EPOCH, newest.end, newest)
    assert {*place.states(place.dear)} == {"live"}
    wanted = {FIRST + number: EVENTS for number in range(LANES)}
    assert delivered(figures) == wanted | {FIRST + LANES: 1}, "lost or doubled"


def delivered(figures: Figures) -> dict[int, int]:
    """How many messages each lane's destination has taken."""
    samples = [each for metric in figures.collect() if metric.name == "tidings_lane_delivered" for each in metric.samples]
    return {int(each.labels["lane"]): int(each.value) for each in samples if each.name.endswith("_total")}


def test_filters_that_are_quick_for_each_change_have_no_end_and_others_stop_for_their_project_alone() -> None:
    taken = FilterTime()
    for _ in range(100_000):
        taken.add("quick", 0.0001)
    taken.add("dear", 0.2)
    assert not taken.is_over("dear")
    taken.add("dear", 0.2)
    assert taken.is_over("dear")
    assert not taken.is_over("quick")
    rows = [
        {"seq": seq, "rule": "1", "lane": 1, "project": project, "format": "nessie", "filter": text, "catalog": "{}"}
        for seq, (project, text) in enumerate(
            [("dear", "type == 'x' && [1].exists_one(n, n == 1)"), ("dear", None), ("quick", "[1].exists_one(n, n == 1)")]
        )
    ]
    left, unanswered = cel_batches.matches(pa.RecordBatch.from_pylist([row | {"metadata": None} for row in rows]), (), taken)
    assert not unanswered
    assert left.column("format").to_pylist() == [UNREADY, "nessie", "nessie"], "also one that it would not want"
    assert left.column("filter").to_pylist() == [None] * 3
