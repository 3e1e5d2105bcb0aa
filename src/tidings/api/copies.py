"""CopyObject, UploadPartCopy and RenameObject: a write whose bytes are here already."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import parse_qs, quote, unquote_to_bytes

from tidings.access import checksums, permissions
from tidings.api import headers, xml
from tidings.api.buckets import XML, iso
from tidings.api.objects import MAX_SIZE, discard, discarding, kept_content, read_segments
from tidings.api.parts import Parts
from tidings.api.request import Request
from tidings.api.response import Response
from tidings.errors import CallerError
from tidings.store import moves, names, objects
from tidings.store.blobs import Kept
from tidings.store.model import Condition, Place, Version

SOURCE = "x-amz-copy-source"
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")
_READS = 3


class Copied:
    """The bytes of a copy on their way: counted, and digested as those of an upload are."""

    def __init__(self, algorithm: str | None) -> None:
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._algorithm = None if algorithm is None else checksums.BY_HEADER.get(checksums.PREFIX + algorithm.lower())
        if algorithm is not None and self._algorithm is None:
            raise CallerError("InvalidRequest", f"No checksum here is called {algorithm[:100]!r}.")
        self._running = self._algorithm.start() if self._algorithm else None
        self.size = 0

    async def through(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            data = bytes(piece)
            self.size += len(data)
            self._md5.update(data)
            if self._running is not None:
                self._running.update(data)
            yield data

    @property
    def etag(self) -> str:
        return self._md5.hexdigest()

    @property
    def checksums(self) -> dict[str, str]:
        if self._algorithm is None or self._running is None:
            return {}
        return {self._algorithm.header: base64.b64encode(self._running.digest()).decode()}


def source(request: Request) -> tuple[Place, str | None]:
    """The place and the version that x-amz-copy-source names: [/]BUCKET/KEY[?versionId=ID], percent-encoded."""
    path, _, query = request.headers[SOURCE].partition("?")
    bucket, _, key = unquote_to_bytes(path).removeprefix(b"/").partition(b"/")  # some clients encode this slash too
    found = parse_qs(query, keep_blank_values=True)
    if not bucket or not key or found.keys() - {"versionId"}:
        message = "Copy Source must mention the source bucket and key: sourcebucket/sourcekey"
        raise CallerError("InvalidArgument", message, ArgumentName=SOURCE)
    name = names.bucket_name(bucket.decode("latin-1"))
    place = Place(request.project, name, names.object_key(key))
    request.require(permissions.READ, place.bucket, place.key)
    return place, headers.version_id(found.get("versionId", [None])[0])


async def _opened(
    parts: Parts, place: Place, version_id: str | None, given: Mapping[str, str], wanted: tuple[int, int] | None = None
) -> tuple[Version, AsyncIterator[bytes]]:
    for _ in range(_READS):
        version = await objects.get(parts.pool, place, version_id)
        if version.delete_marker and version_id is None:
            raise objects.no_such_key(place.key)
        if version.delete_marker:
            raise CallerError("InvalidRequest", "The source of a copy request may not specifically refer to a delete marker.")
        _check_source(given, version)
        start, end = wanted or (0, version.size)
        if end > version.size:
            message = f"The range is not within the source, which has {version.size} bytes."
            raise CallerError("InvalidArgument", message, ArgumentName=f"{SOURCE}-range")
        if version.body is not None:
            return version, _whole(version.body[start:end])
        try:
            return version, await read_segments(parts.blobs, version.segments, start, end)
        except FileNotFoundError:
            continue  # replaced and removed since the row was read
    raise RuntimeError(f"a blob of {version.segments} is missing although its row is there")


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _check_source(given: Mapping[str, str], version: Version) -> None:
    match, none_match = given.get(f"{SOURCE}-if-match"), given.get(f"{SOURCE}-if-none-match")
    changed, unchanged = given.get(f"{SOURCE}-if-modified-since"), given.get(f"{SOURCE}-if-unmodified-since")
    modified_at = version.modified_at.replace(microsecond=0)
    try:
        holds = (
            (match is None or version.etag in headers.etags(match) or match == "*")
            and (none_match is None or version.etag not in headers.etags(none_match))
            and (changed is None or modified_at > parsedate_to_datetime(changed))
            and (unchanged is None or match is not None or modified_at <= parsedate_to_datetime(unchanged))
        )
    except (ValueError, TypeError):
        raise CallerError("InvalidArgument", "A date in the conditions on the copy's source cannot be read.") from None
    if not holds:
        raise objects.precondition_failed()


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        message = f"The specified copy source is larger than the maximum allowable size for a copy source: {MAX_SIZE}"
        raise CallerError("InvalidRequest", message)


def _directive(request: Request, name: str) -> bool:
    """Whether a directive says REPLACE rather than COPY."""
    value = request.headers.get(name, "COPY")
    if value not in ("COPY", "REPLACE"):
        raise CallerError("InvalidArgument", f"Unknown {name} {value[:100]!r}: send COPY or REPLACE.", ArgumentName=name)
    return value == "REPLACE"


async def copy_object(parts: Parts, request: Request) -> Response:
    place, version_id = source(request)
    replace, retag = _directive(request, "x-amz-metadata-directive"), _directive(request, "x-amz-tagging-directive")
    if place == request.place and version_id is None and not replace and not retag:
        message = "This copy request is illegal because it is trying to copy an object to itself without changing the object's"
        raise CallerError(
            "InvalidRequest", f"{message} metadata, storage class, website redirect location or encryption attributes."
        )
    condition = headers.write_condition(request.headers)
    version, pieces = await _opened(parts, place, version_id, request.headers)
    _check_size(version.size)
    own = headers.metadata(request.raw_headers) if replace else _without_checksums(version.metadata)
    tags = headers.tags(request.headers) if retag else version.tags
    copied = Copied(request.headers.get("x-amz-checksum-algorithm"))
    kept = await parts.blobs.keep(copied.through(pieces))
    # The bytes are the same, so a checksum over all of them still holds.
    sums = copied.checksums or {k: v for k, v in version.metadata.items() if k.startswith(checksums.PREFIX) and "-" not in v}
    content_type = request.headers.get("content-type", "") if replace else version.content_type
    content = kept_content(kept, copied.size, copied.etag, content_type, {**own, **sums}, tags)
    named = f"{place.bucket}/{quote(place.key, safe='/')}" + (f"?versionId={version_id}" if version_id else "")
    async with discarding(parts.blobs, kept):
        done = await objects.finish_copy_object(
            parts.pool, request.place, content, await parts.origin(request), named, condition
        )
    discard(parts.blobs, done)
    assert done.modified_at is not None
    nodes: list[xml.Node] = [("LastModified", iso(done.modified_at)), ("ETag", f'"{content.etag}"'), *_sum_nodes(sums)]
    answer = {**XML, **headers.version_header(done.version_id)}
    if version.shown_id is not None:
        answer["x-amz-copy-source-version-id"] = version.shown_id
    return Response(200, answer, xml.document("CopyObjectResult", nodes))


def _without_checksums(metadata: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in metadata.items() if not name.startswith(checksums.PREFIX)}


def _sum_nodes(sums: Mapping[str, str]) -> list[xml.Node]:
    return [(f"Checksum{checksums.BY_HEADER[name].name}", value) for name, value in sums.items()]


async def copied_part(parts: Parts, request: Request, algorithm: str | None) -> tuple[Copied, Kept, Version]:
    """The bytes for UploadPartCopy, kept in a blob."""
    place, version_id = source(request)
    wanted = None
    if (value := request.headers.get(f"{SOURCE}-range")) is not None:
        match = _RANGE.fullmatch(value)
        if match is None or int(match[2]) < int(match[1]):
            message = "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the"
            raise CallerError("InvalidArgument", f"{message} zero-based offsets of the first and last bytes to copy")
        wanted = (int(match[1]), int(match[2]) + 1)
    version, pieces = await _opened(parts, place, version_id, request.headers, wanted)
    _check_size(wanted[1] - wanted[0] if wanted else version.size)
    copied = Copied(algorithm)
    kept = await parts.blobs.keep(copied.through(pieces), inline=-1)
    return copied, kept, version


async def rename_object(parts: Parts, request: Request) -> Response:
    """The move. `x-amz-rename-source` is a key of the same bucket, or /BUCKET/KEY."""
    value = request.headers.get("x-amz-rename-source", "")
    bucket, key = request.bucket, value
    if value.startswith("/"):
        bucket, _, key = value[1:].partition("/")
        names.bucket_name(bucket)
    if not key:
        message = "x-amz-rename-source names no key: send KEY for the same bucket, or /BUCKET/KEY."
        raise CallerError("InvalidArgument", message, ArgumentName="x-amz-rename-source")
    place = Place(request.project, bucket, names.object_key(unquote_to_bytes(key)))
    request.require(permissions.READ, place.bucket, place.key)
    request.require(permissions.DELETE, place.bucket, place.key)
    match = request.headers.get("x-amz-rename-source-if-match")
    source_condition = Condition(etags=headers.etags(match)) if match else Condition()
    condition = headers.write_condition(request.headers)
    done = await moves.finish_move_object(
        parts.pool, place, request.place, await parts.origin(request), condition, source_condition
    )
    discard(parts.blobs, done)
    return Response(200, headers.version_header(done.version_id))
