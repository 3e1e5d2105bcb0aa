"""Lanes: the table, and the transactions that move them: the end of a round, of a chunk, of a backfill's page.

Each checks the epoch, so that a stream which was replaced moves nothing. Operators move lanes too (`steering.py`): a lane that
is not in the state in which it was read is left where it is. Its own cursor is never after what it was sent, so nothing is lost
by that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import Connection
from psycopg.types.json import Json

from tidings.delivery import dead_letters, unanswered
from tidings.delivery.lookup import Moment
from tidings.delivery.reports import MOST_PATIENCE_SECONDS, Report
from tidings.delivery.unanswered import Unanswered
from tidings.errors import Superseded
from tidings.events import names
from tidings.events.positions import Position

log = logging.getLogger(__name__)

# Of the replay's own lane: what it repeats, and for which rule, is in `replays`.
_REPLAYED = """
insert into lane_log (lane, what, from_win, from_seq, to_win, to_seq, n)
select l.id, 'replayed', l.began_win, l.began_seq, r.until_win, r.until_seq, r.sent
from lanes l join replays r on r.lane = l.id where l.id = %s and l.began_win is not null
"""

# Both lanes are live, so both have had the same changes: the rule's next one goes through the lane that it belongs to.
_JOIN = """
with over as (update backfills b set ended_at = now() from lanes l, lanes m
              where l.id = b.lane and m.id = b.of_lane and l.state = 'live' and m.state = 'live' and b.ended_at is null
              returning b.lane)
update lanes l set state = 'closed', win = %(win)s, seq = %(seq)s, since = now() from over where l.id = over.lane
"""

# Of a rule that is at work already: up to here its lane has told of its changes, from here on the backfill's has to.
_OPEN = """
with asked as (select b.id, b.number, m.project, m.destination, m.peer from backfills b join lanes m on m.id = b.of_lane
               where b.lane is null and b.ended_at is null and m.state = 'live'),
     opened as (insert into lanes (project, destination, peer, side, state, win, seq, began_win, began_seq)
                select project, destination, peer, number, 'backfill', %(win)s, %(seq)s, %(win)s, %(seq)s from asked
                returning id, project, destination, side)
update backfills b set lane = o.id from asked a, opened o
where b.id = a.id and (o.project, o.destination, o.side) = (a.project, a.destination, a.number)
"""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a lane repeats: changes up to a position, of the rules of these numbers, with keys that begin with a prefix."""

    until: Position
    sources: tuple[int, ...]
    prefix: str
    rate: float | None


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane that does not run with the stream, with a cursor of its own."""

    id: int
    state: str
    cursor: Position
    attempts: int
    slow: bool
    due: bool
    peer: str = ""
    """What may be dead behind several lanes."""
    replay: Replay | None = None
    backfill: bool = False
    """Whether it is a backfill's: the rule's events follow in it, until it joins the lane beside it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Which lanes are not live, and which rules and lanes there are, seen in one snapshot."""

    moment: Moment
    lanes: tuple[Lane, ...]
    unsettled: bool = False
    """Whether there is a backfill that a round's end can open, or let join the lane beside it."""

    def in_state(self, state: str) -> list[Lane]:
        return [lane for lane in self.lanes if lane.state == state]

    @property
    def not_served(self) -> frozenset[int]:
        """The lanes that a round passes by."""
        return frozenset(lane.id for lane in self.lanes if lane.state != "ready")


def standing(connection: Connection) -> Standing:
    rows = connection.execute(
        """
        select v.version, pg_current_snapshot()::text, u.unsettled, l.id, l.state, l.win, l.seq, l.attempts, l.slow,
               coalesce(l.next_try <= clock_timestamp(), true), coalesce(l.peer, l.destination),
               f.lane is not null, r.until_win, r.until_seq, r.sources, r.prefix, r.rate
        from rules_version v
        cross join (select exists (
            select from backfills b join lanes m on m.id = b.of_lane left join lanes l on l.id = b.lane
            where b.ended_at is null and m.state = 'live' and (b.lane is null or l.state = 'live')
        ) as unsettled) as u
        left join lanes l on l.state not in ('live', 'closed')
        left join backfills f on f.lane = l.id
        left join replays r on r.lane = l.id
        order by l.id
        """
    ).fetchall()
    lanes = tuple(
        Lane(id_, state, Position(win, seq), attempts, slow, due, peer, _replay(*replay), backfill)
        for _, _, _, id_, state, win, seq, attempts, slow, due, peer, backfill, *replay in rows
        if id_ is not None
    )
    return Standing(Moment(*rows[0][:2]), lanes, rows[0][2])


def _replay(win: int | None, seq: int, sources: list[int], prefix: str | None, rate: float | None) -> Replay | None:
    return None if win is None else Replay(Position(win, seq), tuple(sources), prefix or "", rate)


def end_round(
    connection: Connection,
    epoch: int,
    start: Position,
    end: Position,
    ready: Iterable[Lane],
    reports: Iterable[Report],
    first_retry: float,
    settle: bool = False,
    failed_filters: Iterable[Unanswered] = (),
) -> None:
    """The end of a stream's round: its position, lanes that failed and lanes that rejoin move together, or nothing does.

    A lane that only ran out of time is left to catch-up at once, without alarm; a failed one waits for its first retry. None is
    slow yet: a round may have waited for a moment only. With `settle`, backfills are opened, and joined to the lane beside
    them, where that lane is live: here it is known to the change how far it has got.
    """
    failed = {report.lane: report for report in reports if report.cursor is not None}
    behind = [
        {
            "lane": r.lane,
            "win": r.cursor.window,
            "seq": r.cursor.seq,
            "late": r.late,
            "error": r.error,
            "wait": max(first_retry, min(r.after, MOST_PATIENCE_SECONDS)),
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
                       as t(lane bigint, win bigint, seq bigint, late bool, error text, wait float8)),
                 f as (update lanes set state = 'behind', win = o.win, seq = o.seq, slow = false, error = o.error,
                              attempts = case when o.late then attempts else attempts + 1 end,
                              next_try = case when o.late then null else now() + make_interval(secs => o.wait) end,
                              since = now()
                       from o, s where lanes.id = o.lane and lanes.state in ('live', 'ready')
                         and (lanes.win is null or (lanes.win, lanes.seq) <= (o.win, o.seq))),
                 r as (update lanes set state = 'live', win = null, seq = null, attempts = 0, next_try = null,
                              slow = false, error = null, since = now()
                       from s where lanes.id = any(%(rejoined)s) and lanes.state = 'ready')
            select from s
            """,
            {
                "epoch": epoch,
                "win": start.window,
                "seq": start.seq,
                "end_win": end.window,
                "end_seq": end.seq,
                "behind": Json(behind),
                "rejoined": [lane.id for lane in ready if lane.id not in failed],
            },
        ).rowcount
        if not moved:
            raise Superseded(f"Another stream has taken over: epoch {epoch} at {start} no longer counts.")
        for report in reports:
            dead_letters.bury(connection, report.lane, report.dead)
        unanswered.write(connection, failed_filters)
        if settle:
            connection.execute(_JOIN, {"win": end.window, "seq": end.seq})
            connection.execute(_OPEN, {"win": end.window, "seq": end.seq})


@dataclass(frozen=True, slots=True)
class Step:
    """Where catch-up leaves a lane.

    `wait` is set where it has to wait, in seconds; `error` where that is because a try failed. `down` if that was a sign that
    nobody answers there: then the other lanes to the same peer need not try before.
    """

    cursor: Position
    ready: bool = False
    slow: bool = False
    wait: float | None = None
    error: str | None = None
    down: bool = False


def end_catch_up(connection: Connection, epoch: int, lane: Lane, step: Step, report: Report | None = None) -> bool:
    """The end of a chunk for a lane that is behind. Returns whether it moved: one that is not as it was read is left alone."""
    values = {
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
        "peer": lane.peer,
    }
    with connection.transaction():
        moved = connection.execute(
            """
            update lanes set state = %(state)s, win = %(win)s, seq = %(seq)s, slow = %(slow)s, error = %(error)s,
                   attempts = case when %(error)s::text is null then 0 else attempts + 1 end,
                   next_try = now() + make_interval(secs => %(wait)s::float8),
                   since = case when %(state)s = state then since else now() end
            where id = %(lane)s and state = 'behind' and (win, seq) = (%(old_win)s, %(old_seq)s)
              and exists (select from stream where name = 'main' and epoch = %(epoch)s for share)
            returning attempts
            """,
            values,
        ).rowcount
        if not moved:
            return False
        if report is not None:
            dead_letters.bury(connection, lane.id, report.dead)
        if lane.replay is not None:
            _count_replay(connection, lane, step, report)
        if step.down or (lane.attempts and step.error is None):
            _tell_the_others(connection, lane, step)
    return True


def _tell_the_others(connection: Connection, lane: Lane, step: Step) -> None:
    """One try speaks for all lanes that have failed at the same peer: they wait with it, and try at once when it answers."""
    connection.execute(
        """
        update lanes set next_try = now() + make_interval(secs => %(wait)s), error = coalesce(%(error)s, error),
               attempts = greatest(attempts, %(attempts)s)
        where state = 'behind' and attempts > 0 and id <> %(lane)s and coalesce(peer, destination) = %(peer)s
        """,
        {
            "wait": (step.wait or 0.0) if step.down else 0.0,
            "error": step.error,
            "attempts": lane.attempts + 1 if step.down else 0,
            "lane": lane.id,
            "peer": lane.peer,
        },
    )


def _count_replay(connection: Connection, lane: Lane, step: Step, report: Report | None) -> None:
    assert lane.replay is not None
    over = step.cursor >= lane.replay.until
    connection.execute(
        "update replays set sent = sent + %s, ended_at = case when %s then now() end where lane = %s",
        [report.sent if report else 0, over, lane.id],
    )
    if over:
        connection.execute("update lanes set state = 'closed', since = now() where id = %s", [lane.id])
        connection.execute(_REPLAYED, [lane.id])


_OWNED = "exists (select from stream where name = 'main' and epoch = %(epoch)s for share)"


def note(connection: Connection, epoch: int, lane: int, words: str) -> None:
    """Say what a backfill waits for, where `tidings lanes list` shows it."""
    connection.execute(
        f"update lanes set error = %(words)s where id = %(lane)s and state = 'backfill' and error is distinct from %(words)s"
        f" and {_OWNED}".encode(),
        {"words": words, "lane": lane, "epoch": epoch},
    )


def begin_backfill(connection: Connection, epoch: int, lane: int) -> None:
    """From here on its listing is whole, and it is known which versions came late."""
    connection.execute(
        f"""
        with begun as (update backfills set begun_at = now() where lane = %(lane)s and begun_at is null and {_OWNED}
                       returning *),
             l as (update lanes set error = null from begun where lanes.id = begun.lane)
        insert into backfill_late (backfill, key, version_id, seq)
        select b.id, c.key, coalesce(c.version_id, 'null'), max(c.seq)
        from begun b join changes c on c.bucket_id = b.bucket_id and c.config < b.since and c.seq > b.top
        where c.at > b.asked_at - interval '1 minute' and (c.event like 'ObjectCreated:%%' or c.event = '{names.MARKER}')
        group by 1, 2, 3
        """.encode(),
        {"lane": lane, "epoch": epoch},
    )


def end_page(connection: Connection, epoch: int, lane: Lane, told: int, step: Step, report: Report) -> bool:
    """The end of a try to deliver what a backfill has staged; when all is told, its lane goes on from its rule's position.

    Returns whether it moved: a lane that is not as it was read is left alone.
    """
    values = {
        "lane": lane.id,
        "epoch": epoch,
        "old": told,
        "told": step.cursor.window,
        "sent": report.sent,
        "slow": step.slow,
        "error": step.error,
        "wait": step.wait,
    }
    with connection.transaction():
        row = connection.execute(
            f"""
            with b as (update backfills set told = %(told)s, sent = sent + %(sent)s,
                              told_at = case when listed_at is not null and n = %(told)s then now() end
                       from lanes l where lane = %(lane)s and told = %(old)s and ended_at is null
                         and l.id = %(lane)s and l.state = 'backfill' and {_OWNED}
                       returning backfills.id, told_at),
                 l as (update lanes set state = case when told_at is null then 'backfill' else 'behind' end,
                              slow = %(slow)s, error = %(error)s,
                              attempts = case when %(error)s::text is null then 0 else attempts + 1 end,
                              next_try = now() + make_interval(secs => %(wait)s::float8),
                              since = case when told_at is null then since else now() end
                       from b where lanes.id = %(lane)s and lanes.state = 'backfill')
            select id from b
            """.encode(),
            values,
        ).fetchone()
        if row is None:
            return False
        dead_letters.bury(connection, lane.id, report.dead)
        connection.execute("delete from backfill_changes where backfill = %s and n <= %s", [row[0], step.cursor.window])
    return True


def close_unused(connection: Connection, epoch: int) -> list[int]:
    """Close the lanes that no rule and no subscription leads to any more: what they were still owed is discarded, and noted.

    In two statements: who gives such a lane a rule locks its row before, so the second sees that rule.
    """
    unused = (
        "not exists (select from routes r where r.lane = l.id) and not exists (select from kept_lanes k where k.lane = l.id)"
    )
    with connection.transaction():
        rows = connection.execute(
            f"""
            select id from lanes l
            where state <> 'closed' and (side = 0 or id in (select lane from backfills)) and {unused} order by id for update
            """.encode()
        ).fetchall()
        if not rows:
            return []
        closed = connection.execute(
            f"""
            with old as (select l.id, coalesce(l.win, s.win) as win, coalesce(l.seq, s.seq) as seq, s.win as at_win,
                                s.seq as at_seq
                         from lanes l, stream s
                         where l.id = any(%(lanes)s) and s.name = 'main' and s.epoch = %(epoch)s and {unused}),
                 closed as (update lanes l set state = 'closed', win = old.win, seq = old.seq, since = now(), error = null
                            from old where l.id = old.id)
            insert into lane_log (lane, what, from_win, from_seq, to_win, to_seq)
            select id, 'closed', win, seq, at_win, at_seq from old returning lane
            """.encode(),
            {"lanes": [row[0] for row in rows], "epoch": epoch},
        ).fetchall()
        connection.execute(
            """
            with over as (update backfills b set ended_at = now()
                          where ended_at is null and (lane = any(%s) or (lane is null and not exists (
                              select from bucket_eventing_configs c where c.rule = b.rule))) returning id)
            delete from backfill_changes c using over where c.backfill = over.id
            """,
            [[row[0] for row in closed]],
        )
    return sorted(row[0] for row in closed)


def stop_lost(connection: Connection, epoch: int) -> list[int]:
    """Pause the lanes whose next window is gone: nobody else waits for them, and an operator decides. Says which."""
    rows = connection.execute(
        """
        update lanes l set state = 'paused', next_try = null, since = now(), error =
            'the changes after ' || l.win || '/' || l.seq || ' are not kept any more: `tidings lanes skip` lets it go on'
        from (select id, hi from windows order by id limit 1) as oldest
        where l.state = 'behind' and exists (select from stream where name = 'main' and epoch = %s)
          and oldest.id > 1 and (l.win < oldest.id or (l.win = oldest.id and l.seq < oldest.hi))
        returning l.id, l.error
        """,
        [epoch],
    ).fetchall()
    for lane, error in rows:
        log.error("lane %s is paused: %s", lane, error, extra={"lane": lane})
    return [row[0] for row in rows]


def rules_of(connection: Connection, lane_ids: Sequence[int]) -> list[int]:
    """The numbers of the rules that send to these lanes."""
    rows = connection.execute("select distinct source from routes where lane = any(%s)", [list(lane_ids)]).fetchall()
    return [row[0] for row in rows]
