"""Lanes: the table, and the two transactions that move them. Each checks the epoch, so a stream that was replaced moves nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
    """What a round did for one lane. `cursor` is set where something was left undelivered: just before the first of it."""

    lane: int
    sent: int
    cursor: Position | None = None
    slow: bool = False
    error: str | None = None


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


def merge(rows: Iterable[tuple[int, int, int | None, int | None, bool, str | None]]) -> list[Report]:
    """One report for each lane from the rows of all tasks: the lowest undelivered position decides."""
    merged: dict[int, Report] = {}
    for lane, sent, window, seq, slow, error in rows:
        cursor = Position(window, seq).just_before if window is not None and seq is not None else None
        known = merged.get(lane, Report(lane, 0))
        cursors = [place for place in (known.cursor, cursor) if place is not None]
        merged[lane] = Report(
            lane, known.sent + sent, min(cursors, default=None), known.slow or slow, known.error or error
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
    """The end of a stream's round: its position, the lanes that failed and the lanes that rejoin move together, or nothing does.

    A slow lane is only left to catch-up, without alarm; a failed one waits for its first retry.
    """
    failed = {report.lane: report for report in reports if report.cursor is not None}
    rejoined = [lane.id for lane in ready if lane.id not in failed]
    behind = [
        {"lane": r.lane, "win": r.cursor.window, "seq": r.cursor.seq, "slow": r.slow, "error": r.error}
        for r in failed.values()
        if r.cursor is not None
    ]
    with connection.transaction():
        moved = connection.execute(
            """
            with s as (update stream set win = %(end_win)s, seq = %(end_seq)s, alive_at = now()
                       where name = 'main' and epoch = %(epoch)s and (win, seq) = (%(win)s, %(seq)s) returning 1),
                 o as (select * from json_to_recordset(%(behind)s) as t(lane bigint, win bigint, seq bigint, slow bool, error text)),
                 f as (update lanes set state = 'behind', win = o.win, seq = o.seq, slow = o.slow, error = o.error,
                              attempts = case when o.slow then attempts else attempts + 1 end,
                              next_try = case when o.slow then null else now() + make_interval(secs => %(retry)s) end,
                              since = case when state = 'behind' then since else now() end
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


def end_catch_up(
    connection: Connection,
    epoch: int,
    lane: Lane,
    reached: Position,
    report: Report | None,
    retry: float,
    near: bool,
    slow: bool,
) -> bool:
    """The end of a chunk for a lane that is behind: its cursor moves to what was confirmed; near the stream it is ready.

    Returns whether it moved: a lane that is no longer as it was read is left alone.
    """
    failed = report is not None and report.cursor is not None
    cursor = report.cursor if report is not None and report.cursor is not None else reached
    moved = connection.execute(
        """
        update lanes set state = %(state)s, win = %(win)s, seq = %(seq)s, slow = %(slow)s, error = %(error)s,
               attempts = case when %(failed)s then attempts + 1 else 0 end,
               next_try = case when %(failed)s then now() + make_interval(secs => %(retry)s) end,
               since = case when %(state)s = state then since else now() end
        where id = %(lane)s and state = 'behind' and (win, seq) = (%(old_win)s, %(old_seq)s)
          and exists (select from stream where name = 'main' and epoch = %(epoch)s)
        """,
        {
            "state": "ready" if near and not failed and not slow else "behind",
            "win": max(cursor, lane.cursor).window,
            "seq": max(cursor, lane.cursor).seq,
            "slow": slow,
            "error": report.error if failed and report else None,
            "failed": failed and retry > 0,
            "retry": retry,
            "lane": lane.id,
            "old_win": lane.cursor.window,
            "old_seq": lane.cursor.seq,
            "epoch": epoch,
        },
    ).rowcount
    return moved == 1
