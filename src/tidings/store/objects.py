"""Objects in an unversioned bucket. One statement writes the object and appends its change: both or neither.

The head row of a key is the lock for everything that happens to the key. `seq` is drawn from the RETURNING of the part
that took this lock, so the changes of a key are numbered in the order in which they happened; drawn anywhere else they
are not. The bucket and its rules are read before the lock is waited for: the configuration at the start of the request
decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, NamedTuple

from psycopg import errors as pg

from tidings.db.pool import Pool, run
from tidings.errors import CallerError
from tidings.events import keys, names
from tidings.rules.table import MATCHED
from tidings.store.buckets import no_such_bucket


@dataclass(frozen=True, slots=True)
class Content:
    """What is put under a key: the bytes of a small body, or the name of the blob that holds a larger one.

    `metadata` are the headers that come back with the object, by their names in lower case.
    """

    size: int
    etag: str
    content_type: str
    metadata: Mapping[str, str]
    body: bytes | None = None
    blob: str | None = None


class Origin(NamedTuple):
    """Where a change comes from, as its event will tell."""

    principal: str
    source_ip: str
    request_id: str


class Head(NamedTuple):
    """An object as it is stored. `body` is None for one in a blob, and where it was not asked for."""

    size: int
    etag: str
    content_type: str
    metadata: dict[str, str]
    modified_at: datetime
    blob: str | None
    body: bytes | None = None


_BUCKET = f"""
    select b.id, b.config, ({MATCHED}) as rules
    from bucket_metainfos b join projects p on p.id = b.project_id
    where p.public_id = %(project)s and b.name = %(bucket)s
"""

_CHANGE = """
    insert into changes (seq, project, bucket, bucket_id, key, encoded, event, size, etag,
                         principal, source_ip, request_id, config, rules)
    select nextval('change_seq'), %(project)s, %(bucket)s, b.id, %(key)s, %(encoded)s, %(event)s, h.size, h.etag,
           %(principal)s, %(source_ip)s, %(request_id)s, b.config, b.rules
    from h, b
"""

_PUT = f"""
with b as ({_BUCKET}),
h as (
    insert into heads (bucket_id, key, size, etag, content_type, metadata, config, body, blob)
    select id, %(key)s, %(size)s, %(etag)s, %(content_type)s, %(metadata)s::jsonb, config, %(body)s, %(blob)s from b
    on conflict (bucket_id, key) do update
    set size = excluded.size, etag = excluded.etag, content_type = excluded.content_type, metadata = excluded.metadata,
        config = excluded.config, body = excluded.body, blob = excluded.blob,
        modified_at = clock_timestamp()  -- not the excluded one: that is from before the wait for the lock
    returning new.size, new.etag, old.blob as old_blob
),
c as ({_CHANGE})
select old_blob from h
"""

_DELETE = f"""
with b as ({_BUCKET}),
h as (
    delete from heads using b where bucket_id = b.id and key = %(key)s
    returning null::bigint as size, null::text as etag, blob as old_blob
),
c as ({_CHANGE})
select (select old_blob from h) from b
"""

_GET = """
select h.size, h.etag, h.content_type, h.metadata, h.modified_at, h.blob{body}
from bucket_metainfos b join projects p on p.id = b.project_id
left join heads h on h.bucket_id = b.id and h.key = %(key)s
where p.public_id = %(project)s and b.name = %(bucket)s
"""
_GET_HEAD = _GET.format(body="")
_GET_BODY = _GET.format(body=", h.body")


# As PostgreSQL writes an array: adapting a Python list for every request costs more than all the other parameters.
_WANTED = {event: f"{{{','.join(names.wanted_by(event))}}}" for event in (names.PUT, names.DELETE)}


async def put(pool: Pool, project: str, bucket: str, key: str, content: Content, origin: Origin) -> str | None:
    """Write the object and its change. Returns the name of the blob that it replaced, which nothing refers to now."""
    parameters = _parameters(project, bucket, key, names.PUT, origin)
    parameters |= {
        "size": content.size,
        "etag": content.etag,
        "content_type": content.content_type,
        "metadata": json.dumps(content.metadata),
        "body": content.body,
        "blob": content.blob,
    }
    try:
        return await _write(pool, _PUT, parameters)
    except pg.ForeignKeyViolation:  # the bucket was deleted while this statement ran
        raise no_such_bucket(bucket) from None


async def delete(pool: Pool, project: str, bucket: str, key: str, origin: Origin) -> str | None:
    """Remove the object and append its change; where there is no object, do neither. Returns the object's blob."""
    return await _write(pool, _DELETE, _parameters(project, bucket, key, names.DELETE, origin))


def _parameters(project: str, bucket: str, key: str, event: str, origin: Origin) -> dict[str, Any]:
    encoded = keys.encoded_if_different(key)
    return {
        "project": project,
        "bucket": bucket,
        "key": key,
        "encoded": encoded,
        "event": event,
        "wanted": _WANTED[event],
        **origin._asdict(),
    }


async def _write(pool: Pool, statement: LiteralString, parameters: dict[str, Any]) -> str | None:
    row = await (await run(pool, statement, parameters)).fetchone()
    if row is None:
        raise no_such_bucket(parameters["bucket"])
    old_blob: str | None = row[0]
    return old_blob


async def get(pool: Pool, project: str, bucket: str, key: str, *, body: bool = True) -> Head:
    """The object under a key, with the bytes of a small one unless only its head is wanted."""
    statement = _GET_BODY if body else _GET_HEAD
    row = await (await run(pool, statement, {"project": project, "bucket": bucket, "key": key})).fetchone()
    if row is None:
        raise no_such_bucket(bucket)
    if row[0] is None:
        raise CallerError("NoSuchKey", "The specified key does not exist.", Key=key)
    return Head(*row)
