"""Rules in PostgreSQL: owns `bucket_eventing_configs`, and makes a lane with the first rule that needs it.

A rule has two names. The tenant's is its config_id. Ours is its number (`rule`), which is written into every change
that it matched and belongs to one lane for ever: **a rule that gets another topic gets another number.** A lane's
cursor says which changes it has had. If a number moved from a lane that is behind to one that is not, what the first
still owes would be looked for in the second, which has passed those changes already: lost, though a rule that wants
them was there all the time. The other way round, the second lane would send again what the first has sent. With a new
number each change says without doubt which lane it was meant for: the old rule counts as deleted, the new one begins
with the next change.

The private project id stays inside the statements; callers know projects by their public id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, LiteralString

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from tidings.errors import CallerError, no_such_bucket
from tidings.events import arn
from tidings.rules.backfills import Backfill, open_with_rule
from tidings.rules.model import KeyFilter, Rule

_WANTS: LiteralString = """
      r.events && %(wanted)s::text[]
      and (
          (starts_with(%(key)s::text, coalesce(r.filter_prefix, ''))
              and right(%(key)s::text, length(coalesce(r.filter_suffix, ''))) = coalesce(r.filter_suffix, ''))
          or
          (starts_with(%(form)s::text, coalesce(r.filter_prefix, ''))
              and right(%(form)s::text, length(coalesce(r.filter_suffix, ''))) = coalesce(r.filter_suffix, ''))
      )
"""

MATCHED: LiteralString = f"""(
    select string_agg(r.rule::text, ',' order by r.rule)
    from bucket_eventing_configs r
    where r.project_id = b.project_id and r.bucket_name = b.name and {_WANTS}
)"""
"""`match.matches` for every rule of the row `b` of bucket_metainfos: the numbers of those that match, or null for none.

Parameters: `wanted` from `events.names.wanted_by`, `key`, and `form`: its encoded form where that counts and differs.
"""

MATCHED_IN_CACHE: LiteralString = f"""(
    case when %(cached)s::jsonb ->> 'bucket' = b.id and (%(cached)s::jsonb ->> 'config')::bigint = b.config then (
        select string_agg(r.rule::text, ',' order by r.rule)
        from jsonb_to_recordset(%(cached)s::jsonb -> 'rules')
            r(rule bigint, events text[], filter_prefix text, filter_suffix text)
        where {_WANTS}
    ) else {MATCHED} end
)"""
"""The same from what a cache gave, `cached` (see `snapshot`), if that is of this bucket and as new as the bucket's row.

A reader that raced a PUT may have put an old answer back into the cache: it is found out here, and the table decides.
"""

# One statement finds the bucket, locks it against another PUT and against its deletion, and counts the version.
# Not `select for update`: that would also hold up every writer of a new key, whose foreign key points at this row.
_BUMP = """
update bucket_metainfos b set config = b.config + 1
from projects p
where p.id = b.project_id and p.public_id = %(project)s and b.name = %(bucket)s
returning b.id, b.config
"""

# In one order for everybody: two PUTs that make the same lanes must not wait for each other in a circle.
# A lane that exists is locked, so that delivery does not close it under us, and opened again, like a new one, if it was closed;
# else it is left alone, for its row belongs to delivery.
OPEN_LANES: LiteralString = """
insert into lanes as l (project, destination)
select %(project)s, destination from unnest(%(destinations)s::text[]) destination order by destination
on conflict (project, destination, side) do update
    set state = case l.state when 'closed' then 'live' else l.state end,
        win = case l.state when 'closed' then null else l.win end,
        seq = case l.state when 'closed' then null else l.seq end,
        attempts = case l.state when 'closed' then 0 else l.attempts end,
        slow = l.state <> 'closed' and l.slow,
        next_try = case l.state when 'closed' then null else l.next_try end,
        error = case l.state when 'closed' then null else l.error end,
        xid = case l.state when 'closed' then excluded.xid else l.xid end,
        began_win = case l.state when 'closed' then (select s.win from stream s where s.name = 'main') else l.began_win end,
        began_seq = case l.state when 'closed' then (select s.seq from stream s where s.name = 'main') else l.began_seq end,
        since = case l.state when 'closed' then now() else l.since end
"""

# What the new rules do not name, and what has another topic now: see above why that is not an update.
_DELETE = """
delete from bucket_eventing_configs c
using projects p
where p.id = c.project_id and p.public_id = %(project)s and c.bucket_name = %(bucket)s
  and (c.config_id, c.topic_name) not in (select * from unnest(%(ids)s::text[], %(topics)s::text[]))
"""

_UPSERT = """
insert into bucket_eventing_configs
    (project_id, bucket_name, config_id, topic_name, events, filter_prefix, filter_suffix, lane, since)
select p.id, %(bucket)s, %(id)s, %(topic)s, %(events)s::text[], nullif(%(prefix)s, ''), nullif(%(suffix)s, ''), l.id,
       %(config)s
from projects p
left join lanes l on l.project = p.public_id and l.destination = %(destination)s and l.side = 0 and not %(fans_out)s
where p.public_id = %(project)s
on conflict (project_id, bucket_name, config_id) do update
    set events = excluded.events, filter_prefix = excluded.filter_prefix, filter_suffix = excluded.filter_suffix,
        updated_at = now()
    where (bucket_eventing_configs.events, bucket_eventing_configs.filter_prefix, bucket_eventing_configs.filter_suffix)
        is distinct from (excluded.events, excluded.filter_prefix, excluded.filter_suffix)
"""

_READ = """
select b.id, b.config, c.config_id, c.topic_name, c.events, coalesce(c.filter_prefix, ''), coalesce(c.filter_suffix, '')
from projects p
join bucket_metainfos b on b.project_id = p.id
left join bucket_eventing_configs c on c.project_id = b.project_id and c.bucket_name = b.name
where p.public_id = %(project)s and b.name = %(bucket)s
order by c.rule
"""

_SNAPSHOT = """
select json_build_object('bucket', b.id, 'config', b.config, 'rules', coalesce(
    (select json_agg(json_build_object('rule', c.rule, 'events', c.events, 'filter_prefix', c.filter_prefix,
                                       'filter_suffix', c.filter_suffix))
     from bucket_eventing_configs c where c.project_id = b.project_id and c.bucket_name = b.name), '[]'))::text
from projects p join bucket_metainfos b on b.project_id = p.id
where p.public_id = %(project)s and b.name = %(bucket)s
"""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A bucket's rules, and the entity tag that stands for them: each change gets another, also one that changes back."""

    rules: Sequence[Rule]
    etag: str
    bucket_id: str


async def replace(
    connection: AsyncConnection[Any],
    project_public_id: str,
    bucket: str,
    rules: Sequence[Rule],
    expected: Sequence[str] | None = None,
    bucket_id: str | None = None,
    backfill: Backfill | None = None,
) -> str:
    """Make these the bucket's rules, all of them and no others, in one transaction; returns their entity tag.

    With `expected`, only if the entity tag of what is there is among these; with `bucket_id`, only if it is still that bucket
    and not another one of its name. With `backfill`, one of them, which must be new, is first told of what is there.
    """
    where = {"project": project_public_id, "bucket": bucket}
    async with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
        row = await (await cursor.execute(_BUMP, where)).fetchone()
        if row is None or (bucket_id is not None and row[0] != bucket_id):
            raise no_such_bucket(bucket)
        found_id, config = row
        if expected is not None and _etag(found_id, config - 1) not in expected:
            raise changed_meanwhile()
        arns = list({rule.destination.arn: None for rule in rules if not arn.fans_out(rule.destination)})
        await cursor.execute(OPEN_LANES, {**where, "destinations": arns})
        kept = {"ids": [rule.config_id for rule in rules], "topics": [rule.destination.name for rule in rules]}
        await cursor.execute(_DELETE, {**where, **kept})
        await cursor.executemany(_UPSERT, [{**where, **_row(rule), "config": config} for rule in rules])
        if backfill is not None:
            await open_with_rule(cursor, project_public_id, bucket, backfill)
    return _etag(found_id, config)


async def read(connection: AsyncConnection[Any], project_public_id: str, bucket: str) -> Configuration:
    """The bucket's rules, oldest first. Always from the database: a tenant sees what was just put."""
    async with connection.cursor(row_factory=tuple_row) as cursor:
        rows = await (await cursor.execute(_READ, {"project": project_public_id, "bucket": bucket})).fetchall()
    if not rows:
        raise no_such_bucket(bucket)
    rules = [
        Rule(config_id, arn.from_name(topic), tuple(events), KeyFilter(prefix, suffix))
        for _, _, config_id, topic, events, prefix, suffix in rows
        if config_id is not None
    ]
    return Configuration(rules, _etag(*rows[0][:2]), rows[0][0])


async def snapshot(connection: AsyncConnection[Any], project_public_id: str, bucket: str) -> str | None:
    """What a cache keeps of a bucket, for `MATCHED_IN_CACHE`; None if there is no such bucket."""
    async with connection.cursor(row_factory=tuple_row) as cursor:
        row = await (await cursor.execute(_SNAPSHOT, {"project": project_public_id, "bucket": bucket})).fetchone()
    return None if row is None else str(row[0])


def _etag(bucket_id: str, config: int) -> str:
    return sha256(f"{bucket_id} {config}".encode()).hexdigest()[:32]


def changed_meanwhile() -> CallerError:
    message = "The configuration is not the one in If-Match any more: read it again, and put your change into that."
    return CallerError("PreconditionFailed", message, Condition="If-Match")


def _row(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.config_id,
        "topic": rule.destination.name,
        "destination": rule.destination.arn,
        "fans_out": arn.fans_out(rule.destination),
        "events": list(rule.events),
        "prefix": rule.filter.prefix,
        "suffix": rule.filter.suffix,
    }
