"""Why an event came, or did not: from an object's changes to rules, to lanes, to what became of the messages.

It needs no ledger of messages: a lane has had a change if its position is after the lane's beginning, at or before its cursor,
and not among the exceptions (dead letters, and `lane_log`: skipped, archived, closed). A replay that has ended is in `lane_log`
too (replayed): it is told with the lane that it repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from psycopg import Connection
from psycopg.rows import dict_row

from tidings.catalog import joined
from tidings.errors import OperatorError
from tidings.events.changes import UNREAD
from tidings.events.keys import form_encoded
from tidings.events.names import wanted_by
from tidings.events.positions import START, Position
from tidings.rules.match import matches

MOST_CHANGES = 20

# No index leads to a key: writers would pay for it with every change (docs/operating.md). A million changes take a second.
_CHANGES = """
select c.seq, c.id, c.at, c.key, c.event, c.version_id, c.config, c.rules, c.bucket_id,
       (select min(w.id) from windows w where pg_visible_in_snapshot(c.xid, w.snapshot)) as window
from changes c join projects p on p.public_id = c.project
where %(project)s in (p.name, p.public_id) and c.bucket = %(bucket)s and c.key = %(key)s
  and (%(version)s::text is null or c.version_id = %(version)s)
order by c.seq desc limit %(most)s
"""

# What each rule of the bucket says now, and what it said when the change was written.
_RULES = """
select v.rule, v.config_id, v.config, v.topic_name, v.events, coalesce(v.filter_prefix, '') as prefix,
       coalesce(v.filter_suffix, '') as suffix, v.ended_at, v.began_at, c.rule is not null as current,
       c.events as events_now, coalesce(c.filter_prefix, '') as prefix_now, coalesce(c.filter_suffix, '') as suffix_now
from rule_versions v left join bucket_eventing_configs c on c.rule = v.rule
where v.bucket_id = %(bucket_id)s
order by v.rule, v.config
"""

_LANES = """
select r.source, l.id, l.destination, l.state, l.side, coalesce(l.win, s.win) as win, coalesce(l.seq, s.seq) as seq, l.attempts,
       l.next_try, l.error, l.began_win, l.began_seq, p.until_win, p.until_seq, coalesce(p.prefix, '') as prefix,
       p.lane is not null as repeats
from routes r join lanes l on l.id = r.lane left join replays p on p.lane = l.id, stream s
where s.name = 'main' and r.source = any(%(rules)s)
order by l.id
"""

_EXCEPTIONS = """
select what, from_win, from_seq, to_win, to_seq, state, note, at, id from lane_log
where (lane = %(lane)s or lane in (select lane from backfills where of_lane = %(lane)s and rule = %(source)s))
  and (from_win, from_seq) < (%(win)s, %(seq)s) and (%(win)s, %(seq)s) <= (to_win, to_seq)
order by id
"""

# Replays that have ended and have sent this change to this lane's destination again.
_REPLAYED = """
select distinct l.side from lane_log g join replays r on r.lane = g.lane join lanes l on l.id = g.lane
where g.what = 'replayed' and r.of_lane = %(lane)s and %(source)s = any(r.sources)
  and starts_with(%(key)s, coalesce(r.prefix, ''))
  and (g.from_win, g.from_seq) < (%(win)s, %(seq)s) and (%(win)s, %(seq)s) <= (g.to_win, g.to_seq)
  and not exists (select from dead_letters d where d.lane = g.lane and d.message = %(message)s and d.state <> 'sent')
  and not exists (select from lane_log k where k.lane = g.lane and k.what = 'skipped'
                  and (k.from_win, k.from_seq) < (%(win)s, %(seq)s) and (%(win)s, %(seq)s) <= (k.to_win, k.to_seq))
order by l.side
"""

_RANGES = {"kept": "it can still be sent", "sent": "and sent from there", "discarded": "it cannot be sent any more"}


@dataclass(frozen=True, slots=True)
class Place:
    bucket: str
    key: str
    version: str | None

    @classmethod
    def parse(cls, text: str) -> Place:
        """`s3://BUCKET/KEY`, with `?versionId=ID` at the end where one version is meant. A key may have a `?` itself."""
        if not text.startswith("s3://"):
            raise OperatorError(
                f"{text!r} is not the place of an object: write s3://BUCKET/KEY, or s3://BUCKET/KEY?versionId=ID."
            )
        bucket, _, key = text.removeprefix("s3://").partition("/")
        plain, mark, query = key.rpartition("?")
        version = parse_qs(query).get("versionId") if mark else None
        if version:
            key = plain
        if not bucket or not key:
            raise OperatorError(f"{text!r} has no bucket or no key: write s3://BUCKET/KEY.")
        return cls(bucket, key, version[0] if version else None)


def explain(connection: Connection, project: str, place: Place, literal: bool) -> dict[str, Any]:
    """The newest changes of an object, newest first, each with what every rule of its bucket made of it."""
    values = {"project": project, "bucket": place.bucket, "key": place.key, "version": place.version, "most": MOST_CHANGES}
    changes = dicts(connection, _CHANGES, values)
    buckets = {change["bucket_id"]: None for change in changes}
    commits = [found for bucket_id in buckets for found in joined.commits_naming(connection, bucket_id, place.key)]
    return {
        "bucket": place.bucket,
        "key": place.key,
        "version": place.version,
        "bucket_exists": _exists(connection, project, place.bucket),
        "changes": [_change(connection, change, place.key, literal, commits) for change in changes],
    }


def _change(
    connection: Connection, change: dict[str, Any], key: str, literal: bool, commits: list[dict[str, Any]]
) -> dict[str, Any]:
    rules = dicts(connection, _RULES, {"bucket_id": change["bucket_id"]})
    matched = (change["rules"] or "").split(",") if change["rules"] else []
    position = Position(change["window"], change["seq"]) if change["window"] is not None else None
    told = [_rule(connection, change, then, matched, position, key, literal) for then in _as_of(rules, change["config"])]
    known = {str(rule["rule"]) for rule in told}
    told += [
        {"rule": int(number), "id": None, "matched": True, "why": "the rule is not known any more", "lanes": []}
        for number in matched
        if number not in known and number != UNREAD
    ]
    return {
        "id": change["id"],
        "at": change["at"],
        "event": change["event"],
        "version": change["version_id"],
        "seq": change["seq"],
        "position": str(position) if position else None,
        "unread": matched == [UNREAD],
        "rules": told,
        "commits": [each for each in commits if each["change"] == change["id"]],
    }


def _as_of(rules: list[dict[str, Any]], config: int) -> Iterator[dict[str, Any]]:
    """Each rule as it was when a change was written; one that came later as it was first."""
    by_number: dict[int, dict[str, Any]] = {}
    for version in rules:  # in order of config
        known = by_number.get(version["rule"])
        if known is None or version["config"] <= config:
            by_number[version["rule"]] = version
    yield from by_number.values()


def _rule(
    connection: Connection,
    change: dict[str, Any],
    rule: dict[str, Any],
    matched: list[str],
    position: Position | None,
    key: str,
    literal: bool,
) -> dict[str, Any]:
    told: dict[str, Any] = {"rule": rule["rule"], "id": rule["config_id"], "destination": rule["topic_name"], "lanes": []}
    if str(rule["rule"]) not in matched and matched != [UNREAD]:
        return told | {"matched": False, "why": _why_not(change, rule, key, literal)}
    if matched == [UNREAD] and rule["config"] > change["config"]:
        return told | {"matched": False, "why": "the rule was set after the change"}
    if not rule["current"]:
        return told | {
            "matched": True,
            "why": "the rule was deleted since, or got another destination: what it was owed is discarded",
        }
    now = {"events": rule["events_now"], "prefix": rule["prefix_now"], "suffix": rule["suffix_now"]}
    if not matches(**now, event=change["event"], key=key, literal=literal):
        return told | {"matched": True, "why": "it matched when the change was written; the rule as it is now does not want it"}
    lanes = lanes_of(connection, rule["rule"], change, position)
    why = "" if lanes else "its topic has no subscription"
    return told | {"matched": True, "why": why, "lanes": lanes}


def lanes_of(connection: Connection, rule: int, change: dict[str, Any], position: Position | None) -> list[dict[str, Any]]:
    """The lanes that a rule leads to, each with what became of the change's message there."""
    found = dicts(connection, _LANES, {"rules": [rule]})
    return [
        _lane(connection, lane, change, position) for lane in found if not lane["repeats"] or _repeats(lane, change, position)
    ]


def _repeats(lane: dict[str, Any], change: dict[str, Any], position: Position | None) -> bool:
    """Whether a change is among what a replay sends again."""
    if position is None or not change["key"].startswith(lane["prefix"]):
        return False
    return (_began(lane) or START) < position <= Position(lane["until_win"], lane["until_seq"])


def _began(lane: dict[str, Any]) -> Position | None:
    return None if lane["began_win"] is None else Position(lane["began_win"], lane["began_seq"])


def _why_not(change: dict[str, Any], rule: dict[str, Any], key: str, literal: bool) -> str:
    if rule["config"] > change["config"]:
        return "the rule was set after the change"
    if rule["ended_at"] is not None and rule["ended_at"] <= change["at"]:
        return "the rule had been deleted or changed"
    if set(wanted_by(change["event"])).isdisjoint(rule["events"]):
        return f"it does not ask for {change['event']}, only for {', '.join(rule['events'])}"
    forms = (key,) if literal else (key, form_encoded(key))
    if not any(form.startswith(rule["prefix"]) for form in forms):
        return f"the key does not begin with {rule['prefix']!r}"
    if not any(form.endswith(rule["suffix"]) for form in forms):
        return f"the key does not end with {rule['suffix']!r}"
    return "its filter does not take the key as a whole" if rule["prefix"] and rule["suffix"] else "unknown"


def _lane(connection: Connection, lane: dict[str, Any], change: dict[str, Any], position: Position | None) -> dict[str, Any]:
    cursor = Position(lane["win"], lane["seq"])
    told: dict[str, Any] = {
        "lane": lane["id"],
        "destination": lane["destination"],
        "state": lane["state"],
        "cursor": str(cursor),
        "error": lane["error"],
        "replay": lane["side"] if lane["repeats"] else None,
        "message": f"{change['id']}.{lane['source']}",
    }
    told |= _fate(connection, lane, cursor, position, told["message"])
    told["replays"] = _replayed(connection, lane, change, position, told["message"])
    if told["replays"]:
        told["words"] += f"; sent again by replay {', '.join(map(str, told['replays']))}"
    return told


def _replayed(
    connection: Connection, lane: dict[str, Any], change: dict[str, Any], position: Position | None, message: str
) -> list[int]:
    if position is None:
        return []
    values = {
        "lane": lane["id"],
        "source": lane["source"],
        "key": change["key"],
        "win": position.window,
        "seq": position.seq,
        "message": message,
    }
    return [row["side"] for row in dicts(connection, _REPLAYED, values)]


def _fate(
    connection: Connection, lane: dict[str, Any], cursor: Position, position: Position | None, message: str
) -> dict[str, Any]:
    """What became of one message."""
    dead = dicts(
        connection,
        "select id, reason, state, died_at from dead_letters where message = %(message)s"
        " and (lane = %(lane)s or lane in (select lane from backfills where of_lane = %(lane)s and rule = %(source)s))",
        {"lane": lane["id"], "source": lane["source"], "message": message},
    )
    if dead:
        words = {
            "dead": "a dead letter",
            "sent": "was a dead letter, and was sent again",
            "discarded": "a dead letter, discarded",
        }
        return {"fate": "dead letter", "words": f"{words[dead[0]['state']]}: {dead[0]['reason']}", "dead_letter": dead[0]["id"]}
    if position is None:
        return {"fate": "waiting", "words": "not read yet: the stream is not running, or a transaction before it is still open"}
    place = {"lane": lane["id"], "source": lane["source"], "win": position.window, "seq": position.seq}
    exceptions = dicts(connection, _EXCEPTIONS, place)
    for each in reversed(exceptions):
        if each["what"] == "skipped":
            return {
                "fate": "skipped",
                "words": f"the lane was told to skip it{': ' if each['note'] else ''}{each['note'] or ''}",
            }
        if each["what"] == "archived":
            became = _RANGES.get(each["state"], each["state"])
            return {"fate": "archived", "words": f"archived as range {each['id']} ({each['state']}): {became}"}
        if each["what"] == "closed":
            return {"fate": "discarded", "words": "its lane was closed before it was sent"}
    began = _began(lane)
    if began is not None and position <= began:
        return {"fate": "before its time", "words": "the subscription was made after the change"}
    if position <= cursor:
        return {"fate": "delivered", "words": f"delivered, in the round that passed {position}"}
    if lane["state"] == "paused":
        return {"fate": "waiting", "words": "the lane is paused: `tidings lanes resume` lets it go on"}
    if lane["error"]:
        return {"fate": "waiting", "words": f"after {lane['attempts']} failed tries the lane waits: {lane['error']}"}
    return {
        "fate": "waiting",
        "words": "its turn comes" if lane["state"] == "live" else f"the lane is {lane['state']}, at {cursor}",
    }


def _exists(connection: Connection, project: str, bucket: str) -> bool:
    row = connection.execute(
        "select from bucket_metainfos b join projects p on p.id = b.project_id"
        " where %s in (p.name, p.public_id) and b.name = %s",
        [project, bucket],
    ).fetchone()
    return row is not None


def dicts(connection: Connection, query: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), values).fetchall()
