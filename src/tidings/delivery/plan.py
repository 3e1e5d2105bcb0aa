"""What a rule would have had to deliver, before anybody sets it: a batch job over the changes of the last days."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings import settings as settings_module
from tidings.changestream import history
from tidings.delivery.progress import Progress, told
from tidings.rules import columns
from tidings.rules.draft import Draft

MOST_EXAMPLES = 5

# The newest changes are often changes of one key; of so many the newest keys are found.
_LOOKED_AT = 50

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Tally(NamedTuple):
    """The changes of one day (UTC) with one event name, and how many of them the rule wants."""

    day: date
    event: str
    changes: int
    matched: int


class Example(NamedTuple):
    """A key that the rule wants, with the newest change of it."""

    at: datetime
    event: str
    key: str


@dataclass(frozen=True, slots=True)
class Found:
    tallies: tuple[Tally, ...]
    examples: tuple[Example, ...]

    @property
    def changes(self) -> int:
        return sum(tally.changes for tally in self.tallies)

    @property
    def matched(self) -> int:
        return sum(tally.matched for tally in self.tallies)


def run(
    spark: SparkSession, draft: Draft, pieces: Sequence[str], progress: Progress | None = None, literal: bool = False
) -> Found:
    """Read the pieces of the history and count. One job; the driver sees a row for each day and event name."""
    counted = changes(spark, pieces).transform(judged, draft, literal).transform(tallied)
    with told(spark, "plan a rule", progress) if progress else nullcontext():
        rows = counted.collect()
    tallies = sorted(Tally(row.day, row.event, row.changes, row.matched) for row in rows)
    newest = sorted(((*each, row.event) for row in rows for each in row.newest or ()), reverse=True)
    keys = {key: Example(_EPOCH + timedelta(microseconds=at), event, key) for at, _seq, key, event in reversed(newest)}
    examples = sorted(keys.values(), reverse=True)[:MOST_EXAMPLES]
    return Found(tuple(tallies), tuple(examples))


def changes(spark: SparkSession, pieces: Sequence[str]) -> DataFrame:
    """The changes of the pieces, one task for each."""
    count = len(pieces)
    return spark.range(0, count, 1, count).mapInArrow(partial(_read, pieces=tuple(pieces)), history.SEEN)


def _read(batches: Iterator[pa.RecordBatch], pieces: Sequence[str]) -> Iterator[pa.RecordBatch]:
    url = settings_module.load().database_url
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from history.read(url, pieces[number])


def judged(seen: DataFrame, draft: Draft, literal: bool = False) -> DataFrame:
    """Each change with whether the rule wants it, asked as the stream asks."""
    rule = {
        "events": F.array(*map(F.lit, draft.events)),
        "prefix": F.lit(draft.prefix),
        "suffix": F.lit(draft.suffix),
    }
    return seen.withColumns(rule).select("seq", "at", "key", "event", columns.matches(literal).alias("matched"))


def tallied(seen: DataFrame) -> DataFrame:
    """One row for each day and event name: how many changes, how many that the rule wants, and the newest of these."""
    change = F.struct(F.unix_micros("at").alias("at"), "seq", "key")
    age = F.when(F.col("matched"), F.struct("at", "seq"))  # null, and so left out, where it does not match
    return (
        seen.groupBy(F.to_date("at").alias("day"), "event")
        .agg(
            F.count("*").alias("changes"),
            F.count_if("matched").alias("matched"),
            F.max_by(change, age, _LOOKED_AT).alias("newest"),
        )
        .select("day", "event", "changes", "matched", "newest")
    )
