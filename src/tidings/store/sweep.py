"""Removing what crashed requests left behind: blobs without a row, and multipart uploads that nobody goes on with.

A live blob is never removed. It gets its row soon after its last byte was written, and long before it is SWEEP_AGE old: the
database itself refuses a later commit (`commit_before`). Only blobs that are older are looked at, and one statement sees
every row that refers to one: in a move or a completed upload the reference goes from row to row in one transaction.

Files that are not ours are left alone, whatever they are. And the blobs of another database are: the place remembers whose
it is, so a copy of a database, or one that was restored from a backup, does not remove what only the other one knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg

from tidings.db.pool import Pool, run
from tidings.db.timeline import TOKEN
from tidings.errors import OperatorError
from tidings.store import uploads
from tidings.store.blobs import SWEEP_AGE, Blobs
from tidings.store.settings import StoreSettings

log = logging.getLogger(__name__)

_ORPHANS = """
select given.name from unnest(%s::text[]) given (name)
where not exists (
    select from (
        select segment ->> 0 as name from heads, jsonb_array_elements(segments) segment where segments is not null
        union all
        select segment ->> 0 from versions, jsonb_array_elements(segments) segment where segments is not null
        union all
        select segment from parts
    ) used where used.name = given.name
)
"""
"""Not `not in`: that would not be hashed, and would go through all rows for each name."""


_LOCK = 0x7377656570  # "sweep" in ASCII
_FIRST_SECONDS = 600.0
"""Until the first sweep: also a server that is often started again gets to it."""


async def sweep_regularly(pool: Pool, blobs: Blobs, settings: StoreSettings) -> None:
    """For ever: one process at a time, however many there are. What fails is logged and tried again the next time."""
    every = settings.sweep_hours * 3600
    wait = min(every, _FIRST_SECONDS)
    while every:
        try:
            await claim(pool, blobs)  # at the start already: who comes later finds the place taken
            await asyncio.sleep(wait)
            wait = every
            async with pool.connection() as connection:
                row = await (await connection.execute("select pg_try_advisory_lock(%s)", [_LOCK])).fetchone()
                if not (row and row[0]):
                    continue
                try:
                    done = await sweep(pool, blobs, timedelta(days=settings.upload_days))
                finally:
                    await connection.execute("select pg_advisory_unlock(%s)", [_LOCK])
            log.info("swept: %s", done)
        except OperatorError as error:
            log.warning("no sweep for unused blobs: %s", error)
            await asyncio.sleep(every)
        except psycopg.OperationalError as error:
            log.warning("no sweep for unused blobs yet, the database does not answer: %s", error)
            await asyncio.sleep(min(every, _FIRST_SECONDS))
        except Exception:
            log.warning("the sweep for unused blobs failed; the next one is in %g h", settings.sweep_hours, exc_info=True)
            await asyncio.sleep(every)


async def claim(pool: Pool, blobs: Blobs, adopt: bool = False) -> None:
    """Make sure that the place of the blobs belongs to this database and no other."""
    row = await (
        await run(pool, f"select {TOKEN} || '/' || oid from pg_database where datname = current_database()", [])
    ).fetchone()
    assert row is not None
    owner = await blobs.owner(row[0], adopt)
    if owner != row[0]:
        raise OperatorError(
            f"The blobs belong to another database, {owner}, and this one is {row[0]}. If this one has taken its place (after a"
            " failover or a restore) and knows every object that should live, say so once: tidings sweep --adopt."
        )


@dataclass(slots=True)
class Swept:
    """What a sweep found and did."""

    seen: int = 0
    removed: int = 0
    expired_parts: int = 0


async def sweep(
    pool: Pool,
    blobs: Blobs,
    upload_age: timedelta,
    age: timedelta = SWEEP_AGE,
    progress: Callable[[Swept], None] = lambda _: None,
) -> Swept:
    """End old uploads, then remove every blob that is older than `age` and that no row refers to. `claim` first."""
    done = Swept()
    now = datetime.now(UTC)
    ended = 1
    while ended:
        ended, expired = await uploads.expire(pool, now - upload_age)
        for name in expired:
            await blobs.remove(name)
        done.expired_parts += len(expired)
    done.removed += await asyncio.to_thread(blobs.remove_half_written, now - age)
    async for batch in blobs.older_than(now - age):
        done.seen += len(batch)
        for (name,) in await (await run(pool, _ORPHANS, [batch])).fetchall():
            await blobs.remove(name)
            done.removed += 1
        progress(done)
    return done
