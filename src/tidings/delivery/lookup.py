"""What a worker process looks up: where changes go, as it was when the round began. Kept until the rules change."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
from psycopg import Connection
from psycopg.rows import dict_row

from tidings import settings as settings_module
from tidings.db.connecting import noticing
from tidings.delivery import cel_batches, shares, unanswered
from tidings.delivery.cel_batches import FilterTime
from tidings.delivery.deliver import Terms
from tidings.delivery.render import IN_HEADERS
from tidings.delivery.route import Routes, expand, numbers_in
from tidings.events.formats import CHOOSABLE
from tidings.settings import Settings

DEFAULT_FORMAT = "s3"

# A lane that was made after the round began is none of its business: who made it has seen to where it begins.
_ROUTES = """
select n.number::text as rule, l.id as lane, t.name, t.events, t.prefix, t.suffix, t.filter,
       split_part(l.destination, ':', 3) as service, l.project, t.format, f.format as tag, f.headers
from unnest(%(numbers)s::bigint[]) as n(number)
join (select source, rule, lane from routes union all select rule, rule, null from rule_terms where lane is null) r
    on r.source = n.number
join rule_terms t on t.rule = r.rule
left join lanes l on l.id = r.lane and pg_visible_in_snapshot(l.xid, %(snapshot)s::pg_snapshot)
left join lane_formats f on f.lane = l.id
order by n.number, l.id
"""

_IN_USE = """
select distinct split_part(l.destination, ':', 3), null, f.format, f.headers
from lanes l join lane_formats f on f.lane = l.id where l.state <> 'closed'
union
select '', t.format, null, f.headers
from rule_terms t join routes r on r.rule = t.rule join lane_formats f on f.lane = r.lane where t.format is not null
"""


# In turn, so that no project takes all the places.
_FILTERS = """
select filter from (
    select filter, min(rule) as rule, row_number() over (partition by project order by min(rule)) as turn
    from catalog_subscriptions where filter is not null group by project, filter
) as f group by filter order by min(turn), min(rule) limit %s
"""


class Moment(NamedTuple):
    """Which rules and lanes a round knows: their version, and a snapshot in which they are all visible."""

    version: int
    snapshot: str


_kept: tuple[int, Routes] = (-1, Routes())


def routed(
    batch: pa.RecordBatch, moment: Moment, terms: Terms, filters: Collection[str] = (), taken: FilterTime | None = None
) -> pa.RecordBatch:
    """The changes of a batch, each with the rules and lanes that it goes to, as far as these terms serve them.

    Those of `filters` are left to who asks. Behind them are rows of `unanswered`. `taken` is what filters have taken in this
    task before.
    """
    global _kept
    if _kept[0] != moment.version:
        _kept = (moment.version, Routes())
    routes = _kept[1]
    if unknown := routes.unknown(numbers_in(batch)):
        settings = settings_module.load()
        with psycopg.connect(noticing(settings.database_url)) as connection:
            routes.learn(unknown, found(connection, unknown, moment, settings))
    return unanswered.with_rows(*cel_batches.matches(shares.owed(expand(batch, routes), terms), filters, taken))


def found(connection: Connection, numbers: Iterable[str], moment: Moment, settings: Settings) -> list[dict[str, Any]]:
    """Everything about these rules: a row for each lane, or one without a lane."""
    asked = {"numbers": [int(number) for number in numbers], "snapshot": moment.snapshot}
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_ROUTES, asked).fetchall()
    return [_row(row, settings) for row in rows]


def _row(row: dict[str, Any], settings: Settings) -> dict[str, Any]:
    format_ = _format(row["format"], row["tag"], row["service"], row["project"], settings)
    return {
        "rule": row["rule"],
        "lane": row["lane"],
        "format": format_ + IN_HEADERS if row["headers"] else format_,
        "config_json": json.dumps(row["name"], ensure_ascii=False),
        "events": row["events"],
        "prefix": row["prefix"],
        "suffix": row["suffix"],
        "filter": row["filter"],
    }


def _format(own: str | None, tag: str | None, service: str | None, project: str, settings: Settings) -> str:
    """What a rule says itself, else what its destination's tag chose.

    A tag that nobody may choose counts for nothing, however it came into the table: the plan is everybody's.
    """
    return own or (tag if tag in CHOOSABLE else None) or default_format(service, project, settings)


def default_format(service: str | None, project: str, settings: Settings) -> str:
    """What a lane's messages say where nobody has chosen."""
    if service == "pubsub":
        return settings.formats.pubsub_format(project)
    return "cos" if service == "kafka" else DEFAULT_FORMAT


def formats_in_use(connection: Connection, settings: Settings) -> list[str]:
    """Every format that a lane may ask for now."""
    names = {
        _format(own, tag, service, "", settings) + (IN_HEADERS if headers else "")
        for service, own, tag, headers in connection.execute(_IN_USE).fetchall()
    }
    return sorted(names | {DEFAULT_FORMAT, *settings.formats.pubsub_formats.values()})


def filters_in_use(connection: Connection, most: int) -> list[str]:
    """Filters that a subscription to a catalog has now, no more than so many."""
    return [row[0] for row in connection.execute(_FILTERS, [most]).fetchall()]
