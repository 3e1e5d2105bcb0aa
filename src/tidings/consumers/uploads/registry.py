"""The registry itself: one merge, and the lock that keeps recording and removing apart.

Whoever records an upload asks the store about the object and writes the row; whoever removes one deletes the object and the
row. Both hold the lock of the object's key from the first to the last, so each pair happens as a whole: a consumer that saw
an object before it was removed has written its row before that, and the row goes too; one that looks later sees nothing, or a
newer upload. The lock ends with the transaction, also with that of a process which was killed.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, LiteralString

from psycopg import AsyncConnection, Connection

from tidings.consumers.staging import stage
from tidings.consumers.uploads.labels import Upload, key_of

# In the order of the locks themselves: two who want several never wait for each other in a circle. Any constant will do.
_LOCK: LiteralString = """
select pg_advisory_xact_lock(wanted.lock)
from (
    select distinct hashtextextended(%(bucket)s::text || '/' || k, 8011) as lock from unnest(%(keys)s::text[]) k order by 1
) wanted
"""

# Sorted, for the same reason. A time never goes back, whichever consumer commits first.
_MERGE: LiteralString = """
insert into upload_registry as r (organisation, name, created_at)
select distinct s.organisation, s.name, statement_timestamp()
from pg_temp.staged_uploads s
order by s.organisation, s.name
on conflict (organisation, name) do update set created_at = greatest(r.created_at, excluded.created_at)
"""

# Whoever holds a lock waits for the store meanwhile: for two answers, and the time to connect (places.py).
_PATIENCE: LiteralString = "set local lock_timeout = '40s'"

_COLUMNS: dict[str, LiteralString] = {"organisation": 'text collate "C"', "name": 'text collate "C"'}


def hold(connection: Connection[Any], bucket: str, keys: Collection[str]) -> None:
    """Hold the locks of these objects until the transaction ends; raise if somebody else does not let go."""
    connection.execute(_PATIENCE)
    connection.execute(_LOCK, {"bucket": bucket, "keys": list(keys)})


async def hold_one(connection: AsyncConnection[Any], bucket: str, upload: Upload) -> None:
    """The same, for one who removes."""
    await connection.execute(_PATIENCE)
    await connection.execute(_LOCK, {"bucket": bucket, "keys": [key_of(upload)]})


def merge(connection: Connection[Any], uploads: Collection[Upload]) -> None:
    """Record them, one or a million: a name that is there gets a new time, and nothing is there twice."""
    if uploads:
        stage(connection, "staged_uploads", _COLUMNS, uploads)
        connection.execute(_MERGE)


def strike(connection: Connection[Any], keys: Collection[str]) -> int:
    """Forget the uploads that belong to these keys, whose locks are held; returns how many there were."""
    return connection.execute(
        "delete from upload_registry where organisation || '/' || name = any(%s::text[])", [list(keys)]
    ).rowcount


async def forget(connection: AsyncConnection[Any], upload: Upload) -> None:
    await connection.execute("delete from upload_registry where (organisation, name) = (%s, %s)", upload)


async def listed(connection: AsyncConnection[Any], organisation: str, after: str, most: int) -> list[tuple[str, datetime]]:
    """The names of an organisation's uploads after this one, in order, with their times."""
    cursor = await connection.execute(
        "select name, created_at from upload_registry where organisation = %s and name > %s order by name limit %s",
        [organisation, after, most],
    )
    return [(row[0], row[1]) for row in await cursor.fetchall()]
