"""Multipart uploads."""

from __future__ import annotations

import re

from tidings.access import checksums
from tidings.api import copies, headers, numbers, xml
from tidings.api.buckets import XML, iso
from tidings.api.listing import MOST, bounded, encoder
from tidings.api.objects import declared_size, discard, discarding
from tidings.api.parts import Parts
from tidings.api.request import Request
from tidings.api.response import Response
from tidings.errors import CallerError
from tidings.store import uploads
from tidings.store.blobs import Kept
from tidings.store.model import Content, Done, Segment
from tidings.store.uploads import Promise, Upload, Wanted

_ETAG = re.compile(r"[0-9a-f]{32}")
_WHOLE_BY_DEFAULT = frozenset({"CRC64NVME"})
_NEVER_WHOLE = frozenset({"SHA1", "SHA256"})
_SUM_NAMES = {f"Checksum{algorithm.name}": algorithm.name for algorithm in checksums.BY_HEADER.values()}


async def create_multipart_upload(parts: Parts, request: Request) -> Response:
    algorithm = request.headers["x-amz-checksum-algorithm"].upper() if "x-amz-checksum-algorithm" in request.headers else None
    if algorithm is not None and checksums.PREFIX + algorithm.lower() not in checksums.BY_HEADER:
        raise CallerError("InvalidRequest", f"Checksum algorithm provided is unsupported: {algorithm[:100]!r}.")
    whole = _is_whole(algorithm, request.headers.get("x-amz-checksum-type"))
    content = Content(
        0,
        "",
        request.headers.get("content-type", ""),
        headers.metadata(request.raw_headers),
        tags=headers.tags(request.headers),
    )
    upload_id = await uploads.create(parts.pool, request.place, content, algorithm, whole)
    shown = {}
    if algorithm is not None:
        shown = {"x-amz-checksum-algorithm": algorithm, "x-amz-checksum-type": "FULL_OBJECT" if whole else "COMPOSITE"}
    nodes: list[xml.Node] = [("Bucket", request.bucket), ("Key", request.key), ("UploadId", upload_id)]
    return Response(200, {**XML, **shown}, xml.document("InitiateMultipartUploadResult", nodes))


def _is_whole(algorithm: str | None, kind: str | None) -> bool:
    """Whether the object's checksum is one over all of it, rather than one over its parts' checksums."""
    if kind is None:
        return algorithm in _WHOLE_BY_DEFAULT
    possible = {"FULL_OBJECT"} if algorithm in _WHOLE_BY_DEFAULT else {"COMPOSITE"}
    if algorithm not in _NEVER_WHOLE:
        possible.add("FULL_OBJECT")
    if algorithm is None or kind not in possible:
        message = f"The {kind[:100]} checksum type cannot be used with the {algorithm} checksum algorithm."
        raise CallerError("InvalidRequest", message)
    return kind == "FULL_OBJECT"


def _number(request: Request) -> int:
    value = request.target.query.get("partNumber", "")
    if not value.isascii() or not value.isdigit() or len(value) > 9 or not 1 <= int(value) <= uploads.MAX_PARTS:
        message = f"Part number must be an integer between 1 and {uploads.MAX_PARTS}, inclusive"
        raise CallerError("InvalidArgument", message, ArgumentName="partNumber", ArgumentValue=value[:100])
    return int(value)


async def upload_part(parts: Parts, request: Request) -> Response:
    number, upload_id = _number(request), request.target.query["uploadId"]
    if copies.SOURCE in request.headers:
        return await _upload_part_copy(parts, request, number, upload_id)
    decoder = request.decoder()
    declared_size(request.headers)
    upload = await uploads.find(parts.pool, request.place, upload_id)
    kept = await parts.blobs.keep(request.pieces(decoder), inline=-1)
    checksum = None if upload.algorithm is None else decoder.checksums.get(checksums.PREFIX + upload.algorithm.lower())
    async with discarding(parts.blobs, kept):
        if decoder.checksums and upload.algorithm is not None and checksum is None:
            sent = next(iter(decoder.checksums))
            message = f"Checksum Type mismatch occurred, expected checksum Type: {upload.algorithm.lower()}, actual: {sent}"
            raise CallerError("InvalidRequest", message)
        await _put_part(parts, request, Wanted(number, decoder.md5_hex, checksum), kept, decoder.length)
    return Response(200, {"etag": f'"{decoder.md5_hex}"', **decoder.checksums})


async def _upload_part_copy(parts: Parts, request: Request, number: int, upload_id: str) -> Response:
    upload = await uploads.find(parts.pool, request.place, upload_id)
    copied, kept, version = await copies.copied_part(parts, request, upload.algorithm)
    checksum = next(iter(copied.checksums.values()), None)
    async with discarding(parts.blobs, kept):
        done = await _put_part(parts, request, Wanted(number, copied.etag, checksum), kept, copied.size)
    assert done.modified_at is not None
    nodes: list[xml.Node] = [("LastModified", iso(done.modified_at)), ("ETag", f'"{copied.etag}"')]
    nodes += _sum_node(upload, checksum)
    answer = dict(XML)
    if version.shown_id is not None:
        answer["x-amz-copy-source-version-id"] = version.shown_id
    return Response(200, answer, xml.document("CopyPartResult", nodes))


async def _put_part(parts: Parts, request: Request, wanted: Wanted, kept: Kept, size: int) -> Done:
    assert kept.blob is not None
    assert kept.commit_before is not None
    upload_id, segment = request.target.query["uploadId"], Segment(kept.blob, size)
    done = await uploads.put_part(parts.pool, request.place, upload_id, wanted, segment, kept.commit_before)
    discard(parts.blobs, done)
    return done


def _sum_node(upload: Upload, checksum: str | None) -> list[xml.Node]:
    return [] if upload.algorithm is None or checksum is None else [(f"Checksum{upload.algorithm}", checksum)]


async def list_parts(parts: Parts, request: Request) -> Response:
    query = request.target.query
    most = min(numbers.between(query, "max-parts", 0, 2**31 - 1, MOST), MOST)
    after = numbers.between(query, "part-number-marker", 0, 2**31 - 1, 0)
    upload, found = await uploads.list_parts(parts.pool, request.place, query["uploadId"], after, most + 1)
    encode = encoder(query)
    nodes: list[xml.Node] = [
        ("Bucket", request.bucket),
        ("Key", encode(request.key)),
        ("UploadId", upload.id),
        ("PartNumberMarker", str(after)),
        ("MaxParts", str(most)),
        ("IsTruncated", "true" if len(found) > most > 0 else "false"),
        ("StorageClass", "STANDARD"),
    ]
    if len(found) > most > 0:
        nodes.append(("NextPartNumberMarker", str(found[most - 1].number)))
    if upload.algorithm is not None:
        nodes += [("ChecksumAlgorithm", upload.algorithm), ("ChecksumType", "FULL_OBJECT" if upload.whole else "COMPOSITE")]
    for part in found[:most]:
        children: list[xml.Node] = [
            ("PartNumber", str(part.number)),
            ("LastModified", iso(part.modified_at)),
            ("ETag", f'"{part.etag}"'),
            ("Size", str(part.size)),
            *_sum_node(upload, part.checksum),
        ]
        nodes.append(("Part", children))
    return Response(200, XML, xml.document("ListPartsResult", nodes))


async def list_multipart_uploads(parts: Parts, request: Request) -> Response:
    query = request.target.query
    if query.get("delimiter"):
        raise CallerError("NotImplemented", "ListMultipartUploads with a delimiter is not implemented.")
    most = min(numbers.between(query, "max-uploads", 0, 2**31 - 1, MOST), MOST)
    after = (bounded(query, "key-marker"), bounded(query, "upload-id-marker"))
    if not after[1]:
        after = (after[0], "\U0010ffff")  # behind every upload of that key
    prefix = bounded(query, "prefix")
    found = await uploads.list_uploads(parts.pool, request.project, request.bucket, prefix, after, most + 1)
    encode = encoder(query)
    nodes: list[xml.Node] = [
        ("Bucket", request.bucket),
        ("KeyMarker", encode(query.get("key-marker", ""))),
        ("UploadIdMarker", query.get("upload-id-marker", "")),
        ("Prefix", encode(prefix)),
        ("MaxUploads", str(most)),
        ("IsTruncated", "true" if len(found) > most > 0 else "false"),
    ]
    if "encoding-type" in query:
        nodes.append(("EncodingType", "url"))
    if len(found) > most > 0:
        last = found[most - 1]
        nodes += [("NextKeyMarker", encode(last.key)), ("NextUploadIdMarker", last.id)]
    owner: xml.Node = ("Owner", [("ID", request.project), ("DisplayName", request.project)])
    for upload in found[:most]:
        children: list[xml.Node] = [
            ("Key", encode(upload.key)),
            ("UploadId", upload.id),
            owner,
            ("StorageClass", "STANDARD"),
            ("Initiated", iso(upload.created_at)),
        ]
        nodes.append(("Upload", children))
    return Response(200, XML, xml.document("ListMultipartUploadsResult", nodes))


async def abort_multipart_upload(parts: Parts, request: Request) -> Response:
    discard(parts.blobs, await uploads.abort(parts.pool, request.place, request.target.query["uploadId"]))
    return Response(204)


async def complete_multipart_upload(parts: Parts, request: Request) -> Response:
    wanted = _wanted(await request.document(uploads.MAX_PARTS * 512, unchecked=frozenset(checksums.BY_HEADER)))
    upload_id = request.target.query["uploadId"]
    condition = headers.write_condition(request.headers)
    promise = Promise(
        {name: request.headers[name] for name in checksums.BY_HEADER if name in request.headers},
        request.headers.get("x-amz-mp-object-size"),
        request.headers.get("x-amz-checksum-type"),
    )
    completed = await uploads.complete(
        parts.pool, request.place, upload_id, wanted, await parts.origin(request), condition, promise
    )
    discard(parts.blobs, completed.done)
    nodes: list[xml.Node] = [
        ("Location", f"/{request.bucket}/{request.key}"),
        ("Bucket", request.bucket),
        ("Key", request.key),
        ("ETag", f'"{completed.etag}"'),
    ]
    shown = headers.checksum_headers(completed.checksums)
    for name, value in completed.checksums.items():
        nodes += [(f"Checksum{checksums.BY_HEADER[name].name}", value), ("ChecksumType", shown["x-amz-checksum-type"])]
    answer = {**XML, **headers.version_header(completed.done.version_id)}
    return Response(200, answer, xml.document("CompleteMultipartUploadResult", nodes))


def _wanted(body: bytes) -> list[Wanted]:
    found: list[Wanted] = []
    for child in xml.read(body, "CompleteMultipartUpload", uploads.MAX_PARTS * 8 + 1):
        if xml.local(child) != "Part":
            raise xml.malformed(f"CompleteMultipartUpload has {xml.local(child)[:100]!r} in it, which it cannot have")
        texts = xml.child_texts(child, frozenset({"PartNumber", "ETag", *_SUM_NAMES}))
        number, etag = texts.get("PartNumber", "").strip(), texts.get("ETag", "").strip().strip('"').lower()
        if not number.isascii() or not number.isdigit() or len(number) > 9 or not 1 <= int(number) <= uploads.MAX_PARTS:
            raise xml.malformed(f"PartNumber is {number[:100]!r}, where 1 to {uploads.MAX_PARTS} are possible")
        if not _ETAG.fullmatch(etag):
            raise CallerError("InvalidPart", "A part's entity tag is not one that an upload has given.", PartNumber=number)
        sums = [value for name, value in texts.items() if name in _SUM_NAMES]
        found.append(Wanted(int(number), etag, sums[0] if sums else None))
    if not 1 <= len(found) <= uploads.MAX_PARTS:
        raise xml.malformed(f"it names {len(found)} parts, where 1 to {uploads.MAX_PARTS} are possible")
    return found
