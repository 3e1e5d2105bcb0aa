"""The objects that are older than a rule, page by page, as changes: what a backfill tells of.

Which they are is decided by the configuration's version on each object version: the statement that wrote it read the rules and
this number in one snapshot. A lower number than the rule's: the writer did not know the rule, and nobody else tells of it. Any
other: the writer knew the rule, and its own change tells. No version is on both sides, and none on neither.
"""

from __future__ import annotations

from typing import LiteralString

from psycopg import Connection
from psycopg.rows import dict_row

from tidings.errors import Superseded
from tidings.events import names
from tidings.events.keys import encoded_if_different
from tidings.events.positions import Position
from tidings.store.listing import LAST
from tidings.store.model import EMPTY_ETAG

# Every statement of the store takes this lock on the table before it takes its snapshot, and keeps it until its transaction
# ends. A transaction id will not do for this: who waits for the row of a key has a snapshot, and no id yet.
_WRITERS = """
select distinct virtualtransaction, pid from pg_locks
where locktype = 'relation' and relation = 'heads'::regclass and mode = 'RowExclusiveLock' and pid <> pg_backend_pid()
  and database = (select oid from pg_database where datname = current_database())
"""

_VERSION: LiteralString = (
    "bucket_id, key, version_id, ordinal, delete_marker, size, etag, content_type, metadata, tags, config, modified_at"
)


def _part(table: LiteralString, more: LiteralString) -> LiteralString:
    return f"""(
        select {_VERSION} from {table} x
        where x.bucket_id = %(bucket_id)s and x.config < %(since)s and x.key >= %(key)s and x.key >= %(prefix)s
          and x.key <= %(end)s and (x.key, x.ordinal) > (%(key)s, %(ordinal)s){more}
        order by x.key, x.ordinal limit %(most)s
    )"""


# Of each key the newest that is older than the rule: it may have been covered since, which is told of after it.
_COVERED: LiteralString = """ and not x.delete_marker
    and exists (select from heads h where h.bucket_id = x.bucket_id and h.key = x.key and h.config >= %(since)s)
    and not exists (select from versions v where v.bucket_id = x.bucket_id and v.key = x.key and v.config < %(since)s
                    and v.ordinal > x.ordinal)
"""
_NEWEST: LiteralString = f"{_part('heads', ' and not x.delete_marker')} union all {_part('versions', _COVERED)}"
_EVERY: LiteralString = f"{_part('heads', '')} union all {_part('versions', '')}"

# Per key the numbers rise with the versions, up to `top`. The set that they are counted in only ever shrinks. What was written
# later all the same has the number of its change.
_SEQ: LiteralString = """coalesce(late.seq, greatest(1, %(top)s - (greatest(
    (select max(v.ordinal) from versions v where v.bucket_id = x.bucket_id and v.key = x.key and v.config < %(since)s),
    (select h.ordinal from heads h where h.bucket_id = x.bucket_id and h.key = x.key and h.config < %(since)s))
    - x.ordinal)))"""


def _stage(listing: LiteralString) -> LiteralString:
    return f"""
    with page as (select * from ({listing}) as x order by key, ordinal limit %(most)s),
    put as (
        insert into backfill_changes (backfill, n, seq, id, at, project, bucket, bucket_id, key, event, size, etag, principal,
                                      source_ip, request_id, config, rules, operation, version_id, versioning, content_type,
                                      metadata, tags, request_at)
        select %(backfill)s, %(n)s + row_number() over (order by x.key, x.ordinal), {_SEQ}, i.id::text, x.modified_at,
               p.public_id, b.name, b.id, x.key, case when x.delete_marker then '{names.MARKER}' else '{names.PUT}' end,
               case when not x.delete_marker then x.size end, case when x.delete_marker then '{EMPTY_ETAG}' else x.etag end,
               p.public_id, '0.0.0.0', upper(left(replace(i.id::text, '-', ''), 16)), x.config, %(rule)s::text, 'backfill',
               case when b.versioning <> 'unversioned' then x.version_id end, b.versioning, nullif(x.content_type, ''),
               x.metadata::text, x.tags::text, x.modified_at
        from page x join bucket_metainfos b on b.id = x.bucket_id join projects p on p.id = b.project_id
        left join backfill_late late on late.backfill = %(backfill)s and late.key = x.key and late.version_id = x.version_id
        cross join lateral (
            select md5(concat_ws(' ', x.bucket_id, x.version_id, x.ordinal, extract(epoch from x.modified_at), x.key))::uuid id
        ) i
        returning n
    )
    select (select count(*) from put), key, ordinal from page order by key desc, ordinal desc limit 1
    """


_STAGE = {False: _stage(_NEWEST), True: _stage(_EVERY)}

_OPEN = """
select b.id as backfill, b.rule, b.bucket_id, b.since, b.top, b.versions, b.key, b.ordinal, b.n, b.prefix as asked,
       coalesce(c.filter_prefix, '') as prefix
from backfills b left join bucket_eventing_configs c on c.rule = b.rule
where b.lane = %s and b.ended_at is null for update of b
"""

_MOVED = """
update backfills set n = n + %(count)s, key = %(key)s, ordinal = %(ordinal)s, listed_at = case when %(last)s then now() end
where id = %(backfill)s
"""


def writers(connection: Connection) -> dict[str, int]:
    """The transactions that may be writing objects now, and the session of each."""
    return dict(connection.execute(_WRITERS).fetchall())


def stage(connection: Connection, epoch: int, lane: int, most: int, literal: bool) -> None:
    """Put the next page beside the log and move the place in the listing, in one transaction: each version once, whatever dies.

    `literal` says that the rule's filter speaks of keys as they are.
    """
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        if not cursor.execute("select from stream where name = 'main' and epoch = %s for share", [epoch]).rowcount:
            raise Superseded(f"Another stream has taken over: epoch {epoch} no longer counts.")
        values = cursor.execute(_OPEN, [lane]).fetchone()
        if values is None:
            return
        values["prefix"] = narrowest(values.pop("asked"), values["prefix"], literal)
        if values["prefix"] is None:  # no key has both
            values |= {"count": 0, "last": True}
        else:
            values |= {"end": values["prefix"] + LAST, "most": most}
            row = cursor.execute(_STAGE[values["versions"]], values).fetchone()
            found = row or {"count": 0, "key": values["key"], "ordinal": values["ordinal"]}
            values |= {**found, "last": found["count"] < most}
        cursor.execute(_MOVED, values)
        _encode(connection, values["backfill"], values["n"])


def narrowest(asked: str, of_rule: str, literal: bool) -> str | None:
    """The prefix that a key must have at least; None if there is none that has both.

    A filter may also speak of the form-encoded key: one with `+` or `%` in it is left to the pipeline, which knows both forms.
    """
    of_rule = "" if not literal and ("+" in of_rule or "%" in of_rule) else of_rule
    if asked.startswith(of_rule):
        return asked
    return of_rule if of_rule.startswith(asked) else None


def _encode(connection: Connection, backfill: int, after: int) -> None:
    """The encoded form of the keys that have another one, by the only function that knows it."""
    rows = connection.execute(
        "select n, key from backfill_changes where backfill = %s and n > %s and key ~ '[^A-Za-z0-9_.~/-]'", [backfill, after]
    ).fetchall()
    if rows:
        connection.execute(
            "update backfill_changes c set encoded = e.encoded from unnest(%s::bigint[], %s::text[]) as e(n, encoded)"
            " where c.backfill = %s and c.n = e.n",
            [[n for n, _ in rows], [encoded_if_different(key) for _, key in rows], backfill],
        )


def condition(backfill: int, told: int, upto: int) -> str:
    """SQL: the staged rows behind `told`, up to `upto`."""
    return f"backfill = {backfill} and n > {told} and n <= {upto}"


def place(n: int) -> Position:
    """Where the row `n` is for those who deliver: a row's number stands where changes have their window."""
    return Position(n, 0)
