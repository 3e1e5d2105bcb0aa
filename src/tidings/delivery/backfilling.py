"""Serving backfills, beside the stream: first the objects that are older than a rule, then its lane may follow.

A lane that is in the state `backfill` is held at the rule's first position. Its place in the listing, and what is staged of it,
is kept in `backfills`: whoever owns the stream goes on from there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from psycopg import Connection
from psycopg.rows import class_row

from tidings.changestream.reader import Slice
from tidings.delivery import catchup, existing, lanes
from tidings.delivery.deliver import Terms
from tidings.delivery.lanes import Lane, Standing
from tidings.delivery.pipeline import Pipeline, Round
from tidings.delivery.reports import Report
from tidings.settings import Settings

log = logging.getLogger(__name__)

_READ = """
select id, n, told, begun_at is not null as begun, listed_at is not null as listed from backfills
where lane = %s and ended_at is null
"""


@dataclass(frozen=True, slots=True)
class Progress:
    id: int
    n: int
    told: int
    begun: bool
    listed: bool


class Backfilling:
    """One step at a time, for the lane that has waited longest."""

    def __init__(self, settings: Settings, turns: catchup.Turns) -> None:
        self._settings = settings
        self._turns = turns
        self._waited_for: dict[int, frozenset[str]] = {}

    def step(
        self, connection: Connection, pipeline: Pipeline, epoch: int, standing: Standing
    ) -> tuple[Report | None, int] | None:
        """What was done for a lane, and how many alerts were raised; None if there was nothing to do."""
        due = [lane for lane in standing.in_state("backfill") if lane.due]
        while due:
            lane = self._turns.leader(due)
            self._turns.served([lane])
            due.remove(lane)
            with connection.cursor(row_factory=class_row(Progress)) as cursor:
                progress = cursor.execute(_READ, [lane.id]).fetchone()
            if progress is None:
                continue
            if not progress.begun and not self._begin(connection, epoch, lane):
                continue
            if progress.told == progress.n and not progress.listed:
                literal = self._settings.bucket_eventing.dialect.literal_filters
                existing.stage(connection, epoch, lane.id, self._settings.delivery.max_rows, literal)
                return None, 0
            return self._deliver(connection, pipeline, epoch, standing, lane, progress)
        return None

    def _begin(self, connection: Connection, epoch: int, lane: Lane) -> bool:
        """Whether every transaction that may have read the rules before this one was there has ended.

        They are those that were writing when we first looked, which is after the rule was committed.
        """
        there = existing.writers(connection)
        waited_for = self._waited_for.setdefault(lane.id, frozenset(there)) & there.keys()
        if waited_for:
            sessions = ", ".join(sorted(str(there[each]) for each in waited_for))
            lanes.note(connection, epoch, lane.id, f"waits for transactions that began before it (sessions {sessions})")
            return False
        lanes.begin_backfill(connection, epoch, lane.id)
        del self._waited_for[lane.id]
        return True

    def _deliver(
        self, connection: Connection, pipeline: Pipeline, epoch: int, standing: Standing, lane: Lane, progress: Progress
    ) -> tuple[Report, int]:
        """What is staged, as much as there is time for."""
        settings = self._settings.delivery
        rate = settings.catch_up_rate or None
        most = settings.max_rows if rate is None else max(1, min(settings.max_rows, int(rate)))
        rows = self._turns.size(lane, most)
        upto = min(progress.n, progress.told + rows)
        held = replace(lane, cursor=existing.place(progress.told))
        seconds = settings.publish_timeout_seconds if lane.slow else settings.budget_seconds
        terms = Terms(
            budget=seconds,
            timeout=seconds,
            starts={lane.id: held.cursor},
            care={lane.id: catchup.care(settings, lane)} if lane.attempts else {},
            tries={lane.id: lane.attempts} if lane.attempts else {},
            backfills=frozenset({lane.id}),
        )
        report = Report(lane.id, 0)
        if upto > progress.told:
            piece = Slice(0, existing.condition(progress.id, progress.told, upto), dense=True, staged=True)
            [report] = pipeline.run(Round((piece,), standing.moment, terms), rows=upto - progress.told) or [report]
            self._turns.ended(lane, rows, late=report.late)
        if report.cursor is not None:  # just before the first row that was not delivered
            report = replace(report, cursor=existing.place(report.cursor.window - 1))
        step = catchup.next_step(settings, held, report, existing.place(upto), near=False, rate=rate)
        alerted = 0
        if lanes.end_page(connection, epoch, lane, progress.told, step, report):
            alerted = int(catchup.tell(self._settings, lane, step))
        # How long ago objects were put is not how long their messages took.
        return replace(report, delays=(), delay=0.0), alerted
