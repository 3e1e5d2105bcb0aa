"""Committing objects and reading them. One statement writes the object and appends its change: both or neither."""

from __future__ import annotations

from typing import Any, LiteralString

from tidings.db.pool import Pool, run, transaction
from tidings.errors import CallerError, no_such_bucket
from tidings.events import names
from tidings.store import statements
from tidings.store.buckets import deleted_meanwhile
from tidings.store.model import Condition, Content, Done, Origin, Place, Version
from tidings.store.transmitting import transmitting

_CREATED: LiteralString = """
    select %(event)s as event, h.size, h.etag, h.version_id, null::bigint as old_size, %(content_type)s as content_type,
           %(metadata)s as metadata, %(tags)s as tags, null as replaced from h
"""

_ALLOWED: LiteralString = "(not %(absent)s or heads.delete_marker)"
_COMMIT: LiteralString = f"""
with b as ({statements.BUCKET}),
h as ({statements.head(f"{statements.IN_ONE_STATEMENT} and {_ALLOWED}")}),
v as ({statements.KEEP}),
c as ({statements.change(_CREATED)})
select b.versioning, h.version_id, h.modified_at,
       case when h.old_version_id = 'null' and h.version_id = 'null' then h.old_segments end, null, (select rules from c)
from b left join h on true
"""
"""Safe with or without the lock. It does nothing where only the lock would make it so."""

_COMMIT_UNDER_LOCK: LiteralString = f"""
with b as ({statements.BUCKET}),
h as ({statements.head("true")}),
v as ({statements.KEEP}),
n as ({statements.REMOVE_NULL}),
c as ({statements.change(_CREATED)})
select b.versioning, h.version_id, h.modified_at,
       case when h.old_version_id = 'null' and h.version_id = 'null' then h.old_segments end, (select segments from n),
       (select rules from c)
from b left join h on true
"""

ANYTHING = Condition()


@transmitting
async def commit_inline_object(
    pool: Pool, place: Place, content: Content, origin: Origin, condition: Condition = ANYTHING, event: str = names.PUT
) -> Done:
    """Put a small object, whose bytes lie in its row."""
    return await _commit(pool, place, content, "commit inline", event, origin, condition)


@transmitting
async def commit_object_with_segments(
    pool: Pool, place: Place, content: Content, origin: Origin, condition: Condition = ANYTHING, event: str = names.PUT
) -> Done:
    """Put a larger object, whose bytes are in blobs already."""
    return await _commit(pool, place, content, "commit with segments", event, origin, condition)


@transmitting
async def finish_copy_object(
    pool: Pool, place: Place, content: Content, origin: Origin, source: str, condition: Condition = ANYTHING
) -> Done:
    """Put what was copied from `source`, as callers name it: BUCKET/KEY, with ?versionId=… where that was asked for."""
    return await _commit(pool, place, content, "finish copy", names.COPY, origin, condition, source)


async def _commit(
    pool: Pool,
    place: Place,
    content: Content,
    operation: str,
    event: str,
    origin: Origin,
    condition: Condition,
    source: str | None = None,
) -> Done:
    parameters = statements.parameters(place, event, operation, origin, source) | statements.content(content)
    with deleted_meanwhile(place.bucket):
        if condition == ANYTHING:
            row = await (await run(pool, statements.looked_up(_COMMIT, parameters), parameters)).fetchone()
            if row is None:
                raise no_such_bucket(place.bucket)
            if row[1] is not None:
                return _done(row)
        async with transaction(pool) as connection:
            return await commit_under_lock(connection, parameters, condition)


async def commit_under_lock(connection: Any, parameters: dict[str, Any], condition: Condition = ANYTHING) -> Done:
    """The same in a transaction that may hold locks already."""
    parameters = {**parameters, "absent": condition.absent}
    if not await _locked(connection, parameters, condition):
        # There was nothing to lock. By now there may be: then this does nothing, or only what needs no lock.
        row = await (await connection.execute(statements.looked_up(_COMMIT, parameters), parameters)).fetchone()
        if row is None:
            raise no_such_bucket(parameters["bucket"])
        if row[1] is not None:
            return _done(row)
        if not await _locked(connection, parameters, condition):
            raise _too_late()
    row = await (await connection.execute(statements.looked_up(_COMMIT_UNDER_LOCK, parameters), parameters)).fetchone()
    if row is None or row[1] is None:
        raise _too_late()
    return _done(row)


async def _locked(connection: Any, parameters: dict[str, Any], condition: Condition) -> bool:
    """Lock the key's head and check the condition; whether there is a head."""
    head = await (await connection.execute(statements.LOCK, parameters)).fetchone()
    etag = head[1] if head is not None and not head[2] else None
    if condition.etags and etag is None:
        if await (await connection.execute(statements.VERSIONING, parameters)).fetchone() is None:
            raise no_such_bucket(parameters["bucket"])
        raise no_such_key(parameters["key"])
    if (condition.absent and etag is not None) or (condition.etags and not {etag, "*"} & {*condition.etags}):
        raise precondition_failed()
    return head is not None


def _too_late() -> CallerError:
    return CallerError("RequestTimeout", "The object took too long to be committed after its bytes had come: send it again.")


def _done(row: tuple[Any, ...]) -> Done:
    versioning, version_id, modified_at, replaced, removed, rules = row
    shown = None if versioning == "unversioned" else version_id
    unused = [*statements.names_of(replaced), *statements.names_of(removed)]
    return Done(shown, modified_at=modified_at, unused=unused, rules=statements.kept(rules))


def precondition_failed(**elements: str) -> CallerError:
    return CallerError("PreconditionFailed", "At least one of the pre-conditions you specified did not hold.", **elements)


def no_such_key(key: str) -> CallerError:
    return CallerError("NoSuchKey", "The specified key does not exist.", Key=key)


def no_such_version(key: str, version_id: str) -> CallerError:
    return CallerError("NoSuchVersion", "The specified version does not exist.", Key=key, VersionId=version_id)


_FIELDS: LiteralString = "version_id, delete_marker, size, etag, content_type, metadata, tags, modified_at, segments"
_GET: LiteralString = """
select h.version_id, h.delete_marker, h.size, h.etag, h.content_type, h.metadata, h.tags, h.modified_at, h.segments,
       b.versioning{body}
from bucket_metainfos b join projects p on p.id = b.project_id
left join {source} h on h.bucket_id = b.id and h.key = %(key)s
where p.public_id = %(project)s and b.name = %(bucket)s
"""
_EVERY_VERSION: LiteralString = f"""lateral (
    select bucket_id, key, {_FIELDS}, body from heads where bucket_id = b.id and key = %(key)s and version_id = %(version_id)s
    union all
    select bucket_id, key, {_FIELDS}, body from versions
    where bucket_id = b.id and key = %(key)s and version_id = %(version_id)s
)"""
_STATEMENTS = {
    (exact, body): _GET.format(source=_EVERY_VERSION if exact else "heads", body=", h.body" if body else "")
    for exact in (False, True)
    for body in (False, True)
}


async def newest(pool: Pool, place: Place) -> Version | None:
    """The object without its bytes, if there is one."""
    try:
        found = await get(pool, place, body=False)
    except CallerError:
        return None
    return None if found.delete_marker else found


async def get(pool: Pool, place: Place, version_id: str | None = None, *, body: bool = True) -> Version:
    """A version of an object, the newest unless one is named, with the bytes of a small one unless they are not wanted.

    It may be a delete marker: what that means depends on what was asked.
    """
    parameters = {"project": place.project, "bucket": place.bucket, "key": place.key, "version_id": version_id}
    statement = _STATEMENTS[version_id is not None, body]
    row = await (await run(pool, statement, parameters)).fetchone()
    if row is None:
        raise no_such_bucket(place.bucket)
    if row[0] is None:
        raise no_such_key(place.key) if version_id is None else no_such_version(place.key, version_id)
    return Version(*row)
