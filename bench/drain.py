"""drain_vs_copy and drain_vs_python_loop: a million changes read, routed and rendered through Spark.

The destination is null: it sums the bytes of every message, so nothing can be left out. The first rival is PostgreSQL's
own fastest way out, a binary COPY of the same columns of the same rows, in no order, of which nothing is made; the second
a plain Python loop that makes the same messages. The plan is built once and run again for each repeat, as the stream does.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from bench import plain_loop
from bench.changes import SAMPLE, Changes, prepared
from bench.measure import Bar, CannotMeasure, Figure, Progress, cpu_seconds, interleaved, ratios, said
from tidings import settings as settings_module
from tidings.changestream.reader import Slice
from tidings.delivery import lanes, pipeline, session
from tidings.delivery.deliver import Terms
from tidings.events.positions import START
from tidings.events.schema import stored
from tidings.settings import Settings

NAMES = ("drain_vs_copy", "drain_vs_python_loop")


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    rows = 100_000 if quick else 1_000_000
    with prepared(rows, progress) as changes:
        os.environ["TIDINGS_DATABASE__URL"] = changes.url  # how Spark's workers learn of it
        settings = settings_module.load()
        progress("starting Spark")
        spark = session.start(settings)
        try:
            drain = _Drain(spark, settings, changes)
            progress("comparing messages")
            drain.check_sample()
            progress("python loop: the bytes that every run must give")
            drain.expected = plain_loop.run(changes.url, changes.all[0], settings.api.region)
            if drain.expected[0] != rows:
                raise CannotMeasure(f"{drain.expected[0]} of {rows} changes matched; all should.")
            if "drain_vs_copy" in names:
                yield drain.against_copy(3 if quick else 5, progress)
            if "drain_vs_python_loop" in names:
                yield drain.against_loop(2 if quick else 3, progress)
        finally:
            spark.stop()
            del os.environ["TIDINGS_DATABASE__URL"]


class _Drain:
    def __init__(self, spark: SparkSession, settings: Settings, changes: Changes) -> None:
        self._spark = spark
        self._changes = changes
        self._region = settings.api.region
        with psycopg.connect(changes.url) as connection:
            self._moment = lanes.standing(connection).moment
        read = pipeline.changes(spark, os.cpu_count() or 1, ["s3"])
        self._messages = pipeline.messages(read, ["s3"], settings)
        self._summed = summed(self._messages)
        self.expected = (0, 0)
        self._spent: Counter[str] = Counter()
        self._runs = 0

    def check_sample(self) -> None:
        """The messages of the first changes say the same as the plain loop's."""
        rendered = {
            row.id: json.loads(row.body) for row in self._run(self._messages.select("id", "body"), self._changes.sample)
        }
        plain = dict(plain_loop.records(self._changes.url, self._changes.sample[0], self._region))
        if len(plain) != SAMPLE or rendered != plain:
            raise CannotMeasure("Spark and the plain loop do not make the same messages.")

    def against_copy(self, repeats: int, progress: Progress) -> Figure:
        self._spent, self._runs = Counter(), 0
        runs = {"copy": self._copy, "spark": self._spark_run}
        seconds = interleaved(runs, repeats, 2, progress)
        millions = self._runs * self._changes.rows / 1e6
        note = (
            f"{self._rates(seconds)}; COPY reads the table as it lies, Spark in order; processor time for a million"
            f" changes: {said(self._spent, millions)}"
        )
        return Figure.median("drain_vs_copy", ratios(seconds["copy"], seconds["spark"]), Bar(">=", 0.35), "", note)

    def against_loop(self, repeats: int, progress: Progress) -> Figure:
        seconds = interleaved({"python loop": self._loop, "spark": self._spark_run}, repeats, 1, progress)
        note = f"{self._rates(seconds)}; the same {self.expected[1]:,} bytes from both, {SAMPLE:,} messages compared"
        found = ratios(seconds["python loop"], seconds["spark"])
        return Figure.median("drain_vs_python_loop", found, Bar(">=", 2), "", note)

    def _rates(self, seconds: dict[str, list[float]]) -> str:
        parts = []
        for name, values in seconds.items():
            slow, fast = (self._changes.rows / end / 1000 for end in (max(values), min(values)))
            middle = self._changes.rows / sorted(values)[len(values) // 2] / 1000
            parts.append(f"{name} {middle:.0f} k/s ({slow:.0f} to {fast:.0f})")
        return ", ".join(parts)

    def _spark_run(self) -> float:
        before, began = cpu_seconds(os.getpid()), time.perf_counter()
        rows = self._run(self._summed, self._changes.all)
        seconds = time.perf_counter() - began
        self._spent += cpu_seconds(os.getpid()) - before
        self._runs += 1
        self._check("Spark", (sum(row.messages for row in rows), sum(row.bytes for row in rows)))
        return seconds

    def _run(self, plan: DataFrame, slices: tuple[Slice, ...]) -> list[pa.Table]:
        todo = pipeline.Round(slices, self._moment, Terms(budget=1, timeout=1, everyone_from=START))
        self._spark.sparkContext.setLocalProperty(pipeline._PROPERTY, todo.to_text())
        return plan.collect()

    def _loop(self) -> float:
        began = time.perf_counter()
        self._check("the plain loop", plain_loop.run(self._changes.url, self._changes.all[0], self._region))
        return time.perf_counter() - began

    def _check(self, who: str, found: tuple[int, int]) -> None:
        if found != self.expected:
            raise CannotMeasure(f"{who} gave {found} messages and bytes instead of {self.expected}.")

    def _copy(self) -> float:
        select = f"select {self._changes.all[0].window}::bigint, {', '.join(stored(()))} from changes where rules is not null"
        size = 0
        with psycopg.connect(self._changes.url) as connection, connection.cursor() as cursor:
            began = time.perf_counter()
            with cursor.copy(f"copy ({select}) to stdout (format binary)".encode()) as copy:
                for data in copy:
                    size += len(data)
            seconds = time.perf_counter() - began
            if cursor.rowcount != self._changes.rows or not size:
                raise CannotMeasure(f"COPY gave {cursor.rowcount} rows, not {self._changes.rows}.")
        return seconds


def summed(messages: DataFrame) -> DataFrame:
    """Messages on their way to the null destination."""
    return messages.mapInArrow(_sum, "messages long, bytes long")


def _sum(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The null destination. A message without a lane is none."""
    messages = size = 0
    for batch in batches:
        messages += batch.num_rows - batch.column("lane").null_count
        size += pc.sum(pc.binary_length(batch.column("body"))).as_py() or 0
    yield pa.RecordBatch.from_pydict({"messages": [messages], "bytes": [size]})
