"""Deleting: the newest version, an exact one, or all of them. What is not there is deleted without a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

from tidings.db.pool import Pool, run, transaction
from tidings.errors import no_such_bucket
from tidings.events import names
from tidings.store import statements
from tidings.store.buckets import deleted_meanwhile
from tidings.store.model import EMPTY_ETAG, Done, Origin, Place
from tidings.store.transmitting import transmitting

_LAST, _EXACT, _ALL = "delete last committed", "delete exact version", "delete all versions"

_BUCKET: LiteralString = statements.of_either(statements.BUCKET)

_GONE: LiteralString = f"""
    select '{names.DELETE}' as event, null::bigint as size, null::text as etag, version_id, size as old_size, content_type,
           metadata::text as metadata, tags::text as tags, null as replaced from {{relation}}
"""


def _marked(replaced: LiteralString) -> LiteralString:
    """The change of a new delete marker; `replaced` is the relation with the null version that had to go for it."""
    return f"""
    select '{names.MARKER}' as event, null::bigint as size, '{EMPTY_ETAG}' as etag, h.version_id, r.size as old_size,
           r.content_type, r.metadata::text as metadata, r.tags::text as tags,
           case when r.delete_marker then 'marker' when not r.delete_marker then 'version' end as replaced
    from h left join ({replaced}) r on true
"""


_REPLACED: LiteralString = """
    select old_delete_marker as delete_marker, old_size as size, old_content_type as content_type, old_metadata as metadata,
           old_tags as tags from h where old_version_id = 'null' and version_id = 'null'
"""

_DELETE_LAST: LiteralString = f"""
with b as ({_BUCKET}),
d as (
    delete from heads h using b
    where b.versioning = 'unversioned' and h.bucket_id = b.id and h.key = %(key)s and h.ordinal = 1 and h.config <= b.config
    returning h.version_id, h.size, h.content_type, h.metadata, h.tags, h.segments
),
h as ({statements.head(statements.IN_ONE_STATEMENT, wanted="b.versioning <> 'unversioned'")}),
v as ({statements.KEEP}),
c as ({statements.change(_GONE.format(relation="d"))}),
m as ({statements.change(_marked(_REPLACED))})
select b.versioning, h.version_id,
       coalesce((select segments from d), case when h.old_version_id = 'null' and h.version_id = 'null' then old_segments end),
       exists (select from heads where bucket_id = b.id and key = %(key)s) and not exists (select from d),
       coalesce((select rules from c), (select rules from m))
from b left join h on true
"""

_DELETE_UNVERSIONED_UNDER_LOCK: LiteralString = f"""
with b as ({statements.BUCKET}),
d as (
    delete from heads h using b where h.bucket_id = b.id and h.key = %(key)s
    returning h.version_id, h.size, h.content_type, h.metadata, h.tags, h.segments
),
c as ({statements.change(_GONE.format(relation="d"))})
select segments, (select rules from c) from d
"""

_MARK: LiteralString = f"""
with b as ({statements.BUCKET}),
h as ({statements.head(statements.IN_ONE_STATEMENT)}),
v as ({statements.KEEP}),
c as ({statements.change(_marked(_REPLACED))})
select h.version_id, case when h.old_version_id = 'null' and h.version_id = 'null' then h.old_segments end, null,
       (select rules from c)
from h
"""

_MARK_UNDER_LOCK: LiteralString = f"""
with b as ({statements.BUCKET}),
h as ({statements.head("true")}),
v as ({statements.KEEP}),
n as ({statements.REMOVE_NULL}),
c as ({statements.change(_marked(_REPLACED + " union all select delete_marker, size, content_type, metadata, tags from n"))})
select h.version_id, case when h.old_version_id = 'null' and h.version_id = 'null' then h.old_segments end,
       (select segments from n), (select rules from c)
from h
"""


@transmitting
async def delete_object_last_committed(pool: Pool, place: Place, origin: Origin) -> Done:
    """Remove the object, or cover it with a delete marker where the bucket keeps versions."""
    parameters = _parameters(place, _LAST, origin)
    with deleted_meanwhile(place.bucket):
        row = await (await run(pool, statements.looked_up(_DELETE_LAST, parameters), parameters)).fetchone()
        if row is None:
            raise no_such_bucket(place.bucket)
        versioning, version_id, segments, unclear, rules = row
        if versioning == "unversioned" and not unclear:
            return Done(unused=statements.names_of(segments), rules=statements.kept(rules))
        if version_id is not None:
            return Done(version_id, delete_marker=True, unused=statements.names_of(segments), rules=statements.kept(rules))
        async with transaction(pool) as connection:
            return await _delete_last_under_lock(connection, parameters)


async def _delete_last_under_lock(connection: Any, parameters: dict[str, Any]) -> Done:
    marking = {**parameters, "wanted": parameters["wanted_marker"]}
    while True:
        head = await (await connection.execute(statements.LOCK, parameters)).fetchone()
        bucket = await (await connection.execute(statements.VERSIONING, parameters)).fetchone()
        if bucket is None:
            raise no_such_bucket(parameters["bucket"])
        if bucket[0] == "unversioned":
            if head is None:
                return Done()
            statement = statements.looked_up(_DELETE_UNVERSIONED_UNDER_LOCK, parameters)
            row = await (await connection.execute(statement, parameters)).fetchone()
            return Done(unused=statements.names_of(row[0]), rules=statements.kept(row[1])) if row else Done()
        statement = statements.looked_up(_MARK if head is None else _MARK_UNDER_LOCK, parameters)
        row = await (await connection.execute(statement, marking)).fetchone()
        if row is not None:
            version_id, replaced, removed, rules = row
            unused = [*statements.names_of(replaced), *statements.names_of(removed)]
            return Done(version_id, delete_marker=True, unused=unused, rules=statements.kept(rules))
        # There was no head to lock, and now there is one.


_FIELDS: LiteralString = "version_id, delete_marker, size, content_type, metadata, tags, segments"

_REMOVE_BEHIND: LiteralString = f"""
with b as ({statements.BUCKET}),
d as (
    delete from versions v using b where v.bucket_id = b.id and v.key = %(key)s and v.version_id = %(version_id)s
    returning v.{_FIELDS.replace(", ", ", v.")}
),
c as ({statements.change(_GONE.format(relation="d"))})
select delete_marker, segments, (select rules from c) from d
"""

_REMOVE_HEAD: LiteralString = f"""
with b as ({statements.BUCKET}),
n as (
    delete from versions v using b
    where v.bucket_id = b.id and v.key = %(key)s
      and v.ordinal = (select max(ordinal) from versions w where w.bucket_id = b.id and w.key = %(key)s)
    returning v.*
),
u as (
    update heads h set version_id = n.version_id, ordinal = n.ordinal, delete_marker = n.delete_marker, size = n.size,
        etag = n.etag, content_type = n.content_type, metadata = n.metadata, tags = n.tags, config = n.config,
        body = n.body, segments = n.segments, modified_at = n.modified_at
    from n where h.bucket_id = n.bucket_id and h.key = n.key
    returning old.{_FIELDS.replace(", ", ", old.")}
),
d as (
    delete from heads h using b where h.bucket_id = b.id and h.key = %(key)s and not exists (select from n)
    returning h.{_FIELDS.replace(", ", ", h.")}
),
x as (select * from u union all select * from d),
c as ({statements.change(_GONE.format(relation="x"))})
select delete_marker, segments, (select rules from c) from x
"""
"""Removes the newest version; the one behind it takes its place."""


@transmitting
async def delete_object_exact_version(pool: Pool, place: Place, version_id: str, origin: Origin) -> Done:
    """Remove one version for good. If it was the newest, the one behind it is the newest now."""
    parameters = _parameters(place, _EXACT, origin) | {"version_id": version_id}
    async with transaction(pool) as connection:
        return await remove_version(connection, parameters, version_id)


async def remove_version(connection: Any, parameters: dict[str, Any], version_id: str) -> Done:
    """The same in a transaction that may hold locks already."""
    head = await (await connection.execute(statements.LOCK, parameters)).fetchone()
    if head is None:
        if await (await connection.execute(statements.VERSIONING, parameters)).fetchone() is None:
            raise no_such_bucket(parameters["bucket"])
        return Done()
    statement = statements.looked_up(_REMOVE_HEAD if head[0] == version_id else _REMOVE_BEHIND, parameters)
    row = await (await connection.execute(statement, {**parameters, "version_id": version_id})).fetchone()
    if row is None:
        return Done()
    return Done(version_id, delete_marker=row[0], unused=statements.names_of(row[1]), rules=statements.kept(row[2]))


@transmitting
async def delete_objects(
    pool: Pool, project: str, bucket: str, wanted: Sequence[tuple[str, str | None]], origin: Origin
) -> list[Done]:
    """Delete many keys, or versions of them, all or none, each with its own change. The answers are in the order asked."""
    done: dict[int, Done] = {}
    with deleted_meanwhile(bucket):
        async with transaction(pool) as connection:
            # In one order for everybody: two such requests must not wait for each other in a circle.
            for number, (key, version_id) in sorted(enumerate(wanted), key=lambda each: (each[1][0].encode(), each[0])):
                place = Place(project, bucket, key)
                if version_id is None:
                    done[number] = await _delete_last_under_lock(connection, _parameters(place, _LAST, origin))
                else:
                    done[number] = await remove_version(connection, _parameters(place, _EXACT, origin), version_id)
    return [done[number] for number in range(len(wanted))]


@transmitting
async def delete_objects_all_versions(pool: Pool, place: Place, origin: Origin) -> Done:
    """Remove every version of a key, the newest last, each with its change."""
    parameters = _parameters(place, _ALL, origin)
    gone: list[Done] = []
    async with transaction(pool) as connection:
        await connection.execute(statements.LOCK, parameters)
        listed = await connection.execute(
            "select v.version_id from versions v join bucket_metainfos b on b.id = v.bucket_id"
            " join projects p on p.id = b.project_id"
            " where p.public_id = %(project)s and b.name = %(bucket)s and v.key = %(key)s order by v.ordinal",
            parameters,
        )
        for (version_id,) in await listed.fetchall():
            gone.append(await remove_version(connection, parameters, version_id))
        head = await (await connection.execute(statements.LOCK, parameters)).fetchone()
        if head is not None:
            gone.append(await remove_version(connection, parameters, head[0]))
    unused = [name for done in gone for name in done.unused]
    return Done(unused=unused, rules=tuple(rules for done in gone for rules in done.rules))


def _parameters(place: Place, operation: str, origin: Origin) -> dict[str, Any]:
    marker = statements.parameters(place, names.MARKER, operation, origin)["wanted"]
    return {**statements.parameters(place, names.DELETE, operation, origin), **statements.MARKER, "wanted_marker": marker}
