"""Objects and catalog joined: which object of a bucket a commit's table names.

Changes cannot be found by their key, so the object's own row is remembered as it is when the commit is made, without another
round trip: its version, and since when it is there. The change that made it is its first one from that moment on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row

from tidings.catalog.model import ICEBERG_TABLE, Content, Key
from tidings.events.catalog import CatalogEvent, ContentStored

if TYPE_CHECKING:
    from tidings.catalog.writing import NewCommit

_SCHEMES = ("s3://", "s3a://", "s3n://")


def named(source: LiteralString) -> LiteralString:
    """Remembers the parameters' objects, as far as they are there and of the same project, if `source` has a row."""
    return f"""
    insert into catalog_objects (repository, commit_hash, content_key, event, bucket, bucket_id, object_key, version_id, etag,
                                 modified_at)
    select %(repository)s, o.commit_hash, o.content_key, coalesce(o.event, ''), b.name, b.id, h.key, h.version_id, h.etag,
           h.modified_at
    from {source} cross join json_to_recordset(%(objects)s::json)
        as o(commit_hash text, content_key text, event text, bucket text, object_key text)
    join projects p on p.public_id = %(repository)s
    join bucket_metainfos b on b.project_id = p.id and b.name = o.bucket
    join heads h on h.bucket_id = b.id and h.key = o.object_key and not h.delete_marker
    """


def objects(commits: Sequence[NewCommit], events: Sequence[CatalogEvent]) -> list[dict[str, Any]]:
    """The objects that commits name, each with the event that tells of it, if there is one."""
    told = {(event.hash, event.content_key): event.id for event in events if isinstance(event, ContentStored)}
    return [
        {
            "commit_hash": commit.hash,
            "content_key": change.key.text,
            "event": told.get((commit.hash, tuple(change.key))),
            "bucket": place[0],
            "object_key": place[1],
        }
        for commit in commits
        for change in commit.changes
        if change.content is not None and (place := located(change.content)) is not None
    ]


def located(content: Content) -> tuple[str, str] | None:
    """Bucket and key of the object that a table's metadata location names."""
    if content.type != ICEBERG_TABLE:
        return None
    location = content.values.get("metadataLocation")
    scheme = next((each for each in _SCHEMES if isinstance(location, str) and location.startswith(each)), None)
    if scheme is None or not isinstance(location, str):
        return None
    bucket, _, key = location.removeprefix(scheme).partition("/")
    return (bucket, key) if bucket and key else None


_LINK = """
o.content_key, o.event, o.version_id, o.etag, o.modified_at,
(select c.id from changes c where c.bucket_id = o.bucket_id and c.key = o.object_key and c.at >= o.modified_at
 order by c.seq limit 1) as change
from catalog_objects o
"""

_OF_OBJECT = f"""
select o.repository, o.commit_hash, {_LINK}
where o.bucket_id = %(bucket_id)s and o.object_key = %(key)s
order by o.modified_at, o.commit_hash, o.content_key
"""

_OF_COMMIT = f"""
select o.bucket, o.object_key, {_LINK}
where o.repository = %(repository)s and o.commit_hash = %(commit_hash)s
order by o.content_key
"""


def commits_naming(connection: Connection, bucket_id: str, key: str) -> list[dict[str, Any]]:
    """For `tidings explain`: the commits whose tables name an object, each with the object's change that it means."""
    return _found(connection, _OF_OBJECT, {"bucket_id": bucket_id, "key": key})


def objects_of(connection: Connection, repository: str, commit_hash: str) -> list[dict[str, Any]]:
    """The other way round: the objects that a commit's tables name."""
    return _found(connection, _OF_COMMIT, {"repository": repository, "commit_hash": commit_hash})


def _found(connection: Connection, query: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(query.encode(), values).fetchall()
    return [{**row, "content_key": list(Key.stored(row["content_key"]))} for row in rows]
