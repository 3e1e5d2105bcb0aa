"""A rule that comes while a lane is behind: what it matched is never passed over by a plan that does not know it."""

from __future__ import annotations

import psycopg
import pytest
from pyspark.sql import SparkSession

import writers
from tidings import settings
from tidings.changestream import windows
from tidings.delivery import lanes, pipeline, stream
from tidings.delivery.ownership import Owner
from tidings.rules import table
from tidings.rules.model import Rule

EPOCH = 7


def test_catch_up_stops_before_changes_whose_rules_came_after_it_looked(
    spark: SparkSession, spark_database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = settings.load()
    with writers.writer_to(loaded.database_url) as writer:
        writer.put("old")
        passed = windows.latest(spark_database)
        spark_database.execute("update lanes set state = 'behind', win = %s, seq = %s", passed)
        spark_database.execute("update stream set epoch = %s, win = %s, seq = %s", [EPOCH, *passed])
        look = lanes.standing
        plan = pipeline.Pipeline(spark, loaded, "test")
        plan.learn(look(spark_database).moment, spark_database)

        def look_and_then_it_all_happens(connection: psycopg.Connection) -> lanes.Standing:
            """Between two statements of catch-up: a rule, a change that only it matches, and the stream's round over both."""
            seen = look(connection)
            rule = Rule("new", writers.TOPIC, writers.EVERYTHING)
            writer.run(_replace(writer, rule))
            writer.put("new")
            spark_database.execute("update stream set win = %s, seq = %s", windows.latest(spark_database))
            return seen

        monkeypatch.setattr(lanes, "standing", look_and_then_it_all_happens)  # the real one, and then what others do just then
        caught_up = stream.Stream(spark, loaded)._catch_up(spark_database, plan, Owner(EPOCH, passed), "quick")

        assert caught_up
        [lane] = look(spark_database).lanes
        assert lane.cursor == passed, "the new change was passed over"
        [change] = writer.read(lane.cursor)
        assert change["key"] == "new"
        assert change["rules"] == str(spark_database.execute("select rule from bucket_eventing_configs").fetchall()[0][0])


async def _replace(writer: writers.Writer, rule: Rule) -> None:
    async with await psycopg.AsyncConnection.connect(writer.url, autocommit=True) as connection:
        await table.replace(connection, writer.project, writer.bucket, [rule])
