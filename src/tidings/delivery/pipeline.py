"""The path of a round: read, route, render, deliver. One Spark action, the same for the stream and for catch-up.

The plan is made once and run again for every round: making it costs ten times as much as a small round. What differs from
round to round travels as a local property of the job, which Spark hands to every task.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import Connection
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tidings import settings as settings_module
from tidings.cel.translatable import why_not
from tidings.changestream import reader
from tidings.delivery import cel_columns, lookup, session
from tidings.delivery.cel_batches import FilterTime
from tidings.delivery.deliver import RESULT, Terms, deliver
from tidings.delivery.lookup import Moment
from tidings.delivery.render import details_of, render
from tidings.delivery.reports import Report, merge
from tidings.delivery.route import route, routed
from tidings.delivery.unanswered import Unanswered
from tidings.delivery.unanswered import merge as merge_unanswered
from tidings.events.schema import CHANGE, DETAILS, stored
from tidings.formats import Context
from tidings.settings import Settings

log = logging.getLogger(__name__)

_PROPERTY = "tidings.round"

# Below this one task is quicker than two: nothing is started or waited for twice.
_ONE_TASK = 2000

# Each filter is a part of the plan. Beyond so many, CEL evaluates them: a plan of thousands takes longer to make than to run.
_MOST_FILTERS = 50
_MOST_TRIES, _TRIES_SECONDS = 5, 60.0
"""Of new filters as columns, in so many seconds: each holds the rounds up for half a second, whoever registered it."""

# What rows may become when they are multiplied by their rules: a text column of Arrow ends at 2 GiB.
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Round:
    """What to read, which rules and lanes there are for it, and on which terms to deliver it."""

    slices: tuple[reader.Slice, ...]
    moment: Moment
    terms: Terms

    def to_text(self) -> str:
        return json.dumps({"slices": self.slices, "moment": self.moment, "terms": self.terms.to_list()})

    @classmethod
    def of_this_task(cls) -> Round:
        context = TaskContext.get()
        text = context.getLocalProperty(_PROPERTY) if context else None
        assert text is not None, "a round travels with its job"
        values = json.loads(text)
        slices = tuple(reader.Slice(*piece) for piece in values["slices"])
        return cls(slices, Moment(*values["moment"]), Terms.from_list(values["terms"]))


_NOTHING = Round((reader.Slice(0, "false"),), Moment(0, "1:1:"), Terms(budget=1, timeout=1, preload=True))


class Pipeline:
    """The plan for the formats in use, for one thread: the stream's and catch-up's run side by side."""

    def __init__(self, spark: SparkSession, settings: Settings, pool: str = "warm-up") -> None:
        """`pool` is a scheduler pool of its own: jobs of different pools share Spark fairly, those of one queue up."""
        self._spark = spark
        self._pool = pool
        self._parts = max(1, spark.sparkContext.defaultParallelism - session.FOR_CATCH_UP)
        self._settings = settings
        self._version = 0
        self._formats = [lookup.DEFAULT_FORMAT]
        self._filters: list[str] = []
        self._tried: dict[str, bool] = {}
        self._tries_since, self._tries = -_TRIES_SECONDS, 0
        self._plans: dict[int, DataFrame] = {}
        self._unanswered: list[Unanswered] = []

    def learn(self, moment: Moment, connection: Connection) -> None:
        """See whether a new rule or lane brought a format or a filter that the plan does not have: then it is made anew."""
        if moment.version == self._version:
            return
        formats = lookup.formats_in_use(connection, self._settings)
        filters = self._translated(lookup.filters_in_use(connection, _MOST_FILTERS))
        if (formats, filters) != (self._formats, self._filters):
            self._formats, self._filters, self._plans = formats, filters, {}
        self._version = moment.version

    def _translated(self, filters: Sequence[str]) -> list[str]:
        """Those that Spark can evaluate itself. Each is tried once; one that is not tried yet is evaluated over batches."""
        now = time.monotonic()
        if now - self._tries_since >= _TRIES_SECONDS:
            self._tries_since, self._tries = now, _MOST_TRIES if self._version else len(filters)
        tried = {text: self._tried[text] for text in filters if text in self._tried}
        for text in filters:
            if text not in tried and why_not(text) is not None:
                tried[text] = False
            elif text not in tried and self._tries > 0:
                self._tries -= 1
                tried[text] = cel_columns.works(self._spark, text)
        self._tried = tried
        return [text for text in filters if tried.get(text)]

    def _plan(self, parts: int) -> DataFrame:
        traced = self._settings.telemetry.on
        changed = changes(self._spark, parts, self._formats, traced, self._filters)
        rendered = messages(changed, self._formats, self._settings, self._filters)
        return rendered.mapInArrow(_deliver_on_the_terms_of_this_task, RESULT)

    def warm_up(self) -> None:
        """Run the plan over nothing until it is quick: the JVM compiles it, Python workers start and load their clients.

        Otherwise the first event would wait for all that.
        """
        for rows in (0, _ONE_TASK + 1, 0, _ONE_TASK + 1, 0):
            self.run(_NOTHING, rows)

    def prepare(self) -> None:
        """Make the plan before it is needed, and run it over nothing.

        Whoever falls behind first would otherwise take the time for it from those who do not.
        """
        if 1 not in self._plans:
            self.run(_NOTHING, rows=0)

    def stay_warm(self) -> None:
        """Use the workers, so that Spark does not end them: on a cluster those of all executors, any may be next."""
        local = self._settings.spark.master.startswith("local")
        self.run(_NOTHING, rows=0 if local else _ONE_TASK + 1)

    def run(self, todo: Round, rows: int) -> list[Report]:
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
            if row.unanswered is not None:
                self._unanswered.append(Unanswered.from_text(row.unanswered))
            elif row.lane is None:
                orphans[row.error] += row.sent
            else:
                rows_of_lanes.append(row)
        if todo.terms.everyone_from is not None:  # catch-up meets them again
            _warn(orphans)
        return merge(rows_of_lanes)

    def pop_unanswered(self) -> list[Unanswered]:
        """What filters had no answer for since this was asked last."""
        found, self._unanswered = merge_unanswered(self._unanswered), []
        return found


def _warn(orphans: Counter[str]) -> None:
    for place, number in orphans.items():
        project, _, bucket = place.partition("/")
        fields = {"project": project, "bucket": bucket, "changes": number}
        log.warning("no configuration exists any more for changes that were transmitted: discarded", extra=fields)


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


def plain_changes(spark: SparkSession, slices: Sequence[reader.Slice]) -> DataFrame:
    """The changes of these slices as they are stored, in no order that counts."""
    parts = spark.sparkContext.defaultParallelism
    return spark.range(0, parts, 1, parts).mapInArrow(partial(_read_plain, slices=tuple(slices), parts=parts), CHANGE)


def _read_plain(batches: Iterator[pa.RecordBatch], slices: Sequence[reader.Slice], parts: int) -> Iterator[pa.RecordBatch]:
    url = settings_module.load().database_url
    for batch in batches:
        for part in batch.column(0).to_pylist():
            yield from reader.read(url, slices[part::parts], 0, 1)


def send_changes(
    spark: SparkSession, settings: Settings, changed: DataFrame, formats: Sequence[str], todo: Round
) -> list[Report]:
    """Route, render and deliver changes that come from elsewhere, whole keys in order of position."""
    spark.sparkContext.setLocalProperty(_PROPERTY, todo.to_text())
    ordered = changed.repartition("bucket", "key").sortWithinPartitions("window", "seq")
    rendered = messages(ordered.mapInArrow(_route, routed(DETAILS)), formats, settings)
    delivered = rendered.mapInArrow(_deliver_on_the_terms_of_this_task, RESULT).collect()
    return merge(row for row in delivered if row.lane is not None)


def _route(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    todo, taken = Round.of_this_task(), FilterTime()
    for batch in batches:
        yield lookup.routed(batch, todo.moment, todo.terms, taken=taken)


def changes(
    spark: SparkSession, parts: int, formats: Sequence[str], traced: bool = False, filters: Sequence[str] = ()
) -> DataFrame:
    """The changes of the task's round with where they go, each part holding whole keys in order of position."""
    details = details_of(formats) | ({"trace"} if traced else set())
    if "catalog" in details:
        details |= {*cel_columns.NEEDS}
    read = partial(_read, parts=parts, columns=tuple(stored(details)), filters=frozenset(filters))
    return spark.range(0, parts, 1, parts).mapInArrow(read, routed(details))


def _read(
    batches: Iterator[pa.RecordBatch], parts: int, columns: Sequence[str], filters: frozenset[str]
) -> Iterator[pa.RecordBatch]:
    url, todo, taken = settings_module.load().database_url, Round.of_this_task(), FilterTime()
    for batch in batches:
        for part in batch.column(0).to_pylist():
            for read in reader.read(url, todo.slices, part, parts, columns):
                for piece in _in_pieces(read):
                    yield lookup.routed(piece, todo.moment, todo.terms, filters, taken)
    _leave_alone(len(sys.modules))


def _in_pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rules = (pc.max(pc.count_substring(batch.column("rules"), ",")).as_py() or 0) + 1
    rows = max(1, batch.num_rows * _MOST_BYTES // (batch.nbytes * rules + 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def messages(changed: DataFrame, formats: Sequence[str], settings: Settings, filters: Sequence[str] = ()) -> DataFrame:
    """route and render: everything between reading and sending, as native columns."""
    profile = settings.bucket_eventing.dialect
    context = Context(settings.api.region, profile, settings.formats.system_uuid, settings.formats.system_name)
    return changed.transform(route, profile.literal_filters, filters).transform(render, formats, context, settings.telemetry.on)
