"""The consumer on Spark: as many receivers side by side as there are tasks, in rounds.

A queue gives each message to one receiver, so they need nothing of each other: more tasks on more machines take more messages.
What a task does is done when its messages are acknowledged: nothing of it has to reach the driver but the figures.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from functools import cache, partial

import pyarrow as pa
from pyspark.sql import SparkSession

from tidings import settings as settings_module
from tidings.consumers.uploads.consuming import Consumer, Outcome, Tally
from tidings.delivery import session
from tidings.errors import OperatorError
from tidings.settings import Settings

log = logging.getLogger(__name__)

_REPORT = "outcome string, messages bigint, error string"
_GROUP = "tidings-uploads"
_LONGEST = 1e9
"""Seconds of a round that ends by itself."""
_PAUSE_SECONDS = 2.0
_WORDS = 500


def run(spark: SparkSession, settings: Settings, once: bool, stop: threading.Event) -> Tally:
    """Consume until `stop`; with `once`, until there is nothing to receive. Returns what became of all messages.

    Tasks under way are ended in the middle when it stops, for they may be: it is no different from a crash.
    """
    done = Tally()
    spark.sparkContext.setJobGroup(_GROUP, "the upload registry")
    threading.Thread(target=_cancel_on, args=(spark, stop), name="uploads-stop", daemon=True).start()
    while not stop.is_set():
        began = time.monotonic()
        try:
            tally, errors = _round(spark, settings, once)
        except Exception as error:  # py4j raises whatever the JVM says
            if stop.is_set():
                break
            if once or not session.lives(spark):
                raise OperatorError(f"Spark did not finish a round of the uploads: {str(error)[:_WORDS]}") from error
            log.warning("uploads: a round did not finish, its messages come again: %s", str(error)[:_WORDS])
            stop.wait(_PAUSE_SECONDS)
            continue
        done += tally
        if tally:
            log.info("uploads: %s", words(tally), extra={**figures(tally), "seconds": round(time.monotonic() - began, 3)})
        if errors and once:
            problem = errors[0].rstrip(".")
            raise OperatorError(f"Not everything could be received: {problem}. What was not acknowledged comes again.")
        if once:
            break
    return done


def words(tally: Tally) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in figures(tally).items() if number) or "nothing to receive"


def figures(tally: Tally) -> dict[str, int]:
    return {outcome.value: tally[outcome] for outcome in Outcome}


def _round(spark: SparkSession, settings: Settings, once: bool) -> tuple[Tally, list[str]]:
    tasks = settings.uploads.receivers
    seconds = _LONGEST if once else settings.uploads.round_seconds
    work = partial(_receive, seconds=seconds, once=once)
    rows = spark.range(0, tasks, 1, tasks).mapInArrow(work, _REPORT).collect()
    tally = Tally()
    for row in rows:
        if row.outcome is not None:
            tally[Outcome(row.outcome)] += row.messages
    return tally, [row.error for row in rows if row.error is not None]


def _receive(numbers: Iterable[pa.RecordBatch], seconds: float, once: bool) -> Iterator[pa.RecordBatch]:
    """One task: one receiver."""
    for _ in numbers:
        pass
    try:
        tally = _consumer().work(seconds, once)
        rows = [{"outcome": outcome.value, "messages": number, "error": None} for outcome, number in tally.items()]
    except Exception as error:
        rows = [{"outcome": None, "messages": None, "error": f"{type(error).__name__}: {error}"[:_WORDS]}]
    schema = pa.schema([("outcome", pa.string()), ("messages", pa.int64()), ("error", pa.string())])
    yield pa.RecordBatch.from_pylist(rows, schema)


@cache
def _consumer() -> Consumer:
    """Of this worker process, which Spark uses for one task after another: its connections stay."""
    return Consumer(settings_module.load())


def _cancel_on(spark: SparkSession, stop: threading.Event) -> None:
    stop.wait()
    try:
        spark.sparkContext.cancelJobGroup(_GROUP)
    except Exception:  # the session has ended before
        return
