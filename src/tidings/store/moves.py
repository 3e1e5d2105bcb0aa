"""Moving an object: it appears in its new place and is gone from the old one, in one transaction with both changes."""

from __future__ import annotations

from dataclasses import replace
from typing import LiteralString
from urllib.parse import quote

from tidings.db.pool import Pool, transaction
from tidings.errors import CallerError, no_such_bucket
from tidings.events import names
from tidings.store import statements
from tidings.store.buckets import deleted_meanwhile
from tidings.store.deletes import remove_version
from tidings.store.model import Condition, Content, Done, Origin, Place, Segment
from tidings.store.objects import ANYTHING, commit_under_lock, no_such_key, precondition_failed
from tidings.store.transmitting import transmitting

_OPERATION = "finish move"

_SOURCE: LiteralString = """
    select h.version_id, h.delete_marker, h.size, h.etag, h.content_type, h.metadata, h.tags, h.body, h.segments
    from bucket_metainfos b join projects p on p.id = b.project_id
    left join heads h on h.bucket_id = b.id and h.key = %(key)s
    where p.public_id = %(project)s and b.name = %(bucket)s
"""


@transmitting
async def finish_move_object(
    pool: Pool,
    source: Place,
    target: Place,
    origin: Origin,
    condition: Condition = ANYTHING,
    source_condition: Condition = ANYTHING,
) -> Done:
    """Move the newest version. Its blobs go along, nothing is copied; what was behind it stays where it is."""
    if source == target:
        raise CallerError("InvalidRequest", f"The object cannot be moved to where it is: {source.bucket}/{source.key[:100]}.")
    name = f"{source.bucket}/{quote(source.key, safe='/')}"
    there = statements.parameters(target, names.COPY, _OPERATION, origin, name)
    here = statements.parameters(source, names.DELETE, _OPERATION, origin, name)
    with deleted_meanwhile(target.bucket):
        async with transaction(pool) as connection:
            # In one order for everybody: two moves in opposite directions must not wait for each other in a circle.
            for parameters in sorted((here, there), key=lambda each: (each["bucket"], each["key"].encode())):
                await connection.execute(statements.LOCK, parameters)
            row = await (await connection.execute(_SOURCE, here)).fetchone()
            if row is None:
                raise no_such_bucket(source.bucket)
            version_id, delete_marker, size, etag, content_type, metadata, tags, body, segments = row
            if version_id is None or delete_marker:
                raise no_such_key(source.key)
            if source_condition.etags and etag not in source_condition.etags:
                raise precondition_failed()
            blobs = None if segments is None else [Segment(*each) for each in segments]
            content = Content(size, etag, content_type, metadata, body, blobs, tags)
            done = await commit_under_lock(connection, there | statements.content(content), condition)
            gone = await remove_version(connection, here, version_id)
            return replace(done, rules=(*gone.rules, *done.rules))
