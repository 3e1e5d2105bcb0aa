"""Which operation a request asks for, and whether every part of what it asks is served.

A parameter or a header that changes what an operation means, and that is not known here, is refused with
NotImplemented. It is never passed over: a copy that stores the empty body, or a "conditional" write that always
happens, would be a wrong success.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tidings.access.permissions import DELETE, LIST, READ, WRITE
from tidings.api import buckets, copies, headers, listing, notification, objects, tagging, unserved, uploads, versions
from tidings.api.parts import Parts
from tidings.api.request import Request, Target
from tidings.api.response import Response
from tidings.errors import CallerError

Serve = Callable[[Parts, Request], Awaitable[Response]]

_CONDITIONS = frozenset({"if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"})
_EVERYWHERE = frozenset(
    {
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-decoded-content-length",
        "x-amz-expected-bucket-owner",
        "x-amz-request-payer",
        "x-amz-sdk-checksum-algorithm",
        "x-amz-trailer",
        "x-amz-user-agent",
    }
)
_READ = frozenset({"x-amz-checksum-mode", *_CONDITIONS})
_OVERRIDES = frozenset(headers.OVERRIDES)
_SOURCE_CONDITIONS = ("match", "none-match", "modified-since", "unmodified-since")
_ONLY_VALUE = {"x-amz-acl": "private", "x-amz-storage-class": "STANDARD"}
"""Headers that ask for nothing but what is done anyway, as long as they have this value."""


VISIBLE = "see"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, with the parameters and the headers that it understands beyond those of every request."""

    name: str
    serve: Serve
    action: str | None
    """What a key must allow for it. `VISIBLE` where the bucket need only be visible, or each key is looked at by itself;
    None where the operation asks by itself, in an order of its own."""
    parameters: frozenset[str] = frozenset()
    headers: frozenset[str] = frozenset()
    header_prefixes: tuple[str, ...] = ("x-amz-checksum-",)


_CHECKSUMS = ("x-amz-checksum-",)
_WRITE = frozenset({"if-match", "if-none-match", "x-amz-tagging"})
_WRITTEN = (*_CHECKSUMS, headers.META)
_VERSION = frozenset({"versionId"})
_LISTED = frozenset({"prefix", "delimiter", "max-keys", "encoding-type"})
_SOURCE = frozenset({copies.SOURCE, *(f"{copies.SOURCE}-if-{how}" for how in _SOURCE_CONDITIONS)})

_OPERATIONS: dict[tuple[str, str, str], Operation] = {
    ("GET", "service", ""): Operation(
        "ListBuckets",
        buckets.list_buckets,
        LIST,
        frozenset({"prefix", "max-buckets", "continuation-token", "bucket-region"}),
    ),
    ("PUT", "bucket", ""): Operation("CreateBucket", buckets.create_bucket, WRITE),
    ("HEAD", "bucket", ""): Operation("HeadBucket", buckets.head_bucket, VISIBLE),
    ("DELETE", "bucket", ""): Operation("DeleteBucket", buckets.delete_bucket, DELETE),
    ("GET", "bucket", "location"): Operation("GetBucketLocation", buckets.get_bucket_location, VISIBLE),
    ("GET", "bucket", "versioning"): Operation("GetBucketVersioning", versions.get_bucket_versioning, VISIBLE),
    ("PUT", "bucket", "versioning"): Operation("PutBucketVersioning", versions.put_bucket_versioning, WRITE),
    ("GET", "bucket", "notification"): Operation("GetBucketNotificationConfiguration", notification.get_notification, None),
    ("PUT", "bucket", "notification"): Operation(
        "PutBucketNotificationConfiguration", notification.put_notification, None, headers=frozenset({"if-match"})
    ),
    ("GET", "bucket", ""): Operation("ListObjects", listing.list_objects_v1, LIST, _LISTED | {"marker"}),
    ("GET", "bucket", "list-type"): Operation(
        "ListObjectsV2", listing.list_objects, LIST, _LISTED | {"continuation-token", "start-after", "fetch-owner"}
    ),
    ("GET", "bucket", "versions"): Operation(
        "ListObjectVersions", versions.list_object_versions, LIST, _LISTED | {"key-marker", "version-id-marker"}
    ),
    ("GET", "bucket", "uploads"): Operation(
        "ListMultipartUploads",
        uploads.list_multipart_uploads,
        LIST,
        frozenset({"prefix", "delimiter", "max-uploads", "key-marker", "upload-id-marker", "encoding-type"}),
    ),
    ("POST", "bucket", "delete"): Operation("DeleteObjects", objects.delete_objects, VISIBLE),
    ("PUT", "object", ""): Operation("PutObject", objects.put_object, WRITE, headers=_WRITE, header_prefixes=_WRITTEN),
    ("PUT", "object", copies.SOURCE): Operation(
        "CopyObject",
        copies.copy_object,
        WRITE,
        headers=_WRITE | _SOURCE | {"x-amz-metadata-directive", "x-amz-tagging-directive"},
        header_prefixes=_WRITTEN,
    ),
    ("PUT", "object", "renameObject"): Operation(
        "RenameObject",
        copies.rename_object,
        WRITE,
        headers=frozenset(
            {"x-amz-rename-source", "x-amz-rename-source-if-match", "x-amz-client-token", "if-match", "if-none-match"}
        ),
    ),
    ("GET", "object", ""): Operation("GetObject", objects.get_object, READ, _OVERRIDES | _VERSION | {"partNumber"}, _READ),
    ("HEAD", "object", ""): Operation("HeadObject", objects.head_object, READ, _OVERRIDES | _VERSION | {"partNumber"}, _READ),
    ("DELETE", "object", ""): Operation("DeleteObject", objects.delete_object, DELETE, _VERSION),
    ("GET", "object", "tagging"): Operation("GetObjectTagging", tagging.get_object_tagging, READ, _VERSION),
    ("PUT", "object", "tagging"): Operation("PutObjectTagging", tagging.put_object_tagging, WRITE, _VERSION),
    ("DELETE", "object", "tagging"): Operation("DeleteObjectTagging", tagging.delete_object_tagging, WRITE, _VERSION),
    ("POST", "object", "uploads"): Operation(
        "CreateMultipartUpload",
        uploads.create_multipart_upload,
        WRITE,
        headers=frozenset({"x-amz-tagging"}),
        header_prefixes=_WRITTEN,
    ),
    ("PUT", "object", "uploadId"): Operation("UploadPart", uploads.upload_part, WRITE, frozenset({"partNumber"})),
    ("PUT", "object", f"uploadId {copies.SOURCE}"): Operation(
        "UploadPartCopy",
        uploads.upload_part,
        WRITE,
        frozenset({"partNumber", "uploadId"}),
        _SOURCE | {f"{copies.SOURCE}-range"},
    ),
    ("GET", "object", "uploadId"): Operation(
        "ListParts", uploads.list_parts, LIST, frozenset({"max-parts", "part-number-marker", "encoding-type"})
    ),
    ("POST", "object", "uploadId"): Operation(
        "CompleteMultipartUpload",
        uploads.complete_multipart_upload,
        WRITE,
        headers=frozenset({"if-match", "if-none-match", "x-amz-mp-object-size"}),
    ),
    ("DELETE", "object", "uploadId"): Operation("AbortMultipartUpload", uploads.abort_multipart_upload, WRITE),
}
_MARKERS = (
    *("notification", "location", "list-type", "versioning", "versions", "uploads", "delete", "renameObject", "tagging"),
    "uploadId",
)


def find(method: str, target: Target, given: Mapping[str, str]) -> Operation:
    """The operation, if all of it is served."""
    query, level = target.query, target.level
    marker = next((name for name in _MARKERS if name in query and (method, level, name) in _OPERATIONS), "")
    copied = f"{marker} {copies.SOURCE}".strip() if copies.SOURCE in given else marker
    operation = _OPERATIONS.get((method, level, copied), _OPERATIONS.get((method, level, marker)))
    if method not in unserved.VERBS:
        message = "The specified method is not allowed against this resource."
        raise CallerError("MethodNotAllowed", message, Method=method[:20], ResourceType=level.upper())
    unknown = [name for name in query if name not in ("x-id", marker)]
    if operation is not None:
        unknown = [name for name in unknown if name not in operation.parameters]
    if operation is None or unknown:
        raise _not_implemented(unserved.name(method, level, unknown, operation.name if operation else None))
    for name in given:
        if (name.startswith("x-amz-") or name in _CONDITIONS) and not _understood(operation, name, given[name]):
            raise _not_implemented(f"{operation.name} with {name[:100]}", Header=name[:100])
    return operation


def _understood(operation: Operation, name: str, value: str) -> bool:
    return (
        name in _EVERYWHERE
        or name in operation.headers
        or name.startswith(operation.header_prefixes)
        or _ONLY_VALUE.get(name) == value
    )


def _not_implemented(operation: str, **elements: str) -> CallerError:
    message = f"{operation} is not implemented here."
    return CallerError("NotImplemented", message, Operation=operation, **elements)


def check(operation: Operation, request: Request) -> None:
    """Whether the key allows it on this bucket, on this key, or on what this listing is to begin with."""
    level, bucket = request.target.level, request.bucket or None
    if operation.action is None:
        return
    if operation.action == VISIBLE:
        if bucket is not None and not request.principal.grant.sees(bucket, time.time()):
            raise CallerError("AccessDenied", "Access Denied: the key is not for this bucket.")
    elif level == "object":
        request.require(operation.action, bucket, request.key)
    elif level == "bucket" and operation.action == LIST:
        request.require(operation.action, bucket, request.target.query.get("prefix", ""))
    else:
        request.require(operation.action, bucket)
