"""The operations on objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import formatdate

from tidings.access import checksums
from tidings.api import conditions
from tidings.api.parts import Parts
from tidings.api.request import Request
from tidings.api.response import Response
from tidings.errors import CallerError
from tidings.store import blobs, buckets, objects
from tidings.store.objects import Content, Head

MAX_SIZE = 5 * 1024**3
"""What S3 takes in a single PUT."""
MAX_USER_METADATA = 2048
DEFAULT_TYPE = "binary/octet-stream"

_META = "x-amz-meta-"
_STORED_HEADERS = frozenset({"cache-control", "content-disposition", "content-encoding", "content-language", "expires"})
_OVERRIDES = {f"response-{name}": name for name in (*_STORED_HEADERS, "content-type")}
OVERRIDES = frozenset(_OVERRIDES)
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_READS = 3


async def put_object(parts: Parts, request: Request) -> Response:
    decoder = request.decoder()
    size = _declared_size(request.headers)
    metadata = _metadata(request)
    if size > blobs.INLINE:  # worth a look, before gigabytes are taken in for nothing
        await buckets.check_exists(parts.pool, request.project, request.bucket)
    kept = await parts.blobs.keep(request.pieces(decoder))
    content = Content(
        decoder.length,
        decoder.md5_hex,
        request.headers.get("content-type") or DEFAULT_TYPE,
        {**metadata, **decoder.checksums},
        kept.body,
        kept.blob,
    )
    try:
        replaced = await objects.put(parts.pool, request.project, request.bucket, request.key, content, request.origin)
    except CallerError:
        # The database has said no, so nothing refers to the blob. After any other error it may have committed all the
        # same: the blob stays, at worst as an orphan.
        parts.blobs.discard(kept.blob)
        raise
    parts.blobs.discard(replaced)
    return Response(200, {"etag": f'"{content.etag}"', **_checksum_headers(decoder.checksums)})


def _declared_size(headers: Mapping[str, str]) -> int:
    declared = headers.get("x-amz-decoded-content-length", headers.get("content-length"))
    if declared is None:
        raise CallerError("MissingContentLength", "You must provide the Content-Length HTTP header.")
    if int(declared) > MAX_SIZE:  # a number: the decoder has seen to it
        message = f"An object can have {MAX_SIZE} bytes in one request."
        raise CallerError("EntityTooLarge", message, ProposedSize=declared, MaxSizeAllowed=str(MAX_SIZE))
    return int(declared)


def _metadata(request: Request) -> dict[str, str]:
    """The headers to give back with the object, from the bytes that came: signing collapses their inner spaces."""
    found: dict[str, str] = {}
    for raw_name, raw_value in request.raw_headers:
        name = raw_name.decode("latin-1").lower()
        if name.startswith(_META) or name in _STORED_HEADERS:
            value = raw_value.decode("latin-1").strip(" \t")
            found[name] = f"{found[name]},{value}" if name in found else value
    user = sum(len(name) - len(_META) + len(value) for name, value in found.items() if name.startswith(_META))
    if user > MAX_USER_METADATA:
        message = f"Your metadata headers exceed the maximum allowed metadata size, {MAX_USER_METADATA} bytes."
        raise CallerError("MetadataTooLarge", message, Size=str(user), MaxSizeAllowed=str(MAX_USER_METADATA))
    encodings = [word.strip() for word in found.pop("content-encoding", "").split(",")]
    if kept := ", ".join(word for word in encodings if word and word.lower() != "aws-chunked"):
        found["content-encoding"] = kept  # aws-chunked was the way here, not a property of the object
    return found


def _checksum_headers(metadata: Mapping[str, str]) -> dict[str, str]:
    found = {name: value for name, value in metadata.items() if name.startswith(checksums.PREFIX)}
    return {**found, "x-amz-checksum-type": "FULL_OBJECT"} if found else {}


async def get_object(parts: Parts, request: Request) -> Response:
    for _ in range(_READS):
        head = await objects.get(parts.pool, request.project, request.bucket, request.key)
        response, start, end = _described(request, head)
        if response.status == 304:
            return response
        if head.body is not None:
            response.body = head.body[start:end]
            return response
        assert head.blob is not None
        try:
            response.body = await parts.blobs.read(head.blob, start, end)
            return response
        except FileNotFoundError:
            continue  # replaced and removed since the row was read: read the row again
    raise RuntimeError(f"blob {head.blob} is missing although its row is there")


async def head_object(parts: Parts, request: Request) -> Response:
    head = await objects.get(parts.pool, request.project, request.bucket, request.key, body=False)
    response, _, _ = _described(request, head)
    return response


def _described(request: Request, head: Head) -> tuple[Response, int, int]:
    """Everything about the answer but its body, and which bytes that is to have."""
    headers = {
        "etag": f'"{head.etag}"',
        "last-modified": formatdate(head.modified_at.timestamp(), usegmt=True),
        "accept-ranges": "bytes",
    }
    if conditions.unmodified(request.headers, head):
        return Response(304, headers), 0, 0
    headers["content-type"] = head.content_type
    headers |= {name: value for name, value in head.metadata.items() if not name.startswith(checksums.PREFIX)}
    headers |= _overridden(request.target.query)
    wanted = conditions.byte_range(request.headers, head.size)
    start, end = wanted or (0, head.size)
    headers["content-length"] = str(end - start)
    if wanted is not None:
        headers["content-range"] = f"bytes {start}-{end - 1}/{head.size}"
    elif request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
        headers |= _checksum_headers(head.metadata)  # of the whole object: with a part of it, it would not fit
    return Response(200 if wanted is None else 206, headers), start, end


def _overridden(query: Mapping[str, str]) -> dict[str, str]:
    found = {_OVERRIDES[name]: value for name, value in query.items() if name in _OVERRIDES}
    for name, value in found.items():
        if not _HEADER_VALUE.fullmatch(value):
            message = f"response-{name} is {value[:100]!r}, which a header cannot have."
            raise CallerError("InvalidArgument", message, ArgumentName=f"response-{name}")
    return found


async def delete_object(parts: Parts, request: Request) -> Response:
    parts.blobs.discard(await objects.delete(parts.pool, request.project, request.bucket, request.key, request.origin))
    return Response(204)
