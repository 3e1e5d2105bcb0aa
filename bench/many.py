"""drain_10000_buckets and put_10000_buckets: what 10,000 buckets with a configuration cost, against 10.

The stream's rounds route changes of ten buckets with ten rules, and as many changes of all buckets with all rules, in pairs.
The writers put into ten buckets of two stacks, of which one has 10,000 configured; the other one stands beside it, idle,
while it is its neighbour's turn.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from bench.changes import INSERT, database
from bench.drain import summed
from bench.measure import Bar, CannotMeasure, Figure, Progress, interleaved, ratios
from bench.side_by_side import FEW, Way, puts
from bench.stack import PREFIX, configured
from tidings import settings as settings_module
from tidings.access.projects import create_project
from tidings.changestream import reader, windows
from tidings.changestream.retention import keep_up
from tidings.changestream.settings import ChangestreamSettings
from tidings.delivery import lanes, pipeline, session
from tidings.delivery.deliver import Terms
from tidings.events.positions import START
from tidings.settings import Settings

NAMES = ("drain_10000_buckets", "put_10000_buckets")
MANY = 10_000
_BAR = Bar(">=", 0.9)


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    if "put_10000_buckets" in names:
        few, many = ("10 buckets", Way()), ("10,000 buckets", Way(MANY))
        yield puts("put_10000_buckets", few, many, _BAR, quick, progress)
    if "drain_10000_buckets" in names:
        yield _drain(quick, progress)


def _drain(quick: bool, progress: Progress) -> Figure:
    rows = 100_000 if quick else 500_000
    with database(progress) as url:
        progress(f"writing twice {rows:,} changes")
        slices = _filled(url, rows)
        os.environ["TIDINGS_DATABASE__URL"] = url
        settings = settings_module.load()
        progress("starting Spark")
        spark = session.start(settings)
        try:
            return _compared(spark, settings, slices, rows, 3 if quick else 7, progress)
        finally:
            spark.stop()
            del os.environ["TIDINGS_DATABASE__URL"]


def _filled(url: str, rows: int) -> dict[str, tuple[reader.Slice, ...]]:
    found = {}
    with psycopg.connect(url, autocommit=True) as connection:
        keep_up(connection, ChangestreamSettings())
        project = create_project(connection, "bench")
        configured(connection, project, MANY)
        start = START
        for way, buckets in (("10 buckets", FEW), ("10,000 buckets", MANY)):
            wanted = {"project": project, "rows": rows, "name": "bench-", "buckets": buckets, "prefix": PREFIX}
            connection.execute(INSERT, wanted)
            end = windows.latest(connection)
            found[way] = tuple(reader.slices(connection, start, end))
            start = end
        connection.execute("vacuum analyze")
        connection.execute("checkpoint")
    return found


def _compared(
    spark: SparkSession, settings: Settings, slices: dict[str, Any], rows: int, repeats: int, progress: Progress
) -> Figure:
    with psycopg.connect(settings.database_url) as connection:
        moment = lanes.standing(connection).moment
    plan = summed(pipeline.messages(pipeline.changes(spark, os.cpu_count() or 1, ["s3"]), ["s3"], settings))

    def run(way: str) -> float:
        todo = pipeline.Round(slices[way], moment, Terms(budget=1, timeout=1, everyone_from=START))
        spark.sparkContext.setLocalProperty(pipeline._PROPERTY, todo.to_text())
        began = time.perf_counter()
        messages = sum(row.messages for row in plan.collect())
        seconds = time.perf_counter() - began
        if messages != rows:
            raise CannotMeasure(f"{messages} of {rows} changes were routed with {way}.")
        return seconds

    seconds = interleaved({way: partial(run, way) for way in slices}, repeats, 2, progress)
    rates = ", ".join(f"{way} {rows / statistics.median(values) / 1000:.0f} k/s" for way, values in seconds.items())
    note = f"{rates}; {rows:,} changes a run, those of ten buckets with ten rules, those of all with all"
    return Figure.median("drain_10000_buckets", ratios(seconds["10 buckets"], seconds["10,000 buckets"]), _BAR, "", note)
