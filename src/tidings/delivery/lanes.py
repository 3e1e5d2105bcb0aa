"""Lanes: the table, and the two transactions that move them.

Each checks the epoch, so that a stream which was replaced moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg.types.json import Json

from tidings.errors import Superseded
from tidings.events.positions import Position


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane that does not run with the stream: behind or ready, with a cursor of its own."""

    id: int
    state: str
    cursor: Position
    attempts: int
    slow: bool
    due: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What a round did for one lane.

    `cursor` is set where something was left undelivered, to just before the first of it; `late` if only time ran out;
    `seconds` is the longest wait for an answer.
    """

    lane: int
    sent: int
    cursor: Position | None = None
    late: bool = False
    seconds: float = 0.0
    error: str | None = None

    @property
    def stuck(self) -> bool:
        """It was asked, and not one answer came in time."""
        return self.late and self.sent == 0 and self.seconds > 0


@dataclass(frozen=True, slots=True)
class Standing:
    """Which lanes are not live, and how new the rules are, seen in one snapshot."""

    rules_version: int
    lanes: tuple[Lane, ...]

    def in_state(self, state: str) -> list[Lane]:
        return [lane for lane in self.lanes if lane.state == state]


def standing(connection: Connection) -> Standing:
    rows = connection.execute(
        """
        select v.version, l.id, l.state, l.win, l.seq, l.attempts, l.slow, coalesce(l.next_try <= now(), true)
        from rules_version v left join lanes l on l.state <> 'live'
        order by l.id
        """
    ).fetchall()
    lanes = tuple(Lane(r[1], r[2], Position(r[3], r[4]), r[5], r[6], r[7]) for r in rows if r[1] is not None)
    return Standing(rows[0][0], lanes)


def merge(rows: Iterable[tuple[int, int, int | None, int | None, bool, float, str | None]]) -> list[Report]:
    """One report for each lane from the rows of all tasks: the lowest undelivered position decides."""
    merged: dict[int, Report] = {}
    for lane, sent, window, seq, late, seconds, error in rows:
        cursor = Position(window, seq).just_before if window is not None and seq is not None else None
        known = merged.get(lane, Report(lane, 0))
        cursors = [place for place in (known.cursor, cursor) if place is not None]
        merged[lane] = Report(
            lane,
            known.sent + sent,
            min(cursors, default=None),
            known.late or late,
            max(known.seconds, seconds),
            known.error or error,
        )
    return list(merged.values())


def end_round(
    connection: Connection,
    epoch: int,
    start: Position,
    end: Position,
    ready: Iterable[Lane],
    reports: Iterable[Report],
    first_retry: float,
) -> None:
    """The end of a stream's round: its position, lanes that failed and lanes that rejoin move together, or nothing does.

    A lane that only ran out of time is left to catch-up at once, without alarm; a failed one waits for its first retry.
    """
    failed = {report.lane: report for report in reports if report.cursor is not None}
    rejoined = [lane.id for lane in ready if lane.id not in failed]
    behind = [
        {
            "lane": r.lane,
            "win": r.cursor.window,
            "seq": r.cursor.seq,
            "late": r.late,
            "slow": r.stuck,
            "error": r.error,
        }
        for r in failed.values()
        if r.cursor is not None
    ]
    with connection.transaction():
        moved = connection.execute(
            """
            with s as (update stream set win = %(end_win)s, seq = %(end_seq)s, alive_at = now()
                       where name = 'main' and epoch = %(epoch)s and (win, seq) = (%(win)s, %(seq)s) returning 1),
                 o as (select * from json_to_recordset(%(behind)s)
                       as t(lane bigint, win bigint, seq bigint, late bool, slow bool, error text)),
                 f as (update lanes set state = 'behind', win = o.win, seq = o.seq, slow = o.slow, error = o.error,
                              attempts = case when o.late then attempts else attempts + 1 end,
                              next_try = case when o.late then null else now() + make_interval(secs => %(retry)s) end,
                              since = now()
                       from o, s where lanes.id = o.lane and lanes.state in ('live', 'ready') returning 1),
                 r as (update lanes set state = 'live', win = null, seq = null, attempts = 0, next_try = null,
                              slow = false, error = null, since = now()
                       from s where lanes.id = any(%(rejoined)s) and lanes.state = 'ready' returning 1)
            select (select count(*) from s), (select count(*) from f), (select count(*) from r)
            """,
            {
                "epoch": epoch,
                "win": start.window,
                "seq": start.seq,
                "end_win": end.window,
                "end_seq": end.seq,
                "behind": Json(behind),
                "rejoined": rejoined,
                "retry": first_retry,
            },
        ).fetchone()
        if moved != (1, len(behind), len(rejoined)):
            raise Superseded(f"Another stream has taken over: epoch {epoch} at {start} no longer counts.")


@dataclass(frozen=True, slots=True)
class Step:
    """Where catch-up leaves a lane. `wait` is set where a try failed: the seconds until the next."""

    cursor: Position
    ready: bool = False
    slow: bool = False
    wait: float | None = None
    error: str | None = None


def end_catch_up(connection: Connection, epoch: int, lane: Lane, step: Step) -> bool:
    """The end of a chunk for a lane that is behind. Returns whether it moved: one that is not as it was read is left alone."""
    moved = connection.execute(
        """
        update lanes set state = %(state)s, win = %(win)s, seq = %(seq)s, slow = %(slow)s, error = %(error)s,
               attempts = case when %(wait)s::float8 is null then 0 else attempts + 1 end,
               next_try = now() + make_interval(secs => %(wait)s::float8),
               since = case when %(state)s = state then since else now() end
        where id = %(lane)s and state = 'behind' and (win, seq) = (%(old_win)s, %(old_seq)s)
          and exists (select from stream where name = 'main' and epoch = %(epoch)s for share)
        """,
        {
            "state": "ready" if step.ready else "behind",
            "win": step.cursor.window,
            "seq": step.cursor.seq,
            "slow": step.slow,
            "error": step.error,
            "wait": step.wait,
            "lane": lane.id,
            "old_win": lane.cursor.window,
            "old_seq": lane.cursor.seq,
            "epoch": epoch,
        },
    ).rowcount
    return moved == 1


def listed(connection: Connection) -> list[dict[str, Any]]:
    """Every lane, with the number of changes between its cursor and the newest window."""
    rows = connection.execute(
        """
        select l.id, l.project, l.destination, l.state, coalesce(l.win, s.win), coalesce(l.seq, s.seq), l.attempts,
               l.next_try, l.error, l.since
        from lanes l, stream s where s.name = 'main' order by l.id
        """
    ).fetchall()
    names = ("id", "project", "destination", "state", "win", "seq", "attempts", "next_try", "error", "since")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    for lane in found:
        cursor = Position(lane.pop("win"), lane.pop("seq"))
        lane["cursor"] = str(cursor)
        lane["owed"] = _owed(connection, lane["id"], cursor)
    return found


def _owed(connection: Connection, lane: int, cursor: Position) -> int:
    """How many changes the lane's rules matched between its cursor and the newest window."""
    row = connection.execute(
        """
        select count(*) from changes
        where string_to_array(rules, ',') && %(rules)s::text[]
          and pg_visible_in_snapshot(xid, (select snapshot from windows order by id desc limit 1))
          and not pg_visible_in_snapshot(xid, coalesce((select snapshot from windows where id = %(win)s - 1), '1:1:'))
          and not (changes.seq <= %(seq)s
                   and pg_visible_in_snapshot(xid, coalesce((select snapshot from windows where id = %(win)s), '1:1:')))
        """,
        {"rules": [str(rule) for rule in rules_of(connection, [lane])], "win": cursor.window, "seq": cursor.seq},
    ).fetchone()
    assert row is not None
    return int(row[0])


def rules_of(connection: Connection, lane_ids: Sequence[int]) -> list[int]:
    """The rules that send to these lanes."""
    rows = connection.execute("select rule from bucket_eventing_configs where lane = any(%s)", [list(lane_ids)]).fetchall()
    return [row[0] for row in rows]
