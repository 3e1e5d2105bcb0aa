"""Multipart uploads: parts arrive in any order and any number of times; completing makes them one object, once.

The upload's row is the lock: a part shares it, completing and aborting take it alone. So a part that was counted in is
never replaced, and one that comes too late finds no upload.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, LiteralString, NamedTuple

from psycopg import errors as pg

from tidings.access import checksums
from tidings.db.pool import Pool, run, transaction
from tidings.errors import CallerError, no_such_bucket
from tidings.events import names
from tidings.store import statements
from tidings.store.buckets import deleted_meanwhile
from tidings.store.model import Condition, Content, Done, Origin, Place, Segment
from tidings.store.objects import ANYTHING, commit_under_lock, newest
from tidings.store.transmitting import transmitting

MIN_PART = 5 * 1024 * 1024
MAX_PARTS = 10_000
MAX_OBJECT = 5 * 1024**4


class Upload(NamedTuple):
    """A multipart upload under way."""

    id: str
    key: str
    content_type: str
    metadata: dict[str, str]
    tags: dict[str, str]
    algorithm: str | None
    whole: bool
    created_at: datetime


class Part(NamedTuple):
    number: int
    size: int
    etag: str
    checksum: str | None
    modified_at: datetime
    blob: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A part as the request to complete names it."""

    number: int
    etag: str
    checksum: str | None = None


def no_such_upload(upload_id: str) -> CallerError:
    return CallerError(
        "NoSuchUpload",
        "The specified multipart upload does not exist. It may have been completed or aborted, or may have expired.",
        UploadId=upload_id[:200],
    )


_WHERE: LiteralString = """
    from uploads u join bucket_metainfos b on b.id = u.bucket_id join projects p on p.id = b.project_id
    where u.id = %(upload_id)s and u.key = %(key)s and p.public_id = %(project)s and b.name = %(bucket)s
"""
_UPLOAD: LiteralString = "u.id, u.key, u.content_type, u.metadata, u.tags, u.algorithm, u.whole, u.created_at"
_PART: LiteralString = "number, size, etag, checksum, modified_at, segment"


def _where(place: Place, upload_id: str) -> dict[str, Any]:
    return {"project": place.project, "bucket": place.bucket, "key": place.key, "upload_id": upload_id}


async def create(pool: Pool, place: Place, content: Content, algorithm: str | None, whole: bool) -> str:
    """Begin an upload whose object will have the content's type, metadata and tags. Returns its id."""
    upload_id = f"{time.time_ns() // 1_000_000:012x}{secrets.token_urlsafe(40)}"  # in a list the older come first
    with deleted_meanwhile(place.bucket):
        made = await run(
            pool,
            "insert into uploads (id, bucket_id, key, content_type, metadata, tags, algorithm, whole)"
            " select %(upload_id)s, b.id, %(key)s, %(content_type)s, %(metadata)s::jsonb, %(tags)s::jsonb, %(algorithm)s,"
            " %(whole)s from bucket_metainfos b join projects p on p.id = b.project_id"
            " where p.public_id = %(project)s and b.name = %(bucket)s",
            _where(place, upload_id) | statements.content(content) | {"algorithm": algorithm, "whole": whole},
        )
    if made.rowcount == 0:
        raise no_such_bucket(place.bucket)
    return upload_id


async def find(pool: Pool, place: Place, upload_id: str) -> Upload:
    row = await (await run(pool, f"select {_UPLOAD} {_WHERE}", _where(place, upload_id))).fetchone()
    if row is None:
        raise no_such_upload(upload_id)
    return Upload(*row)


_PUT_PART: LiteralString = f"""
with u as (select u.id {_WHERE} for share of u),
p as (
    insert into parts (upload_id, number, size, etag, checksum, segment)
    select id, %(number)s, %(size)s, %(etag)s, %(checksum)s, %(blob)s from u where clock_timestamp() < %(commit_before)s
    on conflict (upload_id, number) do update
    set size = excluded.size, etag = excluded.etag, checksum = excluded.checksum, segment = excluded.segment,
        modified_at = clock_timestamp()
    returning old.segment as replaced, new.modified_at
)
select p.replaced, p.modified_at from u left join p on true
"""


async def put_part(pool: Pool, place: Place, upload_id: str, wanted: Wanted, blob: Segment, commit_before: datetime) -> Done:
    """Add a part, in the place of an earlier one with its number."""
    parameters = _where(place, upload_id) | {
        "number": wanted.number,
        "size": blob.size,
        "etag": wanted.etag,
        "checksum": wanted.checksum,
        "blob": blob.name,
        "commit_before": commit_before,
    }
    try:
        row = await (await run(pool, _PUT_PART, parameters)).fetchone()
    except pg.ForeignKeyViolation:
        row = None
    if row is None:
        raise no_such_upload(upload_id)
    if row[1] is None:
        raise CallerError("RequestTimeout", "The part took too long to be committed after its bytes had come: send it again.")
    return Done(modified_at=row[1], unused=[row[0]] if row[0] else [])


async def list_parts(pool: Pool, place: Place, upload_id: str, after: int, most: int) -> tuple[Upload, list[Part]]:
    upload = await find(pool, place, upload_id)
    found = await run(
        pool,
        f"select {_PART} from parts where upload_id = %s and number > %s order by number limit %s",
        [upload_id, after, most],
    )
    return upload, [Part(*row) for row in await found.fetchall()]


async def list_uploads(pool: Pool, project: str, bucket: str, prefix: str, after: tuple[str, str], most: int) -> list[Upload]:
    """By key and time of creation, behind a key and an upload of it."""
    found = await run(
        pool,
        f"select {_UPLOAD} from bucket_metainfos b join projects p on p.id = b.project_id left join lateral ("
        "   select * from uploads where bucket_id = b.id and starts_with(key, %(prefix)s)"
        "   and (key, id) > (%(key)s, %(id)s) order by key, id limit %(most)s) u on true"
        " where p.public_id = %(project)s and b.name = %(bucket)s order by u.key, u.id",
        {"project": project, "bucket": bucket, "prefix": prefix, "key": after[0], "id": after[1], "most": most},
    )
    rows = await found.fetchall()
    if not rows:
        raise no_such_bucket(bucket)
    return [Upload(*row) for row in rows if row[0] is not None]


async def abort(pool: Pool, place: Place, upload_id: str) -> Done:
    """End an upload without an object; returns the blobs of its parts."""
    async with transaction(pool) as connection:
        await _locked(connection, place, upload_id)
        parts = await _parts(connection, upload_id)
        await connection.execute("delete from uploads where id = %s", [upload_id])
    return Done(unused=[part.blob for part in parts])


async def _locked(connection: Any, place: Place, upload_id: str) -> Upload:
    row = await (await connection.execute(f"select {_UPLOAD} {_WHERE} for update of u", _where(place, upload_id))).fetchone()
    if row is None:
        raise no_such_upload(upload_id)
    return Upload(*row)


async def _parts(connection: Any, upload_id: str) -> list[Part]:
    rows = await connection.execute(f"select {_PART} from parts where upload_id = %s order by number", [upload_id])
    return [Part(*row) for row in await rows.fetchall()]


@dataclass(frozen=True, slots=True)
class Promise:
    """What the caller says about the whole object: checksums by their header, its size, the type of its checksum."""

    checksums: Mapping[str, str] = field(default_factory=dict)
    size: str | None = None
    kind: str | None = None

    def check(self, size: int, found: Mapping[str, str], whole: bool) -> None:
        if self.size is not None and self.size != str(size):
            message = (
                f"The provided 'x-amz-mp-object-size' header value {self.size[:100]} does not match what was computed: {size}"
            )
            raise CallerError("InvalidRequest", message)
        if self.kind is not None and self.kind != ("FULL_OBJECT" if whole else "COMPOSITE"):
            message = f"The upload was created with another checksum type than {self.kind[:100]}."
            raise CallerError("InvalidRequest", message)
        for name, value in self.checksums.items():
            if name not in found:
                raise CallerError("InvalidRequest", f"The upload was not created with the checksum algorithm of {name}.")
            if value != found[name]:
                raise CallerError("BadDigest", f"The {name} you specified did not match the calculated checksum.")


NOTHING = Promise()


@dataclass(frozen=True, slots=True)
class Completed:
    done: Done
    etag: str
    checksums: dict[str, str]

    @property
    def rules(self) -> tuple[str, ...]:
        return self.done.rules


@transmitting
async def complete(
    pool: Pool,
    place: Place,
    upload_id: str,
    wanted: Sequence[Wanted],
    origin: Origin,
    condition: Condition = ANYTHING,
    promise: Promise = NOTHING,
) -> Completed:
    """Make the wanted parts one object, in one transaction with its change; the upload is gone then.

    Asked again, because the answer was lost, this finds no upload, but an object of exactly these parts: that is the answer.
    """
    etag = hashlib.md5(b"".join([bytes.fromhex(part.etag) for part in wanted]), usedforsecurity=False).hexdigest()
    etag = f"{etag}-{len(wanted)}"
    try:
        return await _complete(pool, place, upload_id, wanted, etag, origin, condition, promise)
    except CallerError as error:
        version = await newest(pool, place) if error.code == "NoSuchUpload" else None
        if version is None or version.etag != etag:
            raise
        sums = {name: value for name, value in version.metadata.items() if name.startswith(checksums.PREFIX)}
        return Completed(Done(version.shown_id, modified_at=version.modified_at), etag, sums)


async def _complete(
    pool: Pool,
    place: Place,
    upload_id: str,
    wanted: Sequence[Wanted],
    etag: str,
    origin: Origin,
    condition: Condition,
    promise: Promise,
) -> Completed:
    async with transaction(pool) as connection:
        upload = await _locked(connection, place, upload_id)
        parts = await _parts(connection, upload_id)
        chosen = _chosen(wanted, {part.number: part for part in parts})
        size = sum(part.size for part in chosen)
        found = checksums.of_parts(upload.algorithm, upload.whole, [(part.checksum, part.size) for part in chosen])
        promise.check(size, found, upload.whole)
        content = Content(
            size,
            etag,
            upload.content_type,
            {**upload.metadata, **found},
            segments=[Segment(part.blob, part.size) for part in chosen],
            tags=upload.tags,
        )
        parameters = statements.parameters(place, names.MULTIPART, "commit with segments", origin) | statements.content(content)
        done = await commit_under_lock(connection, parameters, condition)
        await connection.execute("delete from uploads where id = %s", [upload_id])
    kept = {part.number for part in chosen}
    unused = [*done.unused, *(part.blob for part in parts if part.number not in kept)]
    return Completed(replace(done, unused=unused), etag, found)


def _chosen(wanted: Sequence[Wanted], parts: dict[int, Part]) -> list[Part]:
    chosen: list[Part] = []
    for each in wanted:
        part = parts.get(each.number)
        if chosen and each.number <= chosen[-1].number:
            raise CallerError(
                "InvalidPartOrder",
                f"The list of parts was not in ascending order: part {each.number} comes after part {chosen[-1].number}.",
            )
        if part is None or part.etag != each.etag or _differ(each.checksum, part.checksum):
            message = "One or more of the specified parts could not be found. The part may not have been uploaded, or its"
            raise CallerError("InvalidPart", f"{message} entity tag or checksum is another.", PartNumber=str(each.number))
        chosen.append(part)
    for part in chosen[:-1]:
        if part.size < MIN_PART:
            raise CallerError(
                "EntityTooSmall",
                "Your proposed upload is smaller than the minimum allowed size: only the last part may be.",
                PartNumber=str(part.number),
                ProposedSize=str(part.size),
                MinSizeAllowed=str(MIN_PART),
            )
    if sum(part.size for part in chosen) > MAX_OBJECT:
        raise CallerError("EntityTooLarge", f"An object has {MAX_OBJECT} bytes at most.", MaxSizeAllowed=str(MAX_OBJECT))
    return chosen


def _differ(given: str | None, known: str | None) -> bool:
    """A checksum counts where both sides have it: an upload without an algorithm keeps none of its parts' checksums."""
    return given is not None and known is not None and given != known


async def expire(pool: Pool, older_than: datetime, most: int = 1000) -> tuple[int, list[str]]:
    """End uploads that were begun before then, so many at most; returns how many, and the blobs of their parts."""
    rows = await run(
        pool,
        "with u as (select id from uploads where created_at < %(then)s order by created_at limit %(most)s"
        " for update skip locked),"
        " p as (select segment from parts where upload_id in (select id from u)),"
        " d as (delete from uploads where id in (select id from u) returning id)"
        " select (select count(*) from d), array(select segment from p)",
        {"then": older_than, "most": most},
    )
    ended: int
    blobs: list[str]
    ended, blobs = await rows.fetchone() or (0, [])
    return ended, blobs
