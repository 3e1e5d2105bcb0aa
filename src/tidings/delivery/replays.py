"""Replays: changes of the past, sent again to one rule, over a lane of their own so that live events go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg.rows import dict_row

from tidings.changestream import positions, retention, windows
from tidings.errors import OperatorError
from tidings.events.changes import UNREAD
from tidings.events.positions import Position

# A rule that got another destination got another number; for its tenant it is the same rule.
_RULE = """
select c.rule, c.bucket_name, c.config_id,
       array(select distinct v.rule from rule_versions v
             where v.project = p.public_id and v.bucket_id = b.id and v.config_id = c.config_id) as sources
from bucket_eventing_configs c
join projects p on p.id = c.project_id
join bucket_metainfos b on b.project_id = c.project_id and b.name = c.bucket_name
where %(project)s in (p.name, p.public_id) and c.config_id = %(id)s and (%(bucket)s::text is null or c.bucket_name = %(bucket)s)
"""

_LANES = """
select l.id, l.project, l.destination, l.peer, coalesce(l.win, s.win) as win, coalesce(l.seq, s.seq) as seq
from routes r join lanes l on l.id = r.lane and (l.side = 0 or l.id in (select lane from backfills)), stream s
where s.name = 'main' and r.rule = %s
order by l.id
"""

_OPEN = """
with lane as (
    insert into lanes (project, destination, peer, side, state, win, seq, began_win, began_seq)
    select project, destination, peer, %(side)s, 'behind', %(win)s, %(seq)s, %(win)s, %(seq)s from lanes
    where id = %(of_lane)s returning id
)
insert into replays (lane, of_lane, rule, sources, prefix, until_win, until_seq, rate, wanted)
select id, %(of_lane)s, %(rule)s, %(sources)s, %(prefix)s, %(until_win)s, %(until_seq)s, %(rate)s, %(wanted)s from lane
returning lane
"""


@dataclass(frozen=True, slots=True)
class Rule:
    number: int
    bucket: str
    config_id: str
    sources: list[int]


@dataclass(frozen=True, slots=True)
class Part:
    """What a replay would send over one lane."""

    of_lane: int
    destination: str
    start: Position
    until: Position
    wanted: int


def find_rule(connection: Connection, project: str, name: str) -> Rule:
    """A rule by its id, or by its bucket and id: `BUCKET/ID`."""
    bucket, slash, id_ = name.partition("/")
    for place, config_id in [(None, name), (bucket, id_)] if slash else [(None, name)]:
        rows = connection.execute(_RULE, {"project": project, "bucket": place, "id": config_id}).fetchall()
        if len(rows) > 1:
            places = ", ".join(sorted(row[1] for row in rows))
            raise OperatorError(f"Several buckets have a rule {name!r}: {places}. Write --rule BUCKET/{name}.")
        if rows:
            return Rule(*rows[0])
    raise OperatorError(f"There is no rule {name!r} in project {project!r}: `tidings rules list` shows them.")


def plan(connection: Connection, rule: Rule, start: str | None, end: str | None, prefix: str) -> list[Part]:
    """What there is to send again, for each lane of the rule; never past the lane's own cursor: what comes after is not old."""
    oldest = windows.oldest(connection)
    first = max(positions.bound(connection, start, oldest), oldest)
    last = positions.bound(connection, end, windows.last(connection).end)
    found = []
    for lane in _dicts(connection, _LANES, [rule.number]):
        until = min(last, Position(lane["win"], lane["seq"]))
        wanted = _count(connection, rule, first, until, prefix) if until > first else 0
        found.append(Part(lane["id"], lane["destination"], first, until, wanted))
    if not found:
        raise OperatorError(f"The rule {rule.config_id!r} has no lane: its topic has no subscription that is confirmed.")
    return found


def begin(connection: Connection, rule: Rule, parts: list[Part], prefix: str, rate: float | None) -> int:
    """Open the lanes; the stream serves them. Returns the replay's number.

    Counting took its time, and the retention may have passed the beginning since: a lane there could not be read.
    """
    with connection.transaction():
        retention.hold(connection)
        for part in parts:
            if part.wanted and not windows.readable(connection, part.start):
                raise OperatorError(
                    f"The changes after position {part.start} are not kept any more, or it is no position: nothing was begun. "
                    "Try again, without --from or with a later one: what is still kept is counted anew."
                )
        row = connection.execute("select nextval('replay_numbers')").fetchone()
        assert row is not None
        for part in parts:
            if part.wanted:
                values: dict[str, Any] = {
                    "side": row[0],
                    "of_lane": part.of_lane,
                    "win": part.start.window,
                    "seq": part.start.seq,
                    "rule": rule.number,
                    "sources": rule.sources,
                    "prefix": prefix or None,
                    "until_win": part.until.window,
                    "until_seq": part.until.seq,
                    "rate": rate,
                    "wanted": part.wanted,
                }
                connection.execute(_OPEN, values)
    return int(row[0])


def progress(connection: Connection, number: int) -> dict[str, Any]:
    """How far a replay is: sent, of how many, whether it has ended, what it waits for, and whether a stream is there for it."""
    [found] = _dicts(
        connection,
        """
        select coalesce(sum(r.sent), 0)::bigint as sent, coalesce(sum(r.wanted), 0)::bigint as wanted,
               coalesce(bool_and(r.ended_at is not null), true) as ended, max(l.error) as error,
               (select count(*) from dead_letters d join lanes m on m.id = d.lane where m.side = %(number)s) as dead_letters,
               (select alive_at > now() - interval '20 s' from stream where name = 'main') as served
        from lanes l join replays r on r.lane = l.id where l.side = %(number)s
        """,
        {"number": number},
    )
    return found


def _count(connection: Connection, rule: Rule, start: Position, until: Position, prefix: str) -> int:
    where = positions.between(connection, start, until)
    row = connection.execute(
        f"select count(*) from changes where {where} and string_to_array(rules, ',') && %s::text[] and starts_with(key, %s)"
        " and bucket = %s".encode(),
        [[*map(str, rule.sources), UNREAD], prefix, rule.bucket],
    ).fetchone()
    assert row is not None
    return int(row[0])


def _dicts(connection: Connection, query: str, values: Any) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), values).fetchall()
