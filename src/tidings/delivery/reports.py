"""What a round did for each lane: one report from the rows of all tasks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidings.events.positions import Position

MOST_PATIENCE_SECONDS = 300.0
"""A peer may ask for patience, not for ever: `after` counts for no more, in a round as in catch-up."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a round did for one lane.

    `cursor` is set where something was left undelivered, to just before the first of it; `late` if only time ran out; `waits`
    if somebody must act first; `seconds` is the longest wait for an answer, `after` how long the peer asked us to wait.
    """

    lane: int
    sent: int
    cursor: Position | None = None
    late: bool = False
    seconds: float = 0.0
    error: str | None = None
    waits: bool = False
    after: float = 0.0
    bytes: int = 0
    dead: tuple[dict[str, Any], ...] = ()
    """Dead letters: the columns of the table."""
    delays: tuple[int, ...] = ()
    delay: float = 0.0


def merge(rows: Iterable[Any]) -> list[Report]:
    """One report for each lane from the rows of all tasks (`deliver.RESULT`): the lowest undelivered position decides.

    What was refused after that position will be tried again, and is no dead letter yet.
    """
    merged: dict[int, list[Any]] = {}
    for row in rows:
        merged.setdefault(row.lane, []).append(row)
    return [_report(lane, of_lane) for lane, of_lane in merged.items()]


def _report(lane: int, rows: list[Any]) -> Report:
    cursors = [Position(row.window, row.seq).just_before for row in rows if row.window is not None]
    cursor = min(cursors, default=None)
    dead = [letter for row in rows if row.dead for letter in json.loads(row.dead)]
    return Report(
        lane,
        sum(row.sent for row in rows),
        cursor,
        late=any(row.late for row in rows),
        seconds=max(row.seconds for row in rows),
        error=next((row.error for row in rows if row.error), None),
        waits=any(row.waits for row in rows),
        after=max(row.after for row in rows),
        bytes=sum(row.bytes for row in rows),
        dead=tuple(letter for letter in dead if cursor is None or (letter["win"], letter["seq"]) <= cursor),
        delays=tuple(map(sum, zip(*(row.delays for row in rows), strict=True))),
        delay=sum(row.delay for row in rows),
    )
