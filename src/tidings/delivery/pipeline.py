"""The path of a round: read, route, render, deliver. One Spark action, the same for the stream and for catch-up.

The plan is made once and run again for every round: making it costs ten times as much as a small round. What differs from
round to round travels as a local property of the job, which Spark hands to every task.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import pyarrow as pa
from psycopg import Connection
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from tidings import settings as settings_module
from tidings.changestream import reader
from tidings.delivery import lanes, session
from tidings.delivery.deliver import RESULT, Terms, deliver
from tidings.delivery.render import render
from tidings.delivery.route import RULE, route
from tidings.events.schema import CHANGE
from tidings.formats import Context
from tidings.settings import Settings

log = logging.getLogger(__name__)

_PROPERTY = "tidings.round"

_Slices = Callable[[], Sequence[reader.Slice]]

# Below this one task is quicker than two: nothing is started or waited for twice.
_ONE_TASK = 2000


@dataclass(frozen=True, slots=True)
class Round:
    """What to read, and on which terms to deliver it."""

    slices: tuple[reader.Slice, ...]
    terms: Terms

    def to_text(self) -> str:
        return json.dumps({"slices": self.slices, "terms": self.terms.to_list()})

    @classmethod
    def of_this_task(cls) -> Round:
        context = TaskContext.get()
        text = context.getLocalProperty(_PROPERTY) if context else None
        assert text is not None, "a round travels with its job"
        values = json.loads(text)
        return cls(tuple(reader.Slice(*piece) for piece in values["slices"]), Terms.from_list(values["terms"]))


_NOTHING = Round((reader.Slice(0, "false"),), Terms(budget=1, timeout=1, preload=True))


class Pipeline:
    """The plan for the rules as they are, for one thread: the stream's and catch-up's run side by side."""

    def __init__(self, spark: SparkSession, settings: Settings, pool: str = "warm-up") -> None:
        """`pool` is a scheduler pool of its own: jobs of different pools share Spark fairly, those of one queue up."""
        self._spark = spark
        self._pool = pool
        self._parts = max(1, spark.sparkContext.defaultParallelism - session.FOR_CATCH_UP)
        self._settings = settings
        self._rules_version = 0
        self._rules: DataFrame | None = None
        self._plans: dict[int, DataFrame] = {}

    def use_rules(self, version: int, connection: Connection) -> None:
        """Take the rules as they are now, unless this version is known."""
        if version == self._rules_version:
            return
        self._rules = rules_frame(self._spark, current_rules(connection))
        self._plans = {1: self._plan(1)}  # the other when it is first needed: a change of rules delays everybody's events
        self._rules_version = version

    def _plan(self, parts: int) -> DataFrame:
        assert self._rules is not None
        rendered = messages(changes(self._spark, parts, _slices_of_this_task), self._rules, self._settings)
        return rendered.mapInArrow(_deliver_on_the_terms_of_this_task, RESULT)

    def warm_up(self) -> None:
        """Run the plan over nothing until it is quick: the JVM compiles it, Python workers start and load their clients.

        Otherwise the first event would wait for all that.
        """
        some_rule = dict.fromkeys(RULE.fieldNames()) | {"rule": "0", "events": []}
        self._rules = rules_frame(self._spark, pa.Table.from_pylist([some_rule], schema=to_arrow_schema(RULE)))
        self._plans = {}
        for rows in (0, _ONE_TASK + 1, 0, _ONE_TASK + 1, 0):
            self.run(_NOTHING, rows)

    def stay_warm(self) -> None:
        """Use the workers, so that Spark does not end them."""
        self.run(_NOTHING, rows=0)

    def run(self, todo: Round, rows: int) -> list[lanes.Report]:
        """Deliver what the slices hold; one report for each lane that had anything. `rows` decides how many tasks."""
        if not todo.slices:
            return []
        parts = 1 if rows <= _ONE_TASK else self._parts
        if parts not in self._plans:
            self._plans[parts] = self._plan(parts)
        plan = self._plans[parts]
        self._spark.sparkContext.setLocalProperty(_PROPERTY, todo.to_text())
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
        rows_of_lanes, orphans = [], Counter[str]()
        for row in plan.collect():
            if row.lane is None:
                orphans[row.error] += row.sent
            else:
                rows_of_lanes.append(tuple(row))
        if todo.terms.everyone_from is not None:  # catch-up meets them again
            _warn(orphans)
        return lanes.merge(rows_of_lanes)


def _warn(orphans: Counter[str]) -> None:
    for place, number in orphans.items():
        project, _, bucket = place.partition("/")
        fields = {"project": project, "bucket": bucket, "changes": number}
        log.warning("no configuration exists any more for changes that were transmitted: discarded", extra=fields)


def _slices_of_this_task() -> Sequence[reader.Slice]:
    return Round.of_this_task().slices


def _deliver_on_the_terms_of_this_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from deliver(batches, Round.of_this_task().terms)
    _leave_alone(len(sys.modules))


@cache
def _leave_alone(_modules: int) -> None:
    """Whenever a worker has loaded modules: its collections need not look at them again.

    Spark collects garbage after every task. Over all that Google's clients and Arrow load, that is 40 ms a round.
    """
    gc.collect()
    gc.freeze()


def current_rules(connection: Connection) -> pa.Table:
    """Every rule as the table has it now."""
    rows = connection.execute(
        "select rule::text, lane, config_id, events, filter_prefix, filter_suffix from bucket_eventing_configs"
    ).fetchall()
    names = RULE.fieldNames()
    listed = [dict(zip(names, (r[0], r[1], json.dumps(r[2], ensure_ascii=False), *r[3:]), strict=True)) for r in rows]
    return pa.Table.from_pylist(listed, schema=to_arrow_schema(RULE))


def rules_frame(spark: SparkSession, rules: pa.Table) -> DataFrame:
    return spark.createDataFrame(rules, schema=RULE)


def changes(spark: SparkSession, parts: int, slices: _Slices) -> DataFrame:
    """The changes of the slices, each part holding whole keys in order of position. `slices` is asked in the task."""
    return spark.range(0, parts, 1, parts).mapInArrow(partial(_read, parts=parts, slices=slices), CHANGE)


def _read(batches: Iterator[pa.RecordBatch], parts: int, slices: _Slices) -> Iterator[pa.RecordBatch]:
    url = settings_module.load().database_url
    for batch in batches:
        for part in batch.column(0).to_pylist():
            yield from reader.read(url, slices(), part, parts)
    _leave_alone(len(sys.modules))


def messages(changed: DataFrame, rules: DataFrame, settings: Settings) -> DataFrame:
    """route and render: everything between reading and sending, as native columns."""
    profile = settings.bucket_eventing.dialect
    routed = changed.transform(route, rules, profile.literal_filters)
    return routed.transform(render, "s3", Context(settings.api.region, profile))
