"""Catch-up: lanes that fell behind, delivered beside the stream until they are near it again.

Slow lanes (their destination answers, but later than a round waits) go in a group of their own, so that nobody waits for
them, and so do replays; within a group every lane has its own cursor and its own outcome.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence
from typing import Literal

from psycopg import Connection

from tidings.changestream import reader, windows
from tidings.changestream.positions import between
from tidings.delivery import alerts, lanes
from tidings.delivery.deliver import Terms
from tidings.delivery.lanes import Lane, Standing
from tidings.delivery.pipeline import Pipeline, Round
from tidings.delivery.reports import MOST_PATIENCE_SECONDS, Report
from tidings.delivery.sending import Care
from tidings.delivery.settings import DeliverySettings
from tidings.events.positions import Position
from tidings.settings import Settings

log = logging.getLogger(__name__)

# A lane this many changes from the stream's position is served by the stream's next round, if they fit into a share.
_NEAR = 1000
# Changes in a chunk for a lane that is slow: with fewer, every other second would go to the chunks themselves.
_SMALL = 500
# Changes for a lane that has failed, and how many such lanes are tried at once.
_TRIED, _TRIED_LANES = 1000, 100
# Windows in one chunk: each is a query of its own.
_MAX_WINDOWS = 200
# So that lanes which failed in the same moment do not all come back in the same moment.
_JITTER = 0.1

Group = Literal["quick", "slow", "replay"]


def retry_after(settings: DeliverySettings, attempts: int, asked: float = 0.0) -> float:
    """The wait before the next try of a lane that has failed `attempts` times in a row; `asked` is what the peer wants."""
    schedule = settings.retry_seconds
    own = schedule[min(attempts, len(schedule)) - 1] * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 spreads retries, guards nothing
    return max(own, min(asked, MOST_PATIENCE_SECONDS))


def spent(settings: DeliverySettings, attempts: int) -> bool:
    """Whether the schedule is over: from here on it is the last wait, again and again."""
    return attempts > len(settings.retry_seconds)


def group_of(lane: Lane) -> Group:
    return "replay" if lane.replay else "slow" if lane.slow else "quick"


class Turns:
    """Whose turn it is: the lane that has waited longest leads a chunk, so that none waits for ever behind strangers.

    And how large its chunk is: what does not get through in time is read and rendered for nothing.
    """

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._number = 0
        self._sizes: dict[int, int] = {}

    def leader(self, group: Sequence[Lane]) -> Lane:
        return min(group, key=lambda lane: (self._last.get(lane.id, 0), lane.cursor))

    def served(self, lanes_served: Sequence[Lane]) -> None:
        self._number += 1
        self._last.update((lane.id, self._number) for lane in lanes_served)

    def size(self, leader: Lane, most: int) -> int:
        """How many changes the leader's next chunk should have."""
        return min(self._sizes.get(leader.id, most), most)

    def ended(self, leader: Lane, size: int, late: bool) -> None:
        """A chunk for which there was no time is followed by one of half its size, any other by a larger one."""
        self._sizes[leader.id] = max(size // 2, min(size, _SMALL)) if late else 2 * size


def due(standing: Standing, group: Group, turns: Turns) -> list[Lane]:
    """The lanes of a group whose time has come. Of those that failed at one peer, one: it tries for all of them."""
    behind = [lane for lane in standing.in_state("behind") if lane.due and group_of(lane) == group]
    found = [lane for lane in behind if not lane.attempts]
    failing: dict[str, list[Lane]] = {}
    for lane in behind:
        if lane.attempts:
            failing.setdefault(lane.peer, []).append(lane)
    return found + [turns.leader(of_peer) for of_peer in failing.values()]


def catch_up(
    connection: Connection,
    pipeline: Pipeline,
    settings: Settings,
    epoch: int,
    stream: Position,
    standing: Standing,
    group: Sequence[Lane],
    turns: Turns,
) -> tuple[list[Report], int]:
    """One chunk, from the leader's cursor on, for every lane of the group that it reaches.

    Returns what was done for each, and how many alerts were raised.

    `stream` is a position of the stream from before the rules were read: a change behind it may need rules that are not
    known yet.
    """
    leader = turns.leader(group)
    replay = leader.replay
    rate = replay.rate if replay else settings.delivery.catch_up_rate or None
    most = settings.delivery.max_rows if rate is None else max(1, min(settings.delivery.max_rows, int(rate)))
    rows = turns.size(leader, most)
    if leader.attempts and not replay:
        ends = _tried_together(connection, settings.delivery, group, stream, min(rows, _TRIED))
    else:
        end = min(_end(connection, leader.cursor, rows), replay.until if replay else stream)
        beside = () if replay else (each for each in group if not each.attempts and leader.cursor <= each.cursor < end)
        ends = {leader: end, **dict.fromkeys(beside, end)}
    served = list(ends)
    turns.served(served)
    seconds = settings.delivery.publish_timeout_seconds if leader.slow else settings.delivery.budget_seconds
    terms = Terms(
        budget=seconds,
        timeout=seconds,
        starts={lane.id: lane.cursor for lane in served},
        ends={lane.id: end for lane, end in ends.items()},
        care={lane.id: care(settings.delivery, lane) for lane in served if lane.attempts},
        tries={lane.id: lane.attempts for lane in served if lane.attempts},
        replays=frozenset(lane.id for lane in served if lane.replay),
    )
    wanted = replay.sources if replay else lanes.rules_of(connection, [lane.id for lane in served])
    prefix = replay.prefix if replay else ""
    pieces = [
        piece
        for start, end in apart((lane.cursor, end) for lane, end in ends.items())
        for piece in reader.slices(connection, start, end, wanted, prefix)
    ]
    reports = {r.lane: r for r in pipeline.run(Round(tuple(pieces), standing.moment, terms), rows=0)}
    turns.ended(leader, rows, late=leader.id in reports and reports[leader.id].late)
    close = min(_NEAR, settings.delivery.share_calls // len(ends))
    alerted = 0
    for lane, end in ends.items():
        reached = max(end, lane.cursor)
        near = reached >= stream or windows.end_of(connection, reached, close)[0] >= stream
        report = reports.get(lane.id, Report(lane.id, 0))
        step = next_step(settings.delivery, lane, report, reached, near and not lane.replay, rate)
        if lanes.end_catch_up(connection, epoch, lane, step, report):
            alerted += tell(settings, lane, step)
    return list(reports.values()), alerted


def _tried_together(
    connection: Connection, settings: DeliverySettings, group: Sequence[Lane], stream: Position, rows: int
) -> dict[Lane, Position]:
    """The lanes of the group that have failed, and up to where each is tried: all of them at once, wherever they are.

    Most of them fail again, and some only when their time is over: one after another they would take it from everybody else.
    """
    found: dict[Lane, Position] = {}
    for lane in [each for each in group if each.attempts][:_TRIED_LANES]:
        end = min(_end(connection, lane.cursor, rows), stream)
        if spent(settings, lane.attempts) and _is_power_of_two(lane.attempts) and _lonely(connection, lane, end):
            end = min(Position(lane.cursor.window + _MAX_WINDOWS * lane.attempts, 0), stream)
        found[lane] = end
    return found


def _is_power_of_two(number: int) -> bool:
    """Now and then, and less and less often: looking far costs a query for each window."""
    return number & (number - 1) == 0


def _lonely(connection: Connection, lane: Lane, end: Position) -> bool:
    """Whether there is nothing for a lane besides its first message: then nobody can tell whether the message is bad."""
    owed = f"{between(connection, lane.cursor, end)} and string_to_array(rules, ',') && %s::text[]"
    found = connection.execute(
        f"select from changes where {owed} limit 2".encode(),
        [[str(rule) for rule in lanes.rules_of(connection, [lane.id])]],
    )
    return found.rowcount < 2


def apart(ranges: Iterable[tuple[Position, Position]]) -> list[tuple[Position, Position]]:
    """The same positions in ranges that do not overlap, in order: what lies in two of them is read once."""
    found: list[tuple[Position, Position]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def care(settings: DeliverySettings, lane: Lane) -> Care:
    return "suspect" if spent(settings, lane.attempts) else "probe"


def next_step(
    settings: DeliverySettings, lane: Lane, report: Report, reached: Position, near: bool, rate: float | None = None
) -> lanes.Step:
    """Where a chunk leaves its lane."""
    pause = report.sent / rate if rate else None
    if report.cursor is None:
        slow = lane.slow and report.seconds > settings.budget_seconds
        return lanes.Step(reached, ready=near and not slow, slow=slow, wait=None if near else pause)
    cursor = max(report.cursor, lane.cursor)
    if report.late and (cursor > lane.cursor or not report.seconds):  # it is moving, or its turn did not come: go on
        return lanes.Step(cursor, slow=lane.slow, wait=pause)
    if report.late and not lane.slow:  # it may only need more time than a round has: no alarm yet
        return lanes.Step(cursor, slow=True)
    wait = retry_after(settings, lane.attempts + 1, report.after)
    return lanes.Step(cursor, slow=report.late, wait=wait, error=report.error or "no answer", down=not report.waits)


def tell(settings: Settings, lane: Lane, step: lanes.Step) -> bool:
    """Whether an alert was raised."""
    attempts = lane.attempts + 1
    if step.error is not None:
        fields = {"lane": lane.id, "cursor": step.cursor, "attempts": attempts, "wait_seconds": step.wait}
        log.warning("lane %s: try %s failed, next in %.1f s: %s", lane.id, attempts, step.wait, step.error, extra=fields)
        if spent(settings.delivery, attempts) and not spent(settings.delivery, lane.attempts):
            alerts.critical(settings.delivery, lane.id, lane.peer, attempts, step.error)
            return True
    elif lane.attempts:
        log.info("lane %s: its destination takes messages again", lane.id, extra={"lane": lane.id, "attempts": attempts})
    return False


def _end(connection: Connection, start: Position, max_rows: int) -> Position:
    end, _ = windows.end_of(connection, start, max_rows)
    return min(end, Position(start.window + _MAX_WINDOWS, 0))


def stream_position(connection: Connection) -> Position:
    row = connection.execute("select win, seq from stream where name = 'main'").fetchone()
    assert row is not None
    return Position(row[0], row[1])
