"""Who wants a catalog's events by the durable path: at least once, in order for each reference, to any destination."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from tidings import audit
from tidings.catalog.errors import CatalogError, bad_request
from tidings.cel.expression import parse
from tidings.db.pool import Pool
from tidings.errors import CallerError, ExpressionMistake
from tidings.events import arn
from tidings.events.catalog import TYPES
from tidings.rules import reaching, test_event
from tidings.rules.table import OPEN_LANES
from tidings.settings import Settings

FORMATS = ("nessie", "cloudevents")
MOST = 100
"""Subscriptions of one project: each commit names them all."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_TYPES = tuple(event.type for event in TYPES)
_READ = """
select s.name, s.destination, s.types, s.filter, s.format,
       case when u.rule is not null then json_build_object('times', u.times, 'reason', u.reason, 'at', u.at) end as unanswered
from catalog_subscriptions s left join unanswered_filters u using (rule) where s.project = %s order by s.name
"""

_COUNT = "select count(*) from catalog_subscriptions where project = %s and name <> %s"

# A subscription that goes elsewhere now has another number: what the old lane still owes is not looked for in the new one.
_LEAVE = """
delete from catalog_subscriptions
where (project, name) = (%(project)s, %(name)s) and destination <> %(destination)s
"""
# Another filter begins at nothing.
_FORGET = """
delete from unanswered_filters u using catalog_subscriptions s
where u.rule = s.rule and (s.project, s.name) = (%(project)s, %(name)s) and s.filter is distinct from %(filter)s
"""
_PUT = """
insert into catalog_subscriptions as s (project, name, destination, lane, types, filter, format)
select %(project)s, %(name)s, %(destination)s,
       (select id from lanes l where l.project = %(project)s and l.destination = %(destination)s and l.side = 0
                                 and not %(fans_out)s),
       %(types)s::text[], %(filter)s, %(format)s
on conflict (project, name) do update set types = excluded.types, filter = excluded.filter, format = excluded.format
"""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is wanted, and where it goes. Checked when it is made."""

    name: str
    destination: str
    types: tuple[str, ...] = ()
    """All, if there are none."""
    filter: str = ""
    """An expression in CEL; everything, if it is empty."""
    format: str = "nessie"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise bad_request(f"{self.name[:100]!r} is no name for a subscription: 1 to 100 of A-Z a-z 0-9 _ . -")
        try:
            arn.parse(self.destination)
        except (ValueError, CallerError) as error:
            raise bad_request(str(error)) from None
        if unknown := [each for each in self.types if each not in _TYPES]:
            raise bad_request(f"There are no events of type {unknown[0][:100]!r}: there are {', '.join(_TYPES)}.")
        if self.format not in FORMATS:
            raise bad_request(f"The format must be {' or '.join(FORMATS)}, not {self.format[:100]!r}.")
        if self.filter:
            try:
                parse(self.filter)
            except ExpressionMistake as mistake:
                raise bad_request(str(mistake)) from None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "destination": self.destination,
            "types": list(self.types),
            "filter": self.filter,
            "format": self.format,
        }


async def put(pool: Pool, settings: Settings, project: str, wanted: Subscription, request_id: str) -> None:
    """Store it, if its destination is open to the project and takes a test event. One of the same name is replaced."""
    named = [wanted.destination]
    _refuse(reaching.unavailable(named, settings))
    async with pool.connection() as connection:
        _refuse(await reaching.refused(connection, project, named, settings))
    test = {"type": "TEST", "id": f"{request_id}.test", "repositoryId": project}
    try:
        await test_event.send({*named}, settings, project, json.dumps(test).encode(), request_id)
    except CallerError as refused:
        raise bad_request(refused.message) from None
    async with audit.transaction(pool) as connection:
        _refuse(await reaching.refused(connection, project, named, settings))  # somebody may have been quicker
        await _store(connection, project, wanted)


def _refuse(problems: Iterable[CallerError]) -> None:
    for problem in problems:
        raise CatalogError("FORBIDDEN" if problem.code == "AccessDenied" else "BAD_REQUEST", problem.message)


async def store(pool: Pool, project: str, wanted: Subscription) -> None:
    """Without asking its destination."""
    async with audit.transaction(pool) as connection:
        await _store(connection, project, wanted)


async def _store(connection: AsyncConnection[Any], project: str, wanted: Subscription) -> None:
    fans_out = arn.fans_out(arn.parse(wanted.destination))
    values = {
        "project": project,
        "name": wanted.name,
        "destination": wanted.destination,
        "fans_out": fans_out,
        "types": list(wanted.types) or None,
        "filter": wanted.filter or None,
        "format": wanted.format,
    }
    found = await (await connection.execute(_COUNT, [project, wanted.name])).fetchone()
    if found is not None and found[0] >= MOST:
        raise bad_request(f"A project has at most {MOST} subscriptions to its catalog: delete one before.")
    await connection.execute(OPEN_LANES, {"project": project, "destinations": [] if fans_out else [wanted.destination]})
    await connection.execute(_LEAVE, values)
    await connection.execute(_FORGET, values)
    await connection.execute(_PUT, values)


async def all_of(connection: AsyncConnection[Any], project: str) -> list[dict[str, Any]]:
    """As they were stored; they are not checked again. `unanswered` is there if a filter had no answer, and why."""
    async with connection.cursor(row_factory=dict_row) as cursor:
        rows = await (await cursor.execute(_READ, [project])).fetchall()
    found = [row | {"types": row["types"] or [], "filter": row["filter"] or ""} for row in rows]
    return [{name: value for name, value in row.items() if value is not None or name != "unanswered"} for row in found]


async def delete(pool: Pool, project: str, name: str) -> None:
    """What it was still owed is discarded, as for any rule."""
    gone = await audit.run(pool, "delete from catalog_subscriptions where (project, name) = (%s, %s)", [project, name])
    if not gone.rowcount:
        raise none_called(name)


def none_called(name: str) -> CatalogError:
    return CatalogError("NOT_FOUND", f"There is no subscription {name[:100]!r}.")
