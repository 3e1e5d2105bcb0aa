"""The tags of a version. They are no part of its content: changing them makes no new version and no change."""

from __future__ import annotations

from collections.abc import Mapping

from tidings.db.pool import Pool, transaction
from tidings.errors import CallerError
from tidings.store import statements
from tidings.store.model import Place, Version
from tidings.store.objects import get, no_such_key, no_such_version


async def replace_tags(pool: Pool, place: Place, version_id: str | None, tags: Mapping[str, str]) -> Version:
    """Give a version these tags and no others; returns the version as it was."""
    found = await get(pool, place, version_id, body=False)
    if found.delete_marker and version_id is not None:
        message = "The specified method is not allowed against this resource."
        raise CallerError("MethodNotAllowed", message, ResourceType="DeleteMarker")
    if found.delete_marker:
        raise no_such_key(place.key)
    where = {"project": place.project, "bucket": place.bucket, "key": place.key, "version_id": found.version_id}
    async with transaction(pool) as connection:
        await connection.execute(statements.LOCK, where)
        for table in ("heads", "versions"):
            changed = await connection.execute(
                f"update {table} t set tags = %(tags)s::jsonb from bucket_metainfos b join projects p on p.id = b.project_id"
                " where p.public_id = %(project)s and b.name = %(bucket)s and t.bucket_id = b.id and t.key = %(key)s"
                " and t.version_id = %(version_id)s",
                {**where, "tags": statements.as_json(tags)},
            )
            if changed.rowcount:
                return found
    raise no_such_version(place.key, found.version_id)
