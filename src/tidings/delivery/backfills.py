"""Backfills, for commands: asking for one, for a rule that is at work already, and how far one is."""

from __future__ import annotations

from typing import Any, LiteralString

from psycopg import Connection, errors
from psycopg.rows import dict_row

from tidings.errors import OperatorError
from tidings.rules.backfills import RESERVED, TOP

_RULE: LiteralString = """
    select c.rule, c.since, b.id as bucket_id from bucket_eventing_configs c join projects p on p.id = c.project_id
    join bucket_metainfos b on b.project_id = c.project_id and b.name = c.bucket_name
    where %(project)s in (p.name, p.public_id) and c.bucket_name = %(bucket)s and c.config_id = %(id)s
"""

# The stream opens them, between two rounds: it alone knows up to where the rule's lanes have told of its changes.
_ASK: LiteralString = f"""
with begun as materialized (select nextval('replay_numbers') as number, {TOP} as top), rule as ({_RULE})
insert into backfills (number, of_lane, rule, bucket_id, since, top, versions, prefix)
select begun.number, l.id, rule.rule, rule.bucket_id, rule.since, begun.top, %(versions)s, %(prefix)s
from rule join routes r on r.rule = rule.rule join lanes l on l.id = r.lane and l.side = 0, begun
returning number
"""

_PROGRESS: LiteralString = f"""
with rule as ({_RULE}),
newest as (select b.* from backfills b join rule using (rule) where number = (
    select max(number) from backfills join rule using (rule)))
select max(b.number) as backfill, sum(b.sent)::bigint as sent, sum(b.n)::bigint as wanted,
       bool_and(b.told_at is not null) as ended,
       max(coalesce(l.error, case when b.lane is null and m.state <> 'live'
                                  then 'lane ' || m.id || ' is ' || m.state end)) as error,
       bool_or(b.ended_at is not null and b.told_at is null) as given_up,
       (select count(*) from dead_letters d join lanes x on x.id = d.lane where x.side = max(b.number)) as dead_letters,
       (select alive_at > now() - interval '20 s' from stream where name = 'main') as served
from newest b join lanes m on m.id = b.of_lane left join lanes l on l.id = b.lane
"""


def ask(connection: Connection, project: str, bucket: str, config_id: str, versions: bool, prefix: str) -> int:
    """Ask the stream for a backfill; returns its number."""
    values = {"project": project, "bucket": bucket, "id": config_id, "reserved": RESERVED}
    try:
        row = connection.execute(_ASK, values | {"versions": versions, "prefix": prefix}).fetchone()
    except errors.UniqueViolation:
        raise OperatorError(
            f"A backfill of the rule {config_id!r} is under way: `tidings lanes list` shows it. Wait until it has ended."
        ) from None
    if row is None:
        if not connection.execute(_RULE, values).rowcount:
            raise OperatorError(f"{bucket} has no rule {config_id!r} in project {project!r}: `tidings rules list` shows them.")
        raise OperatorError(
            f"The rule {config_id!r} has no lane that could be backfilled now: its topic has no subscription that is "
            "confirmed, or a backfill is under way (`tidings lanes list`)."
        )
    connection.commit()
    return int(row[0])


def progress(connection: Connection, project: str, bucket: str, config_id: str) -> dict[str, Any]:
    """How far the newest backfill of a rule is: told, of how many that are listed, and what it waits for."""
    with connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(_PROGRESS, {"project": project, "bucket": bucket, "id": config_id}).fetchone()
    if found is None or found["backfill"] is None:
        raise OperatorError(f"The rule {config_id!r} of {bucket} is gone, or was never backfilled.")
    if found["given_up"]:
        raise OperatorError(f"The backfill of the rule {config_id!r} was given up, as nothing leads to its lane any more.")
    return found
