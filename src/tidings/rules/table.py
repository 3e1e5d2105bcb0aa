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
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from tidings.errors import CallerError
from tidings.events.arn import PubSubTopic
from tidings.rules.model import KeyFilter, Rule

MATCHED = """(
    select string_agg(r.rule::text, ',' order by r.rule)
    from bucket_eventing_configs r
    where r.project_id = b.project_id
      and r.bucket_name = b.name
      and r.events && %(wanted)s::text[]
      and (
          (starts_with(%(key)s::text, coalesce(r.filter_prefix, ''))
              and right(%(key)s::text, length(coalesce(r.filter_suffix, ''))) = coalesce(r.filter_suffix, ''))
          or
          (starts_with(%(encoded)s::text, coalesce(r.filter_prefix, ''))
              and right(%(encoded)s::text, length(coalesce(r.filter_suffix, ''))) = coalesce(r.filter_suffix, ''))
      )
)"""
"""`match.matches` for every rule of the row `b` of bucket_metainfos: the numbers of those that match, or null for none.

Parameters: `wanted` from `events.names.wanted_by`, `key`, and `encoded` from `events.keys.encoded_if_different`.
"""

# One statement finds the bucket, locks it against another PUT and against its deletion, and counts the version.
# Not `select for update`: that would also hold up every writer of a new key, whose foreign key points at this row.
_BUMP = """
update bucket_metainfos b set config = b.config + 1
from projects p
where p.id = b.project_id and p.public_id = %(project)s and b.name = %(bucket)s
"""

# In one order for everybody: two PUTs that make the same lanes must not wait for each other in a circle.
# A lane that exists is left alone: its row belongs to delivery.
_LANES = """
insert into lanes (project, destination)
select %(project)s, destination from unnest(%(destinations)s::text[]) destination order by destination
on conflict (project, destination) do nothing
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
    (project_id, bucket_name, config_id, topic_name, events, filter_prefix, filter_suffix, lane)
select p.id, %(bucket)s, %(id)s, %(topic)s, %(events)s::text[], nullif(%(prefix)s, ''), nullif(%(suffix)s, ''), l.id
from projects p join lanes l on l.project = p.public_id and l.destination = %(destination)s
where p.public_id = %(project)s
on conflict (project_id, bucket_name, config_id) do update
    set events = excluded.events, filter_prefix = excluded.filter_prefix, filter_suffix = excluded.filter_suffix,
        updated_at = now()
"""

_READ = """
select c.config_id, c.topic_name, c.events, coalesce(c.filter_prefix, ''), coalesce(c.filter_suffix, '')
from projects p
join bucket_metainfos b on b.project_id = p.id
left join bucket_eventing_configs c on c.project_id = b.project_id and c.bucket_name = b.name
where p.public_id = %(project)s and b.name = %(bucket)s
order by c.rule
"""


async def replace(connection: AsyncConnection[Any], project_public_id: str, bucket: str, rules: Sequence[Rule]) -> None:
    """Make these the bucket's rules, all of them and no others, in one transaction."""
    where = {"project": project_public_id, "bucket": bucket}
    async with connection.transaction():
        if not (await connection.execute(_BUMP, where)).rowcount:
            raise _no_such_bucket(bucket)
        await connection.execute(_LANES, {**where, "destinations": list({rule.topic.arn: None for rule in rules})})
        kept = {"ids": [rule.config_id for rule in rules], "topics": [rule.topic.name for rule in rules]}
        await connection.execute(_DELETE, {**where, **kept})
        for rule in rules:
            await connection.execute(_UPSERT, {**where, **_row(rule)})


async def read(connection: AsyncConnection[Any], project_public_id: str, bucket: str) -> list[Rule]:
    """The bucket's rules, oldest first. Always from the database: a tenant sees what was just put."""
    async with connection.cursor(row_factory=tuple_row) as cursor:
        rows = await (await cursor.execute(_READ, {"project": project_public_id, "bucket": bucket})).fetchall()
    if not rows:
        raise _no_such_bucket(bucket)
    return [
        Rule(config_id, PubSubTopic.from_name(topic), tuple(events), KeyFilter(prefix, suffix))
        for config_id, topic, events, prefix, suffix in rows
        if config_id is not None
    ]


def _row(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.config_id,
        "topic": rule.topic.name,
        "destination": rule.topic.arn,
        "events": list(rule.events),
        "prefix": rule.filter.prefix,
        "suffix": rule.filter.suffix,
    }


def _no_such_bucket(bucket: str) -> CallerError:
    return CallerError("NoSuchBucket", "The specified bucket does not exist.", BucketName=bucket)
