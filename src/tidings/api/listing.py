"""ListObjects, in both versions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from urllib.parse import quote

from tidings.api import numbers, xml
from tidings.api.buckets import XML, iso
from tidings.api.parts import Parts
from tidings.api.request import Request
from tidings.api.response import Response
from tidings.errors import CallerError
from tidings.events import keys
from tidings.store import listing
from tidings.store.listing import Entry

MOST = 1000


async def list_objects(parts: Parts, request: Request) -> Response:
    query = request.target.query
    if query["list-type"] != "2":
        raise CallerError("InvalidArgument", "list-type is not 2.", ArgumentName="list-type")
    asked = numbers.between(query, "max-keys", 0, 2**31 - 1, MOST)
    token = query.get("continuation-token")
    page = await listing.page(
        parts.pool,
        request.project,
        request.bucket,
        prefix=bounded(query, "prefix"),
        delimiter=bounded(query, "delimiter"),
        after=bounded(query, "start-after") if token is None else after(token),
        most=min(asked, MOST),
    )
    encode = encoder(query)
    owner = request.project if query.get("fetch-owner") == "true" else None
    nodes: list[xml.Node] = [("Name", request.bucket), ("Prefix", encode(query.get("prefix", "")))]
    nodes += [(name, encode(query[parameter])) for parameter, name in _ECHOED if parameter in query]
    if token is not None:
        nodes.append(("ContinuationToken", token))
    if "encoding-type" in query:
        nodes.append(("EncodingType", "url"))
    nodes += [("KeyCount", str(len(page.entries))), ("MaxKeys", str(min(asked, MOST)))]
    nodes.append(("IsTruncated", "true" if page.more else "false"))
    if page.more:
        nodes.append(("NextContinuationToken", token_of(page.entries[-1])))
    nodes += [_contents(entry, encode, owner) for entry in page.entries if entry.size is not None]
    nodes += [("CommonPrefixes", [("Prefix", encode(entry.name))]) for entry in page.entries if entry.size is None]
    return Response(200, XML, xml.document("ListBucketResult", nodes))


async def list_objects_v1(parts: Parts, request: Request) -> Response:
    """The older form: the marker is a key, or a common prefix, and is repeated only where there is a delimiter."""
    query = request.target.query
    asked = min(numbers.between(query, "max-keys", 0, 2**31 - 1, MOST), MOST)
    prefix, delimiter, marker = (bounded(query, name) for name in ("prefix", "delimiter", "marker"))
    is_prefix = bool(delimiter) and marker.endswith(delimiter) and marker.find(delimiter, len(prefix)) >= 0
    page = await listing.page(
        parts.pool,
        request.project,
        request.bucket,
        prefix=prefix,
        delimiter=delimiter,
        after=listing.behind(marker, is_prefix=is_prefix),
        most=asked,
    )
    encode = encoder(query)
    nodes: list[xml.Node] = [("Name", request.bucket), ("Prefix", encode(prefix)), ("Marker", encode(marker))]
    if delimiter:
        nodes.append(("Delimiter", encode(delimiter)))
    if "encoding-type" in query:
        nodes.append(("EncodingType", "url"))
    nodes += [("MaxKeys", str(asked)), ("IsTruncated", "true" if page.more else "false")]
    if page.more and delimiter:
        nodes.append(("NextMarker", encode(page.entries[-1].name)))
    nodes += [_contents(entry, encode, request.project) for entry in page.entries if entry.size is not None]
    nodes += [("CommonPrefixes", [("Prefix", encode(entry.name))]) for entry in page.entries if entry.size is None]
    return Response(200, XML, xml.document("ListBucketResult", nodes))


_ECHOED = (("delimiter", "Delimiter"), ("start-after", "StartAfter"))


def _contents(entry: Entry, encode: Callable[[str], str], owner: str | None) -> xml.Node:
    children: list[xml.Node] = [
        ("Key", encode(entry.name)),
        ("LastModified", iso(entry.modified_at)),
        ("ETag", f'"{entry.etag}"'),
        ("Size", str(entry.size)),
        ("StorageClass", "STANDARD"),
    ]
    if owner is not None:
        children.append(("Owner", [("ID", owner), ("DisplayName", owner)]))
    return "Contents", children


def encoder(query: Mapping[str, str]) -> Callable[[str], str]:
    kind = query.get("encoding-type")
    if kind is None:
        return str
    if kind != "url":
        message = "Invalid Encoding Method specified in Request."
        raise CallerError("InvalidArgument", message, ArgumentName="encoding-type", ArgumentValue=kind[:100])
    return lambda text: quote(text, safe="/")


def bounded(query: Mapping[str, str], name: str) -> str:
    value = query.get(name, "")
    if len(value.encode()) > keys.MAX_BYTES:
        message = f"The parameter {name} is longer than a key can be, {keys.MAX_BYTES} bytes."
        raise CallerError("InvalidArgument", message, ArgumentName=name)
    return value


def token_of(last: Entry) -> str:
    """Where the next page goes on, in a form that a client has no reason to look into."""
    kind = "p" if last.size is None else "k"
    return base64.urlsafe_b64encode((kind + last.name).encode()).decode()


def after(token: str) -> str:
    """The value of `after` for a token that `token_of` made."""
    try:
        if len(token) > 2 * keys.MAX_BYTES:
            raise ValueError
        text = base64.b64decode(token, altchars=b"-_", validate=True).decode()
        kind, name = text[0], text[1:]
        if kind not in "kp" or "\0" in name or len(name.encode()) > keys.MAX_BYTES:
            raise ValueError
    except (ValueError, IndexError, binascii.Error):
        message = "The continuation token provided is incorrect."
        raise CallerError("InvalidArgument", message, ArgumentName="continuation-token") from None
    return listing.behind(name, is_prefix=kind == "p")
