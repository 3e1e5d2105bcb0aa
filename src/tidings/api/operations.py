"""Which operation a request asks for, and whether every part of what it asks is served.

A parameter or a header that changes what an operation means, and that is not known here, is refused with
NotImplemented. It is never passed over: a copy that stores the empty body, or a "conditional" write that always
happens, would be a wrong success.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tidings.api import buckets, listing, notification, objects, unserved
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
_READ = frozenset({"x-amz-checksum-mode", *_CONDITIONS}) - {"if-range"}
_ONLY_VALUE = {"x-amz-acl": "private", "x-amz-storage-class": "STANDARD"}
"""Headers that ask for nothing but what is done anyway, as long as they have this value."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, with the parameters and the headers that it understands beyond those of every request."""

    name: str
    serve: Serve
    parameters: frozenset[str] = frozenset()
    headers: frozenset[str] = frozenset()
    header_prefixes: tuple[str, ...] = ("x-amz-checksum-",)


_OPERATIONS: dict[tuple[str, str, str], Operation] = {
    ("GET", "service", ""): Operation(
        "ListBuckets",
        buckets.list_buckets,
        frozenset({"prefix", "max-buckets", "continuation-token", "bucket-region"}),
    ),
    ("PUT", "bucket", ""): Operation("CreateBucket", buckets.create_bucket),
    ("HEAD", "bucket", ""): Operation("HeadBucket", buckets.head_bucket),
    ("DELETE", "bucket", ""): Operation("DeleteBucket", buckets.delete_bucket),
    ("GET", "bucket", "location"): Operation("GetBucketLocation", buckets.get_bucket_location),
    ("GET", "bucket", "notification"): Operation("GetBucketNotificationConfiguration", notification.get_notification),
    ("PUT", "bucket", "notification"): Operation("PutBucketNotificationConfiguration", notification.put_notification),
    ("GET", "bucket", "list-type"): Operation(
        "ListObjectsV2",
        listing.list_objects,
        frozenset({"prefix", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type", "fetch-owner"}),
    ),
    ("PUT", "object", ""): Operation("PutObject", objects.put_object, header_prefixes=("x-amz-checksum-", "x-amz-meta-")),
    ("GET", "object", ""): Operation("GetObject", objects.get_object, objects.OVERRIDES, _READ),
    ("HEAD", "object", ""): Operation("HeadObject", objects.head_object, objects.OVERRIDES, _READ),
    ("DELETE", "object", ""): Operation("DeleteObject", objects.delete_object),
}
_MARKERS = ("notification", "location", "list-type")


def find(method: str, target: Target, headers: Mapping[str, str]) -> Operation:
    """The operation, if all of it is served."""
    query, level = target.query, target.level
    marker = next((name for name in _MARKERS if name in query and (method, level, name) in _OPERATIONS), "")
    operation = _OPERATIONS.get((method, level, marker))
    if method not in unserved.VERBS:
        message = "The specified method is not allowed against this resource."
        raise CallerError("MethodNotAllowed", message, Method=method[:20], ResourceType=level.upper())
    unknown = [name for name in query if name not in ("x-id", marker)]
    if operation is not None:
        unknown = [name for name in unknown if name not in operation.parameters]
    if operation is None or unknown:
        raise _not_implemented(unserved.name(method, level, unknown, operation.name if operation else None))
    for name in headers:
        if (name.startswith("x-amz-") or name in _CONDITIONS) and not _understood(operation, name, headers[name]):
            asked = "CopyObject" if name == "x-amz-copy-source" else f"{operation.name} with {name[:100]}"
            raise _not_implemented(asked, Header=name[:100])
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
