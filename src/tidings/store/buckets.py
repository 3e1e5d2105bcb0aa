"""Buckets: each belongs to one project, and its name is the project's own affair."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

from psycopg import errors as pg

from tidings import audit
from tidings.db.pool import Pool, run
from tidings.errors import CallerError, no_such_bucket
from tidings.store.names import bucket_name

MOST_LISTED = 10_000


class Bucket(NamedTuple):
    name: str
    created_at: datetime


@contextmanager
def deleted_meanwhile(bucket: str) -> Iterator[None]:
    """Around statements that found the bucket and then wrote a row for it: in between it may have been deleted."""
    try:
        yield
    except pg.ForeignKeyViolation:
        raise no_such_bucket(bucket) from None


async def create(pool: Pool, project: str, bucket: str) -> None:
    made = await audit.run(
        pool,
        "insert into bucket_metainfos (project_id, name) select id, %s from projects where public_id = %s"
        " on conflict do nothing",
        [bucket_name(bucket), project],
    )
    if made.rowcount == 0:
        raise CallerError(
            "BucketAlreadyOwnedByYou",
            "Your previous request to create the named bucket succeeded and you already own it.",
            BucketName=bucket,
        )


async def check_exists(pool: Pool, project: str, bucket: str) -> None:
    """Nothing, or NoSuchBucket."""
    found = await run(
        pool,
        "select from bucket_metainfos b join projects p on p.id = b.project_id where p.public_id = %s and b.name = %s",
        [project, bucket],
    )
    if found.rowcount == 0:
        raise no_such_bucket(bucket)


async def get_versioning(pool: Pool, project: str, bucket: str) -> str:
    """unversioned, enabled or suspended."""
    found = await run(
        pool,
        "select b.versioning from bucket_metainfos b join projects p on p.id = b.project_id"
        " where p.public_id = %s and b.name = %s",
        [project, bucket],
    )
    row = await found.fetchone()
    if row is None:
        raise no_such_bucket(bucket)
    versioning: str = row[0]
    return versioning


async def put_versioning(pool: Pool, project: str, bucket: str, versioning: str) -> None:
    """Enable versioning or suspend it. There is no way back to never having had it."""
    changed = await audit.run(
        pool,
        "update bucket_metainfos b set versioning = %s from projects p"
        " where p.id = b.project_id and p.public_id = %s and b.name = %s",
        [versioning, project, bucket],
    )
    if changed.rowcount == 0:
        raise no_such_bucket(bucket)


async def list_all(pool: Pool, project: str, prefix: str = "", after: str = "", most: int = MOST_LISTED) -> list[Bucket]:
    """The project's buckets by name, from the first one behind `after`."""
    found = await run(
        pool,
        "select b.name, b.created_at from bucket_metainfos b join projects p on p.id = b.project_id"
        " where p.public_id = %s and starts_with(b.name, %s) and b.name > %s order by b.name limit %s",
        [project, prefix, after, most],
    )
    return [Bucket(*row) for row in await found.fetchall()]


async def delete(pool: Pool, project: str, bucket: str) -> None:
    """Remove an empty bucket, with its notification configuration.

    Nothing is looked at beforehand. The foreign key of `heads` decides: it holds against a put that runs at this
    moment, which a look could not see.
    """
    try:
        gone = await audit.run(
            pool,
            "delete from bucket_metainfos b using projects p where p.id = b.project_id and p.public_id = %s and b.name = %s",
            [project, bucket],
        )
    except pg.ForeignKeyViolation:
        message = "The bucket you tried to delete is not empty."
        raise CallerError("BucketNotEmpty", message, BucketName=bucket) from None
    if gone.rowcount == 0:
        raise no_such_bucket(bucket)
