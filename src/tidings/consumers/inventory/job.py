"""The job: Spark reads the topics in batches, and one transaction for each merges what was read and moves the positions.

While PostgreSQL merges one batch Spark reads the next; batches are merged one after another. A crash before a merge's end
repeats the batch, a crash after it repeats nothing; Spark's own checkpoint is scratch. An advisory lock decides which consumer
works, the others wait; one that has lost the lock without noticing cannot move a position that another has moved.
"""

from __future__ import annotations

import json
import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession

from tidings.consumers.inventory import offsets, reading, rejects
from tidings.consumers.inventory.merging import merge_csv
from tidings.consumers.inventory.offsets import Offsets
from tidings.consumers.inventory.source import NAME, to_json
from tidings.consumers.inventory.telling import Told, ToldSource, pieces, told
from tidings.consumers.inventory.turns import Turns
from tidings.db.connecting import noticing
from tidings.errors import OperatorError, Superseded
from tidings.settings import Settings

log = logging.getLogger(__name__)

LOCK = 0x696E76656E746F72
"""Any constant will do, as long as every consumer of an inventory takes the same one ("inventor" in ASCII)."""
_WAITS = (1.0, 2.0, 4.0, 8.0)
_CONNECTOR = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


class Inventory:
    """Reads until `stop` is called, or with `once` until everything is read that was there when it began."""

    def __init__(self, spark: SparkSession, settings: Settings, once: bool = False, accept_loss: bool = False) -> None:
        wanted = settings.inventory
        if not wanted.topics:
            raise OperatorError(
                "No topics to read: name them with --topic, or set TIDINGS_INVENTORY__TOPICS='[\"my-events\"]'."
            )
        self._cluster = reading.cluster_of(settings, wanted.cluster)
        self._spark = spark
        self._settings = settings
        self._wanted = wanted
        self._once = once
        self._accept_loss = accept_loss
        self._stopped = threading.Event()
        self._known: Offsets = {}
        self.counts: Counter[str] = Counter()
        """What has been read since the start: events, tests, refused, and rows changed."""
        if wanted.source == "kafka":
            _check_connector(spark)
        else:
            spark.dataSource.register(ToldSource)

    def stop(self) -> None:
        """A batch that is being merged is waited for; one that is being read is read again next time."""
        self._stopped.set()

    def run(self, merged: Callable[[int], None] = lambda _: None) -> None:
        """`merged` is called with the lag after each batch. What passes by itself is waited for, here as in the stream."""
        failures = 0
        while not self._stopped.is_set():
            before = self.counts.total()
            try:
                with _one_at_a_time(self._settings.database_url, self._stopped) as mine:
                    if mine:
                        self._follow(merged)
                return
            except Superseded as error:
                log.warning("%s", error)
            except OperatorError:
                raise
            except Exception as error:  # the database, the brokers or a task: Spark wraps them all
                if self._once:
                    raise
                failures = failures + 1 if self.counts.total() == before else 1
                seconds = _WAITS[min(failures, len(_WAITS)) - 1]
                log.warning("the inventory waits %g s: %s", seconds, _first_line(error), extra={"failures": failures})
                self._stopped.wait(seconds)

    def _follow(self, merged: Callable[[int], None]) -> None:
        with self._connect() as connection:
            self._known = offsets.load(connection, self._wanted.cluster, self._wanted.topics)
        start = offsets.beginning(self._known, reading.ends(self._cluster, self._wanted.topics), self._accept_loss)
        self._accept_loss = False  # it was for what had happened by then
        failed: list[BaseException] = []

        def take(batch: DataFrame, _number: int) -> None:
            try:
                found = pieces(batch)
                merges.give(lambda: merged(self._merge(found)))
            except BaseException as error:
                failed.append(error)  # Spark passes on its words alone
                raise

        with Turns("inventory-merge") as merges, tempfile.TemporaryDirectory(prefix="tidings-inventory-") as scratch:
            writer = self._stream(start).writeStream.foreachBatch(take).option("checkpointLocation", scratch)
            poll = f"{round(self._wanted.poll_seconds * 1000)} milliseconds"
            query = (writer.trigger(availableNow=True) if self._once else writer.trigger(processingTime=poll)).start()
            try:
                while not self._stopped.is_set() and not query.awaitTermination(1):
                    merges.check()
            except Exception as error:
                raise failed[0] if failed else error from None
            finally:
                query.stop()
            merges.finish()

    def _stream(self, start: Offsets) -> DataFrame:
        """What the topics say, as `pieces` reads it."""
        reader, wanted = self._spark.readStream, self._wanted
        topics, positions = ",".join(wanted.topics), json.dumps(to_json(start))
        if wanted.source == NAME:
            return (
                reader.format(ToldSource.name())
                .options(cluster=wanted.cluster, topics=topics, positions=positions, max_rows=wanted.max_rows)
                .load()
            )
        named: dict[str, Any] = {
            "kafka.bootstrap.servers": self._cluster.bootstrap,
            "subscribe": topics,
            "startingOffsets": positions,
            "maxOffsetsPerTrigger": wanted.max_rows,
            "includeHeaders": True,
        }
        return told(reader.format("kafka").options(**wanted.spark_options, **named).load())

    def _merge(self, found: list[Told]) -> int:
        """One batch; returns the lag behind it."""
        began = time.perf_counter()
        counts: Counter[str] = sum((each.counts for each in found), Counter())
        reached = _furthest(found)
        with self._connect() as connection:
            counts["changed"] = merge_csv(connection, (each.rows for each in found)) if counts["events"] else 0
            if counts["refused"]:
                rejects.keep(connection, self._wanted.cluster, (one for each in found for one in each.refused))
            offsets.move(connection, self._wanted.cluster, self._known, reached)
        for topic, parts in reached.items():
            self._known.setdefault(topic, {}).update(parts)
        self.counts += counts
        return self._say(counts, time.perf_counter() - began)

    def _say(self, counts: Counter[str], seconds: float) -> int:
        lag = offsets.behind(self._known, reading.ends(self._cluster, self._wanted.topics))
        extra = {**figures(counts), "lag": lag, "seconds": round(seconds, 3)}
        log.info("a batch is in the inventory", extra=extra)
        if counts["refused"]:
            log.warning(
                "%d messages could not be used: `tidings inventory rejects` shows why", counts["refused"], extra={"lag": lag}
            )
        return lag

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(noticing(self._settings.database_url), application_name="tidings-inventory")


def figures(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in ("events", "changed", "tests", "refused")}


def words(counts: Counter[str]) -> str:
    """A run of the job in one line."""
    refused = counts["refused"]
    why = f", {refused} could not be used: `tidings inventory rejects` shows why" if refused else ""
    return f"{counts['events']} events, {counts['changed']} rows changed{why}"


def _furthest(found: list[Told]) -> Offsets:
    reached: Offsets = {}
    for each in found:
        for topic, parts in each.offsets.items():
            for part, offset in parts.items():
                known = reached.setdefault(topic, {})
                known[part] = max(offset, known.get(part, 0))
    return reached


@contextmanager
def _one_at_a_time(url: str, stopped: threading.Event) -> Iterator[bool]:
    """Wait for the lock; false if that was stopped."""
    with psycopg.connect(noticing(url), autocommit=True, application_name="tidings-inventory-lock") as connection:
        told_so = False
        while not stopped.is_set():
            row = connection.execute("select pg_try_advisory_lock(%s)", [LOCK]).fetchone()
            if row is not None and row[0]:
                break
            if not told_so:
                log.info("another consumer of the inventory is running: this one waits for it to end")
                told_so = True
            stopped.wait(1)
        yield not stopped.is_set()


def _check_connector(spark: SparkSession) -> None:
    try:
        spark.sparkContext._jvm.java.lang.Class.forName(  # type: ignore[union-attr]
            _CONNECTOR,
            False,
            spark.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader(),  # type: ignore[union-attr]
        )
    except Exception as error:
        raise OperatorError(
            "Spark's own Kafka connector is not there: name its package in spark.conf (spark.jars.packages), or leave"
            f" inventory.source at {NAME}."
        ) from error


def _first_line(error: BaseException) -> str:
    """Spark's words have the whole trace in them."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
