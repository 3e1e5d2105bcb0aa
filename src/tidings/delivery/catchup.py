"""Catch-up: lanes that fell behind, delivered beside the stream until they are near it again.

Slow lanes (their destination answers, but later than a round waits) go in a group of their own, so that nobody waits for
them; within a group every lane has its own cursor and its own outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from psycopg import Connection

from tidings.changestream import reader, windows
from tidings.delivery import lanes
from tidings.delivery.deliver import Terms
from tidings.delivery.lanes import Lane, Report
from tidings.delivery.pipeline import Pipeline, Round
from tidings.events.positions import Position
from tidings.settings import Settings

log = logging.getLogger(__name__)

# A lane this many changes from the stream's position is served by the stream's next round.
_NEAR = 1000
# Windows in one chunk: each is a query of its own.
_MAX_WINDOWS = 200


def retry_after(settings: Settings, attempts: int) -> float:
    """The wait before the next try of a lane that has failed `attempts` times in a row."""
    schedule = settings.delivery.retry_seconds
    return schedule[min(attempts, len(schedule)) - 1]


def due(standing: lanes.Standing, slow: bool) -> list[Lane]:
    return [lane for lane in standing.in_state("behind") if lane.due and lane.slow == slow]


class Turns:
    """Whose turn it is: the lane that has waited longest leads a chunk, so that none waits for ever behind strangers."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._number = 0

    def leader(self, group: Sequence[Lane]) -> Lane:
        return min(group, key=lambda lane: (self._last.get(lane.id, 0), lane.cursor))

    def served(self, lanes_served: Sequence[Lane]) -> None:
        self._number += 1
        self._last.update((lane.id, self._number) for lane in lanes_served)


def catch_up(
    connection: Connection,
    pipeline: Pipeline,
    settings: Settings,
    epoch: int,
    stream: Position,
    group: Sequence[Lane],
    turns: Turns,
) -> int:
    """One chunk, from the leader's cursor on, for every lane of the group that it reaches; returns how many were confirmed.

    `stream` is a position of the stream from before the rules were read: a change behind it may need rules that the plan
    does not have yet.
    """
    leader = turns.leader(group)
    slow, start = leader.slow, leader.cursor
    end = min(_end(connection, start, settings.delivery.max_rows), stream)
    served = [lane for lane in group if lane is leader or start <= lane.cursor < end]
    turns.served(served)
    seconds = settings.delivery.publish_timeout_seconds if slow else settings.delivery.budget_seconds
    terms = Terms(
        budget=seconds,
        timeout=seconds,
        starts={lane.id: lane.cursor for lane in served},
        probing=frozenset(lane.id for lane in served if lane.attempts),
    )
    pieces = reader.slices(connection, start, end, lanes.rules_of(connection, [lane.id for lane in served]))
    reports = {r.lane: r for r in pipeline.run(Round(tuple(pieces), terms), rows=0)}
    for lane in served:
        reached = max(end, lane.cursor)
        near = reached >= stream or windows.end_of(connection, reached, _NEAR)[0] >= stream
        step = next_step(settings, lane, reports.get(lane.id, Report(lane.id, 0)), reached, near)
        if lanes.end_catch_up(connection, epoch, lane, step):
            _tell(lane, step)
    return sum(report.sent for report in reports.values())


def next_step(settings: Settings, lane: Lane, report: Report, reached: Position, near: bool) -> lanes.Step:
    """Where a chunk leaves its lane."""
    if report.cursor is None:
        slow = lane.slow and report.seconds > settings.delivery.budget_seconds
        return lanes.Step(reached, ready=near and not slow, slow=slow)
    cursor = max(report.cursor, lane.cursor)
    if report.late and (cursor > lane.cursor or not report.seconds):  # it is moving, or its turn did not come: go on
        return lanes.Step(cursor, slow=lane.slow)
    if report.late and not lane.slow:  # it may only need more time than a round has: no alarm yet
        return lanes.Step(cursor, slow=True)
    return lanes.Step(
        cursor, slow=report.late, wait=retry_after(settings, lane.attempts + 1), error=report.error or "no answer"
    )


def _tell(lane: Lane, step: lanes.Step) -> None:
    attempts = lane.attempts + 1
    if step.wait is not None:
        fields = {"lane": lane.id, "cursor": step.cursor, "attempts": attempts, "wait_seconds": step.wait}
        log.warning("lane %s: try %s failed, next in %g s: %s", lane.id, attempts, step.wait, step.error, extra=fields)
    elif lane.attempts:
        log.info("lane %s: its destination takes messages again", lane.id, extra={"lane": lane.id, "attempts": attempts})


def _end(connection: Connection, start: Position, max_rows: int) -> Position:
    end, _ = windows.end_of(connection, start, max_rows)
    return min(end, Position(start.window + _MAX_WINDOWS, 0))


def stream_position(connection: Connection) -> Position:
    row = connection.execute("select win, seq from stream where name = 'main'").fetchone()
    assert row is not None
    return Position(row[0], row[1])
