"""PutObject, GetObject, HeadObject, DeleteObject and DeleteObjects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate

from tidings.access import checksums, permissions
from tidings.access.payload import Payload
from tidings.api import conditions, headers, numbers, xml
from tidings.api.buckets import XML
from tidings.api.parts import Parts
from tidings.api.request import Request
from tidings.api.response import Response
from tidings.errors import CallerError
from tidings.events import names as events
from tidings.store import blobs, buckets, deletes, names, objects, uploads
from tidings.store.blobs import Blobs, Kept
from tidings.store.model import Condition, Content, Done, Segment, Version

MAX_SIZE = 5 * 1024**3
"""What S3 takes in a single PUT."""
MAX_DELETED = 1000
_READS = 3
_READ_SECONDS = 600.0
"""How long a slow reader of an object in several blobs can go on after the object was replaced."""


async def put_object(parts: Parts, request: Request) -> Response:
    decoder = request.decoder()
    size = declared_size(request.headers)
    metadata, tags = headers.metadata(request.raw_headers), headers.tags(request.headers)
    condition = headers.write_condition(request.headers)
    if size > blobs.INLINE:  # worth a look, before gigabytes are taken in for nothing
        await buckets.check_exists(parts.pool, request.project, request.bucket)
    kept = await parts.blobs.keep(request.pieces(decoder))
    content, done = await commit_kept(parts, request, kept, decoder, metadata, tags, condition)
    answer = {"etag": f'"{content.etag}"', **headers.checksum_headers(decoder.checksums)}
    return Response(200, {**answer, **headers.version_header(done.version_id)})


async def commit_kept(
    parts: Parts,
    request: Request,
    kept: Kept,
    decoder: Payload,
    metadata: Mapping[str, str],
    tags: Mapping[str, str],
    condition: Condition = objects.ANYTHING,
    event: str = events.PUT,
) -> tuple[Content, Done]:
    """Give a body that has been taken in its row."""
    content_type = request.headers.get("content-type", "")
    content = kept_content(kept, decoder.length, decoder.md5_hex, content_type, {**metadata, **decoder.checksums}, tags)
    commit = objects.commit_inline_object if kept.blob is None else objects.commit_object_with_segments
    async with discarding(parts.blobs, kept):
        done = await commit(parts.pool, request.place, content, await parts.origin(request), condition, event)
    discard(parts.blobs, done)
    return content, done


@asynccontextmanager
async def discarding(store: Blobs, kept: Kept) -> AsyncIterator[None]:
    """Around the commit of what was kept. Where the database says no, nothing refers to the blob, and it goes.

    After any other error the database may have committed all the same: the blob stays, at worst as an orphan.
    """
    try:
        yield
    except CallerError:
        store.discard(kept.blob)
        raise


def kept_content(
    kept: Kept, size: int, etag: str, content_type: str, metadata: Mapping[str, str], tags: Mapping[str, str]
) -> Content:
    segments = None if kept.blob is None else [Segment(kept.blob, size)]
    return Content(size, etag, content_type, metadata, kept.body, segments, tags, kept.commit_before)


def discard(store: Blobs, done: Done) -> None:
    """Remove the blobs that an operation set free. Of several a reader may have opened only the first ones by now."""
    for name in done.unused:
        store.discard(name, after=_READ_SECONDS if len(done.unused) > 1 else 0.0)


def declared_size(given: Mapping[str, str]) -> int:
    declared = given.get("x-amz-decoded-content-length", given.get("content-length"))
    if declared is None:
        raise CallerError("MissingContentLength", "You must provide the Content-Length HTTP header.")
    if int(declared) > MAX_SIZE:  # a number: the decoder has seen to it
        message = f"An object can have {MAX_SIZE} bytes in one request."
        raise CallerError("EntityTooLarge", message, ProposedSize=declared, MaxSizeAllowed=str(MAX_SIZE))
    return int(declared)


async def get_object(parts: Parts, request: Request) -> Response:
    for _ in range(_READS):
        version = visible(request, await objects.get(parts.pool, request.place, version_id(request)))
        response, start, end = _described(request, version)
        if response.status == 304:
            return response
        if version.body is not None:
            response.body = version.body[start:end]
            return response
        try:
            response.body = await read_segments(parts.blobs, version.segments, start, end)
            return response
        except FileNotFoundError:
            continue  # replaced and removed since the row was read: read the row again
    raise RuntimeError(f"a blob of {version.segments} is missing although its row is there")


async def head_object(parts: Parts, request: Request) -> Response:
    version = visible(request, await objects.get(parts.pool, request.place, version_id(request), body=False))
    response, _, _ = _described(request, version)
    return response


def version_id(request: Request) -> str | None:
    """The version that the query names."""
    return headers.version_id(request.target.query.get("versionId"))


def visible(request: Request, version: Version) -> Version:
    """The version, unless it is a delete marker: that is no object, and says so."""
    if not version.delete_marker:
        return version
    shown = {"x_amz_delete_marker": "true", "x_amz_version_id": version.version_id}
    if version_id(request) is None:
        raise objects.no_such_key(request.key).with_headers(**shown)
    modified = formatdate(version.modified_at.timestamp(), usegmt=True)
    message = "The specified method is not allowed against this resource."
    raise CallerError("MethodNotAllowed", message, Method="GET", ResourceType="DeleteMarker").with_headers(
        **shown, last_modified=modified
    )


async def read_segments(store: Blobs, segments: Sequence[Segment], start: int, end: int) -> AsyncIterator[bytes]:
    """The bytes from `start` up to, not including, `end`. A missing first blob raises FileNotFoundError here and now."""
    wanted: list[tuple[str, int, int]] = []
    at = 0
    for name, size in segments:
        first, last = max(start - at, 0), min(end - at, size)
        if first < last:
            wanted.append((name, first, last))
        at += size
    if not wanted:
        return _nothing()
    opened = await store.read(*wanted[0])
    return opened if len(wanted) == 1 else _one_after_another(store, opened, wanted[1:])


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def _one_after_another(
    store: Blobs, opened: AsyncIterator[bytes], rest: Sequence[tuple[str, int, int]]
) -> AsyncIterator[bytes]:
    async for piece in opened:
        yield piece
    for name, start, end in rest:
        async for piece in await store.read(name, start, end):
            yield piece


def _described(request: Request, version: Version) -> tuple[Response, int, int]:
    """Everything about the answer but its body, and which bytes that is to have."""
    answer = {
        "etag": f'"{version.etag}"',
        "last-modified": formatdate(version.modified_at.timestamp(), usegmt=True),
        "accept-ranges": "bytes",
        **headers.version_header(version.shown_id),
    }
    if conditions.unmodified(request.headers, version):
        return Response(304, answer), 0, 0
    answer["content-type"] = version.content_type or headers.DEFAULT_TYPE
    answer |= {name: value for name, value in version.metadata.items() if not name.startswith(checksums.PREFIX)}
    if version.tags:
        answer["x-amz-tagging-count"] = str(len(version.tags))
    answer |= headers.overridden(request.target.query)
    wanted = _part(request, version, answer) or conditions.byte_range(request.headers, version)
    start, end = wanted or (0, version.size)
    answer["content-length"] = str(end - start)
    if wanted is not None:
        answer["content-range"] = f"bytes {start}-{end - 1}/{version.size}"
    elif request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
        answer |= headers.checksum_headers(version.metadata)  # of the whole object: with a part of it, it would not fit
    return Response(200 if wanted is None else 206, answer), start, end


def _part(request: Request, version: Version, answer: dict[str, str]) -> tuple[int, int] | None:
    """The bytes of the part that the query asks for, if it does."""
    if "partNumber" not in request.target.query:
        return None
    if "range" in request.headers:
        raise CallerError("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
    number = numbers.between(request.target.query, "partNumber", 1, uploads.MAX_PARTS, 1)
    sizes = [segment.size for segment in version.segments] or [version.size]
    if number > len(sizes):
        raise CallerError("InvalidPartNumber", "The requested partnumber is not satisfiable", PartNumberRequested=str(number))
    if "-" in version.etag:
        answer["x-amz-mp-parts-count"] = str(len(sizes))
    start = sum(sizes[: number - 1])
    return (start, start + sizes[number - 1]) if version.size else None


async def delete_object(parts: Parts, request: Request) -> Response:
    exact = version_id(request)
    if exact is None:
        done = await deletes.delete_object_last_committed(parts.pool, request.place, await parts.origin(request))
    else:
        done = await deletes.delete_object_exact_version(parts.pool, request.place, exact, await parts.origin(request))
    discard(parts.blobs, done)
    shown = {"x-amz-delete-marker": "true"} if done.delete_marker else {}
    return Response(204, {**shown, **headers.version_header(exact or done.version_id)})


async def delete_objects(parts: Parts, request: Request) -> Response:
    wanted, quiet = _listed(await request.document(MAX_DELETED * 4096))
    for key, _ in wanted:
        request.require(permissions.DELETE, request.bucket, key)
    done = await deletes.delete_objects(parts.pool, request.project, request.bucket, wanted, await parts.origin(request))
    for each in done:
        discard(parts.blobs, each)
    nodes = [] if quiet else [_deleted(key, exact, each) for (key, exact), each in zip(wanted, done, strict=True)]
    return Response(200, XML, xml.document("DeleteResult", nodes))


def _listed(body: bytes) -> tuple[list[tuple[str, str | None]], bool]:
    """The keys and versions that a Delete document names, and whether it wants to hear of errors only."""
    wanted: list[tuple[str, str | None]] = []
    quiet = False
    for child in xml.read(body, "Delete", MAX_DELETED * 4 + 2):
        if xml.local(child) == "Quiet":
            quiet = (child.text or "").strip() == "true"
        elif xml.local(child) == "Object":
            allowed = frozenset({"Key", "VersionId", "ETag", "LastModifiedTime", "Size"})
            found = xml.child_texts(child, allowed)
            if found.keys() & {"ETag", "LastModifiedTime", "Size"}:
                raise CallerError("NotImplemented", "DeleteObjects with conditions is not implemented.")
            if not found.get("Key"):
                raise xml.malformed("an Object has no Key")
            wanted.append((names.object_key(found["Key"].encode()), found.get("VersionId") or None))
        else:
            raise xml.malformed(f"Delete has {xml.local(child)[:100]!r} in it, which it cannot have")
    if not 1 <= len(wanted) <= MAX_DELETED:
        raise xml.malformed(f"it names {len(wanted)} objects, where 1 to {MAX_DELETED} are possible")
    return wanted, quiet


def _deleted(key: str, exact: str | None, done: Done) -> xml.Node:
    children: list[xml.Node] = [("Key", key)]
    if exact is not None:
        children.append(("VersionId", exact))
    if done.delete_marker and done.version_id is not None:
        children += [("DeleteMarker", "true"), ("DeleteMarkerVersionId", done.version_id)]
    return "Deleted", children
