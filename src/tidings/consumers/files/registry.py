"""The merge: staged records become the registry, in one transaction of few statements, for one record or for a million.

For each version the record with the highest sequencer counts, whether it wrote, marked or removed it; so the registry is the
same in whatever order, and however often, records come. For each key the version with the highest sequencer is the latest.

Keys are locked by their stripe, in order, before anything is read. So whoever reads sees all that those before have done,
nobody waits in a circle, and a decision once made stays right until it is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from tidings.consumers import staging
from tidings.consumers.files.notification import stripe
from tidings.consumers.files.paths import parse_atlas
from tidings.consumers.files.refusals import AtlasNotFound, EtagMismatch, Invalid, Refusal
from tidings.consumers.files.staged import COLUMNS, Row

Connection = psycopg.Connection[Any]
_Rows = Sequence[tuple[Any, ...]]

_LOCK = 0x66696C  # "fil": the first half of our advisory locks' names
_STAGED: LiteralString = "staged_files"
_MOST_WORDS = 20
"""Refusals of a load that are told one by one."""
_KEEP_IDS = "7 days"
"""A message is accepted for an hour and a quarter after it was sent; its id is known for much longer."""

# A statement of its own: what comes after sees what was committed while it waited.
_TAKE = """
select pg_advisory_xact_lock({lock}, stripe) from (select distinct stripe from {staged} order by stripe) s
"""

# How many rows there are is all that matters about them. The registry is looked into by its indexes, also where it seems to be
# small: others may be filling it just now. Most keys come once: there is nothing to memoize. Merges run side by side already.
_HOW = """
select set_config('default_statistics_target', '10', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_memoize', 'off', true), set_config('max_parallel_workers_per_gather', '0', true)
"""

# The seed's lookup, for all atlases that are named.
_ATLASES = """
select w.atlas, a.id
from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[]) w (atlas, network, short_name, version, short_version)
join hat.atlases a
  on a.overview ->> 'network' = w.network
 and (a.overview ->> 'version' = w.version or a.overview ->> 'version' = w.short_version)
 and lower(a.overview ->> 'shortName') = lower(w.short_name)
"""

# What needs to be decided about: the records of a key that is known already, of which a version comes twice, or of which a
# record does not just write a file. Most keys are new, and their versions come once. Here and below, what is lateral and
# limited is one look into an index for each record: a join might read the whole registry, and its price would grow with it.
_OPEN: LiteralString = """
create temporary table undecided on commit drop as
with odd as (
    select bucket, key from {staged} group by bucket, key, version_id having count(*) > 1
    union
    select bucket, key from {staged}
    where kind <> 'created' or not (atlas is null or atlas = any({atlases})) or not {awaits} and sha256_client is null
)
select s.* from {staged} s left join odd on odd.bucket = s.bucket and odd.key = s.key
left join lateral (select true as known from hat.files f where f.bucket = s.bucket and f.key = s.key limit 1) f on true
left join lateral (select true as known from hat.removals r where r.bucket = s.bucket and r.key = s.key limit 1) r on true
where odd.key is not null or f.known or r.known
"""

# All others, by key, which is the order of the indexes within a bucket.
_ENTER: LiteralString = """
insert into hat.files (bucket, key, version_id, etag, size_bytes, sequencer, event_name, event_time, file_type, atlas_id,
                       is_latest, sha256_client, integrity_status)
select s.bucket, s.key, s.version_id, s.etag, s.size_bytes, s.sequencer, s.event_name, s.event_time, s.file_type, a.atlas_id,
       row_number() over (partition by s.key, s.bucket order by s.sequencer desc, s.version_id desc nulls last) = 1,
       s.sha256_client, case when s.sha256_client is null then 'awaiting' else 'pending' end
from {staged} s left join unnest({atlases}::text[], {ids}::uuid[]) a (atlas, atlas_id) using (atlas)
where not exists (select from pg_temp.undecided u where u.bucket = s.bucket and u.key = s.key)
order by s.key, s.bucket
"""

# One row for each version that the undecided records speak of, by the record that counts. `effective`: it changes what is
# known. `leads`: of all that become known now about its key, it is ahead. `behind`, of one that leads: something was known that
# is ahead of it, and may be gone when this is applied. No version id is empty, so '' can stand for null where rows are
# compared, which does not know that null equals null. Keys come before buckets where rows are sorted: they differ sooner.
_DECIDE = """
create temporary table decided on commit drop as
with facts as (
    select s.*, f.id as file_id, f.sequencer as file_sequencer, f.etag as file_etag, r.sequencer as removal_sequencer,
           coalesce(r.sequencer < s.sequencer, true) and coalesce(f.sequencer < s.sequencer, true) as newer,
           row_number() over (
               partition by s.key, s.bucket, s.version_id order by s.sequencer desc, s.kind desc, s.etag desc, s.sha256_client
           ) as place
    from pg_temp.undecided s
    left join lateral (
        select * from hat.files f where f.bucket = s.bucket and f.key = s.key and f.version_id = s.version_id
        union all
        select * from hat.files f where f.bucket = s.bucket and f.key = s.key and f.version_id is null and s.version_id is null
        limit 1
    ) f on true
    left join lateral (
        select * from hat.removals r where r.bucket = s.bucket and r.key = s.key and r.version_id = s.version_id
        union all
        select * from hat.removals r
        where r.bucket = s.bucket and r.key = s.key and r.version_id is null and s.version_id is null
        limit 1
    ) r on true
), won as (
    select facts.*, a.atlas_id,
           case
               when kind <> 'created' then null
               when file_etag <> etag and (version_id is not null or file_sequencer = sequencer) then 'etag'
               when of_key is not null then 'etag'
               when atlas is not null and a.atlas_id is null then 'atlas'
               when not {awaits} and sha256_client is null and newer and (file_id is null or version_id is null) then 'sha256'
           end as refused,
           one_etag,
           file_id is not null and (version_id is not null or file_sequencer = sequencer) as known
    from facts
    left join unnest({atlases}::text[], {ids}::uuid[]) a (atlas, atlas_id) using (atlas)
    left join unnest({in_buckets}::text[], {keys}::text[], {versions}::text[], {writes}::text[], {etags}::text[])
              torn (of_bucket, of_key, of_version, of_write, one_etag)
      on of_bucket = bucket and of_key = key and of_version = coalesce(version_id, '') and of_write in ('', sequencer)
    where place = 1
), ranked as (
    select bucket, key, version_id, sequencer, kind, etag, size_bytes, event_name, event_time, file_type, atlas_id,
           sha256_client, atlas, file_id, coalesce(file_etag, one_etag) as other_etag, removal_sequencer, refused,
           newer and refused is null as effective,
           case
               when refused is not null then 'refused'
               when kind <> 'created' then case when newer then 'removed' else 'stale' end
               when newer and file_id is null then 'inserted'
               when newer or known then 'updated'
               else 'stale'
           end as operation,
           row_number() over (
               partition by key, bucket
               order by newer and refused is null and kind <> 'removed' desc, sequencer desc, version_id desc nulls last
           ) = 1 and newer and refused is null and kind <> 'removed' as leads
    from won
)
select d.*,
       case when leads then
           exists (select from hat.files o where o.bucket = d.bucket and o.key = d.key
                   and (o.sequencer, coalesce(o.version_id, '')) > (d.sequencer, coalesce(d.version_id, '')))
           or exists (select from hat.removals m where m.is_marker and m.bucket = d.bucket and m.key = d.key
                      and (m.sequencer, coalesce(m.version_id, '')) > (d.sequencer, coalesce(d.version_id, '')))
       end as behind
from ranked d
"""

# Versions that are staged with two ETags; of the null version each write has its own.
_TORN = """
select bucket, key, coalesce(version_id, ''), case when version_id is null then sequencer else '' end as write, min(etag)
from pg_temp.undecided where kind = 'created' group by bucket, key, version_id, write having min(etag) <> max(etag)
"""

_REFUSED = """
select refused, bucket, key, version_id, other_etag, etag, atlas
from decided where refused is not null order by bucket, key, version_id limit {most}
"""

_INSERT: LiteralString = """
insert into hat.files as file (bucket, key, version_id, etag, size_bytes, sequencer, event_name, event_time, file_type,
                               atlas_id, is_latest, sha256_client, integrity_status)
select d.bucket, d.key, d.version_id, d.etag, d.size_bytes, d.sequencer, d.event_name, d.event_time, d.file_type, d.atlas_id,
       d.leads and (not d.behind
           or not exists (select from hat.files o
                          where o.bucket = d.bucket and o.key = d.key and o.id is distinct from d.file_id
                          and (o.sequencer, coalesce(o.version_id, '')) > (d.sequencer, coalesce(d.version_id, '')))
           and not exists (select from hat.removals m where m.is_marker and m.bucket = d.bucket and m.key = d.key
                           and (m.sequencer, coalesce(m.version_id, '')) > (d.sequencer, coalesce(d.version_id, '')))),
       d.sha256_client, case when d.sha256_client is null then 'awaiting' else 'pending' end
from decided d
"""
_ANEW: LiteralString = "file.version_id is null and file.sequencer < excluded.sequencer"
_CAME: LiteralString = "file.sha256_client is null and excluded.sha256_client is not null"

_APPLY: tuple[LiteralString, ...] = (
    # what is gone: the row goes, and a note stays
    "delete from hat.files f using decided d where d.effective and d.kind <> 'created' and f.id = d.file_id",
    """
    insert into hat.removals (bucket, key, version_id, sequencer, is_marker, event_time)
    select bucket, key, version_id, sequencer, kind = 'marked', event_time from decided where effective and kind <> 'created'
    on conflict (bucket, key, version_id) do update
    set sequencer = excluded.sequencer, is_marker = excluded.is_marker, event_time = excluded.event_time
    where removals.sequencer < excluded.sequencer
    """,
    # the null version was written again after it had gone
    """
    delete from hat.removals r using decided d
    where d.effective and d.kind = 'created' and d.removal_sequencer is not null
      and r.bucket = d.bucket and r.key = d.key and r.version_id is not distinct from d.version_id
    """,
    # who was the latest and is no longer; before another becomes it, for there are never two
    """
    update hat.files f set is_latest = false, updated_at = now() from decided d
    where d.leads and f.is_latest and f.bucket = d.bucket and f.key = d.key and f.id is distinct from d.file_id
      and (f.sequencer, coalesce(f.version_id, '')) < (d.sequencer, coalesce(d.version_id, ''))
    """,
    # What was written. The lock says that these versions are new; most are, and asking again costs a tenth of a load.
    f"{_INSERT} where d.operation = 'inserted'",
    # A version that is known keeps what was found out about it; the null version, written again, is another.
    f"""
    {_INSERT} where d.kind = 'created' and d.operation = 'updated' and (d.effective or d.sha256_client is not null)
    on conflict (bucket, key, version_id) do update
    set etag = excluded.etag, size_bytes = excluded.size_bytes, sequencer = greatest(file.sequencer, excluded.sequencer),
        event_name = excluded.event_name, event_time = excluded.event_time, updated_at = now(),
        is_latest = case when file.sequencer < excluded.sequencer then excluded.is_latest else file.is_latest end,
        sha256_client = case when {_ANEW} then excluded.sha256_client
                             else coalesce(file.sha256_client, excluded.sha256_client) end,
        sha256_server = case when {_ANEW} then null else file.sha256_server end,
        source_study_id = case when {_ANEW} then null else file.source_study_id end,
        integrity_status = case when {_ANEW} or {_CAME} then excluded.integrity_status else file.integrity_status end,
        integrity_checked_at = case when {_ANEW} or {_CAME} then null else file.integrity_checked_at end,
        integrity_error = case when {_ANEW} or {_CAME} then null else file.integrity_error end
    where {_ANEW} or file.etag = excluded.etag
          and (file.sequencer < excluded.sequencer or {_CAME})
    """,
    # the one before becomes the latest again
    """
    update hat.files f set is_latest = true, updated_at = now()
    from (
        select distinct on (o.bucket, o.key) o.id, o.bucket, o.key, o.sequencer, o.version_id, o.is_latest
        from hat.files o
        join (select distinct bucket, key from decided where effective and kind = 'removed') d using (bucket, key)
        order by o.bucket, o.key, o.sequencer desc, o.version_id desc nulls last
    ) first
    where f.id = first.id and not first.is_latest
      and not exists (select from hat.removals m where m.is_marker and m.bucket = first.bucket and m.key = first.key
                      and (m.sequencer, coalesce(m.version_id, '')) > (first.sequencer, coalesce(first.version_id, '')))
    """,
)


@dataclass(frozen=True, slots=True)
class Merged:
    """How many versions were inserted, updated (known already), stale (something newer is known), removed or refused."""

    operations: Counter[str] = field(default_factory=Counter)
    refusals: tuple[Refusal, ...] = ()


def take(connection: Connection, rows: Sequence[Row], awaits: bool, topic: str, message_id: str) -> Merged | None:
    """The records of one message, all or none. None if it was taken before."""
    with connection.transaction():
        if not _remember(connection, topic, message_id):
            return None
        merged = merge_rows(connection, rows, awaits)
        if merged.refusals:
            raise merged.refusals[0]
    return merged


def hold(connection: Connection, keys: Iterable[tuple[str, str]]) -> None:
    """Hold the locks of these buckets and keys until the transaction ends, as a merge does."""
    stripes = sorted({stripe(bucket, key) for bucket, key in keys})
    connection.execute("select pg_advisory_xact_lock(%s, stripe) from unnest(%s::int[]) stripe", [_LOCK, stripes])


def was_taken(connection: Connection, topic: str, message_id: str) -> bool:
    found = connection.execute("select from hat.messages where (topic, message_id) = (%s, %s)", [topic, message_id])
    return found.rowcount > 0


def forget_messages(connection: Connection) -> None:
    connection.execute("delete from hat.messages where received_at < now() - %s::interval", [_KEEP_IDS])


def merge_rows(connection: Connection, rows: Iterable[Row], awaits: bool) -> Merged:
    """Inside a transaction of the caller's, who decides what refusals mean."""
    staging.stage(connection, _STAGED, COLUMNS, rows)
    return merge(connection, sql.Identifier("pg_temp", _STAGED), awaits)


def merge(connection: Connection, staged: sql.Identifier, awaits: bool) -> Merged:
    """What was staged becomes the registry, but for what is refused. Inside a transaction, which ends the locks.

    A new file without a SHA-256 is refused, unless it may be awaited.
    """
    connection.execute(sql.SQL(_TAKE).format(lock=sql.Literal(_LOCK), staged=staged))
    connection.execute(_HOW)
    atlases = _atlases(connection, staged)
    entered, left = _enter(connection, staged, atlases, awaits)
    operations = Counter(inserted=entered) if entered else Counter[str]()
    if not left:
        return Merged(operations)
    operations += _decide(connection, atlases, awaits, left)
    connection.execute("analyze pg_temp.decided")
    refusals: tuple[Refusal, ...] = ()
    if operations["refused"]:
        refused = connection.execute(sql.SQL(_REFUSED).format(most=sql.Literal(_MOST_WORDS)))
        refusals = tuple(_refusal(*row) for row in refused)
    connection.execute("set local enable_hashjoin = off")  # for the same reason: what is decided looks into the indexes
    connection.execute("set local enable_mergejoin = off")
    for statement in _APPLY:
        connection.execute(statement)
    return Merged(operations, refusals)


def _atlases(connection: Connection, staged: sql.Identifier) -> _Rows:
    """Those that are named and there are, with their ids."""
    named = connection.execute(sql.SQL("select distinct atlas from {} where atlas is not null").format(staged)).fetchall()
    wanted = [(atlas, *parse_atlas(atlas)) for (atlas,) in named]
    return connection.execute(_ATLASES, _columns(wanted, 5)).fetchall()


def _enter(connection: Connection, staged: sql.Identifier, atlases: _Rows, awaits: bool) -> tuple[int, int]:
    """Enter what needs no decision; returns how many these are, and how many are left."""
    # A statement that makes a table takes no parameters.
    names, ids = (sql.Literal(column) for column in _columns(atlases, 2))
    left = connection.execute(sql.SQL(_OPEN).format(staged=staged, atlases=names, awaits=sql.Literal(awaits))).rowcount
    connection.execute("analyze pg_temp.undecided")
    return connection.execute(sql.SQL(_ENTER).format(staged=staged, atlases=names, ids=ids)).rowcount, left


def _decide(connection: Connection, atlases: _Rows, awaits: bool, records: int) -> Counter[str]:
    """Make the table `decided`, and count what was decided."""
    operations = _decided(connection, atlases, awaits, [])
    # Only where a version comes more than once can it come with two ETags.
    if operations.total() < records and (torn := connection.execute(_TORN).fetchall()):
        connection.execute("drop table pg_temp.decided")
        operations = _decided(connection, atlases, awaits, torn)
    return operations


def _decided(connection: Connection, atlases: _Rows, awaits: bool, torn: _Rows) -> Counter[str]:
    names = ("atlases", "ids", "in_buckets", "keys", "versions", "writes", "etags")
    values = [sql.Literal(column) for column in (*_columns(atlases, 2), *_columns(torn, 5))]
    connection.execute(sql.SQL(_DECIDE).format(awaits=sql.Literal(awaits), **dict(zip(names, values, strict=True))))
    counted = connection.execute("select operation, count(*) from decided group by operation").fetchall()
    return Counter(dict(counted))


def _columns(rows: _Rows, number: int) -> list[list[Any]]:
    return [[row[place] for row in rows] for place in range(number)]


def _remember(connection: Connection, topic: str, message_id: str) -> bool:
    """Whether it is new. Where the same message is being taken just now, this waits for what becomes of it."""
    told = connection.execute(
        "insert into hat.messages (topic, message_id) values (%s, %s) on conflict do nothing", [topic, message_id]
    )
    return told.rowcount == 1


def _refusal(why: str, bucket: str, key: str, version_id: str | None, has: str, says: str, atlas: str) -> Refusal:
    if why == "sha256":
        return Invalid(f"SHA256 metadata is required: {bucket}/{key[:300]} has no source-sha256")
    if why == "atlas":
        network, short_name, version, short_version = parse_atlas(atlas)
        return AtlasNotFound(
            f"Atlas not found for {bucket}/{key}: network={network!r}, shortName={short_name!r}, "
            f"version={version!r} or {short_version!r}"
        )
    of_version = "its null version" if version_id is None else f"version {version_id}"
    return EtagMismatch(f"ETag mismatch detected for {bucket}/{key}, {of_version}: it has {has}, the notification says {says}")
