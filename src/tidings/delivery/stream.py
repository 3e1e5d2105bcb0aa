"""The stream: cuts windows, runs rounds, and catches lanes up beside them. One is active; others wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import psycopg
from psycopg import Connection
from pyspark.sql import SparkSession

from tidings.changestream import reader, windows
from tidings.changestream.retention import keep_up
from tidings.delivery import alerts, archive, catchup, dead_letters, lanes, ownership, session, shares, unanswered
from tidings.delivery.backfilling import Backfilling
from tidings.delivery.deliver import Terms
from tidings.delivery.figures import Figures
from tidings.delivery.ownership import Owner
from tidings.delivery.patience import Patience
from tidings.delivery.pipeline import Pipeline, Round
from tidings.delivery.reports import Report
from tidings.delivery.sending import Care
from tidings.errors import ForeignPosition, OperatorError, Superseded
from tidings.events.positions import Position
from tidings.settings import Settings

log = logging.getLogger(__name__)

_CATCH_UP_POLL_SECONDS = 0.2
_UPKEEP_SECONDS = 60.0
# Spark ends Python workers that were idle for a minute, and a new one loads its clients for seconds.
_STAY_WARM_SECONDS = 25.0
# A round costs the same for one change and for hundreds. The more of them come, the longer it pays to gather: fewer rounds
# leave the processor to those who write. When they come in tens of thousands, the next round is full already. At 0.4 s a PUT
# with eventing was at 0.89 of one without on two cores, at 1 s it is at 0.95 to 1.
_BUSY_ROWS = 50
_GATHER_SECONDS_A_ROW = 0.001
_GATHER_SECONDS = 1.0
# The round of a backlog is large, and has the budget once for so many changes: who keeps up this pace stays with the stream.
_BUDGET_ROWS = 5000


class Stream:
    """Runs until told to stop. If the database goes away it waits and starts again from the stored position."""

    def __init__(self, spark: SparkSession, settings: Settings, rebase: bool = False, figures: Figures | None = None) -> None:
        self._spark = spark
        self._settings = settings
        self._rebase = rebase
        self._stop = threading.Event()
        self._turns = catchup.Turns()
        self._backfilling = Backfilling(settings, self._turns)
        self._patience = Patience(settings.delivery.budget_seconds)
        self._figures = figures or Figures()
        self._over = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def run(self, started: Callable[[Owner], None] = lambda _: None) -> None:
        """`started` is called each time the stream becomes ours."""
        while not self._stop.is_set():
            try:
                with ownership.connect(self._settings.database_url, "stream") as connection:
                    owner = ownership.acquire(connection, self._stop, self._rebase)
                    if owner is not None:
                        self._rebase = False
                        started(owner)
                        self._own(connection, owner)
            except Superseded as error:
                log.warning("%s", error)
            except ForeignPosition:
                raise
            except Exception as error:
                if not session.lives(self._spark):
                    raise OperatorError(
                        "Spark's JVM has died: start the stream again. `tidings up` does so by itself."
                    ) from error
                # the database or a worker: the position stands, so begin again there
                log.error("the stream stops and starts again: %s", _first_line(error))
                self._stop.wait(1.0)

    def _own(self, connection: Connection, owner: Owner) -> None:
        """Rounds in this thread, everything else beside it; the first that fails ends them all."""
        fields = {"epoch": owner.epoch, "position": owner.position}
        log.info("the stream is ours: epoch %s at position %s", owner.epoch, owner.position, extra=fields)
        self._over = over = threading.Event()
        failures: list[Exception] = []
        helpers = [
            threading.Thread(target=self._beside, args=(over, failures, owner, job, every), name=job.__name__, daemon=True)
            for job, every in (
                (self._show_sign_of_life, ownership.SIGN_OF_LIFE_SECONDS),
                (self._catch_up_quick, _CATCH_UP_POLL_SECONDS),
                (self._catch_up_slow, _CATCH_UP_POLL_SECONDS),
                (self._replay, _CATCH_UP_POLL_SECONDS),
                (self._upkeep, _UPKEEP_SECONDS),
            )
        ]
        try:
            for helper in helpers:
                helper.start()
            self._rounds(connection, owner, over)
        finally:
            over.set()
            for helper in helpers:
                helper.join()
        if failures:
            raise failures[0]

    def _rounds(self, connection: Connection, owner: Owner, over: threading.Event) -> None:
        pipeline = Pipeline(self._spark, self._settings, "stream")
        position, newest = owner.position, windows.last(connection)
        used = time.monotonic()
        while not self._stop.is_set() and not over.is_set():
            newest = windows.cut(connection, newest) or newest
            done = self._round(connection, pipeline, owner.epoch, position, newest)
            if done is not None:
                (position, rows), used = done, time.monotonic()
                if _BUSY_ROWS <= rows < self._settings.delivery.max_rows:
                    self._stop.wait(min(rows * _GATHER_SECONDS_A_ROW, _GATHER_SECONDS))
            elif time.monotonic() - used > _STAY_WARM_SECONDS:
                pipeline.stay_warm()
                used = time.monotonic()
            else:
                self._stop.wait(self._settings.delivery.poll_seconds)

    def _round(
        self, connection: Connection, pipeline: Pipeline, epoch: int, start: Position, newest: windows.Window
    ) -> tuple[Position, int] | None:
        """Deliver (start, end] to every live lane and to those that are ready: the end and how many changes that were.

        None if there was nothing to do.

        The end is fixed before the lanes are read: a lane that is made in between has no change before it.
        """
        most = self._settings.delivery.max_rows
        end, rows = windows.end_of(connection, start, most) if newest.end > start else (start, 0)
        standing = lanes.standing(connection)
        ready = standing.in_state("ready")
        pipeline.learn(standing.moment, connection)  # also while idle: no event waits for a new plan
        if end == start and not ready and not standing.unsettled:
            return None
        pieces = reader.slices(connection, start, end)
        if ready:
            wanted = lanes.rules_of(connection, [lane.id for lane in ready])
            pieces = reader.slices(connection, min(lane.cursor for lane in ready), start, wanted) + pieces
        read, shared = rows, shares.Cut(rows)
        if self._settings.delivery.isolation == "lane":
            shared = shares.cut(connection, self._settings.delivery.share_calls, pieces, start, rows, standing)
        rows = shared.rows
        budget = self._settings.delivery.budget_seconds * max(1.0, rows / _BUDGET_ROWS)
        terms = Terms(
            budget=budget,
            timeout=self._patience.seconds(rows),
            everyone_from=start,
            starts={lane.id: lane.cursor for lane in ready},
            skipped=standing.not_served,
            ends=shared.ends,
        )
        reports = pipeline.run(Round(tuple(pieces), standing.moment, terms), rows)
        if self._settings.delivery.isolation == "stream":
            reports, end = self._wait_for_all(connection, pipeline, end, standing, reports)
        reports = shares.hold_back(reports, shared.ends)
        first_retry = catchup.retry_after(self._settings.delivery, 1)
        failed = pipeline.pop_unanswered()
        lanes.end_round(connection, epoch, start, end, ready, reports, first_retry, standing.unsettled, failed)
        self._patience.learn(reports)
        self._figures.add(reports, failed)
        for report in reports:
            _tell(report)
        return end, read if read == most else rows

    def _wait_for_all(
        self, connection: Connection, pipeline: Pipeline, end: Position, standing: lanes.Standing, reports: list[Report]
    ) -> tuple[list[Report], Position]:
        """Seed 000 to the letter: at the first record that fails everybody waits until it is taken; then the stream goes on.

        What was sent of later records is sent again. Lanes that have a cursor of their own are not waited for.
        """
        settings, own = self._settings.delivery, {lane.id for lane in standing.lanes}
        failed = {r.lane: r for r in reports if r.cursor is not None and r.lane not in own}
        if not failed:
            return reports, end
        before = min(report.cursor for report in failed.values() if report.cursor is not None)
        record = Position(before.window, before.seq + 1)
        seconds = settings.publish_timeout_seconds
        pieces = tuple(reader.slices(connection, before, record))
        again: list[Report] = []
        attempts = 0
        while failed:
            attempts += 1
            first = next(iter(failed.values()))
            wait = catchup.retry_after(settings, attempts, first.after)
            fields = {"lane": first.lane, "position": record, "attempts": attempts, "wait_seconds": wait}
            error = first.error or "no answer"
            log.warning(
                "everybody waits at %s for lane %s, next try in %.1f s: %s", record, first.lane, wait, error, extra=fields
            )
            if attempts == len(settings.retry_seconds) + 1:
                alerts.critical(settings, first.lane, str(record), attempts, error)
                self._figures.alerted()
            if self._stop.wait(wait) or self._over.is_set():
                raise Superseded(f"Stopped while waiting at {record}.")
            # A rule that was deleted meanwhile, or a lane that somebody has paused, is not waited for any longer.
            standing = lanes.standing(connection)
            pipeline.learn(standing.moment, connection)
            own |= {lane.id for lane in standing.lanes}
            care: dict[int, Care] = dict.fromkeys(failed, "probe")
            tries = dict.fromkeys(failed, attempts)
            terms = Terms(seconds, seconds, everyone_from=before, skipped=frozenset(own), care=care, tries=tries)
            again = pipeline.run(Round(pieces, standing.moment, terms), rows=0)
            failed = {report.lane: report for report in again if report.cursor is not None}
        kept = [replace(r, dead=tuple(d for d in r.dead if (d["win"], d["seq"]) <= record)) for r in reports]
        passed = [r if r.lane in own else replace(r, cursor=None) for r in kept]
        return [*passed, *(replace(r, sent=0) for r in again if r.dead)], record

    def _beside(
        self,
        over: threading.Event,
        failures: list[Exception],
        owner: Owner,
        job: Callable[[Connection, Pipeline, Owner], bool],
        every: float,
    ) -> None:
        """Run a job again and again, on a connection and a plan of its own, until the stream is no longer ours."""
        pipeline = Pipeline(self._spark, self._settings, job.__name__)
        try:
            with ownership.connect(self._settings.database_url, job.__name__) as connection:
                while not self._stop.is_set() and not over.is_set():
                    if not job(connection, pipeline, owner):
                        over.wait(every)
        except Exception as error:
            failures.append(error)
            over.set()

    def _show_sign_of_life(self, connection: Connection, _pipeline: Pipeline, owner: Owner) -> bool:
        if not ownership.show_sign_of_life(connection, owner.epoch):
            raise Superseded(f"Another stream has taken over from epoch {owner.epoch}.")
        return False

    def _catch_up_quick(self, connection: Connection, pipeline: Pipeline, owner: Owner) -> bool:
        return self._catch_up(connection, pipeline, owner, "quick")

    def _catch_up_slow(self, connection: Connection, pipeline: Pipeline, owner: Owner) -> bool:
        return self._catch_up(connection, pipeline, owner, "slow")

    def _replay(self, connection: Connection, pipeline: Pipeline, owner: Owner) -> bool:
        """Backfills too: both are for one rule, and have no hurry."""
        replayed = self._catch_up(connection, pipeline, owner, "replay")
        return self._backfill(connection, pipeline, owner) or replayed

    def _backfill(self, connection: Connection, pipeline: Pipeline, owner: Owner) -> bool:
        standing = lanes.standing(connection)
        if not standing.in_state("backfill"):
            return False
        pipeline.learn(standing.moment, connection)
        done = self._backfilling.step(connection, pipeline, owner.epoch, standing)
        if done is None:
            return False
        report, alerted = done
        if report is not None:
            self._figures.add([report])
            _tell_dead(report)
        for _ in range(alerted):
            self._figures.alerted()
        return True

    def _catch_up(self, connection: Connection, pipeline: Pipeline, owner: Owner, group: catchup.Group) -> bool:
        position = catchup.stream_position(connection)  # before the rules, as a round fixes its end before them
        standing = lanes.standing(connection)
        due = catchup.due(standing, group, self._turns)
        if due or group != "replay":
            pipeline.learn(standing.moment, connection)
        if not due:
            if group != "replay":  # which has no hurry
                pipeline.prepare()
            return False
        try:
            reports, alerted = catchup.catch_up(
                connection, pipeline, self._settings, owner.epoch, position, standing, due, self._turns
            )
        except ForeignPosition:
            if not lanes.stop_lost(connection, owner.epoch):
                raise
            return True
        failed = pipeline.pop_unanswered()
        unanswered.write(connection, failed)
        self._patience.learn(reports)
        self._figures.add(reports, failed)
        for _ in range(alerted):
            self._figures.alerted()
        for report in reports:
            _tell_dead(report)
        return True

    def _upkeep(self, connection: Connection, _pipeline: Pipeline, owner: Owner) -> bool:
        settings = self._settings
        chores: dict[str, Callable[[], object]] = {
            "partitions": partial(keep_up, connection, settings.changestream),
            "lanes": partial(_close_unused, connection, owner.epoch),
            "dead letters": partial(dead_letters.forget, connection, settings.delivery.dead_letter_days),
        }
        if settings.delivery.archive:  # before what it keeps is dropped
            chores = {"archive": partial(archive.archive_expired, connection, self._spark, settings, owner.epoch)} | chores
        for name, chore in chores.items():
            try:
                chore()
            except Superseded:
                raise
            except Exception as error:
                if connection.closed:
                    raise
                # delivery does not depend on it: say so, go on with the next, and try again later
                log.error("upkeep of the change stream (%s) failed: %s", name, _first_line(error))
        return False


def _close_unused(connection: Connection, epoch: int) -> None:
    for lane in lanes.close_unused(connection, epoch):
        log.info("lane %s: no rule leads to it any more; closed", lane, extra={"lane": lane})


def _tell(report: Report) -> None:
    fields = {"lane": report.lane, "cursor": report.cursor, "late": report.late}
    if report.cursor is not None:
        level = logging.INFO if report.late else logging.WARNING
        why = report.error or "slow"
        log.log(level, "lane %s falls behind at %s: %s", report.lane, report.cursor, why, extra=fields)
    _tell_dead(report)


def _tell_dead(report: Report) -> None:
    for letter in report.dead:
        fields = {"lane": report.lane, "message_id": letter["message"]}
        log.warning("lane %s: a dead letter: %s", report.lane, letter["reason"], extra=fields)


def _first_line(error: Exception) -> str:
    if isinstance(error, psycopg.Error):
        return f"database: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
