"""Versioning of buckets, and the listing of versions."""

from __future__ import annotations

from tidings.api import numbers, xml
from tidings.api.buckets import XML, iso
from tidings.api.listing import MOST, bounded, encoder
from tidings.api.parts import Parts
from tidings.api.request import Request
from tidings.api.response import Response
from tidings.errors import CallerError
from tidings.store import buckets, objects, version_listing
from tidings.store.model import Place
from tidings.store.version_listing import ListedVersion

_STATES = {"Enabled": "enabled", "Suspended": "suspended"}
_SHOWN = {state: name for name, state in _STATES.items()}


async def get_bucket_versioning(parts: Parts, request: Request) -> Response:
    state = await buckets.get_versioning(parts.pool, request.project, request.bucket)
    nodes: list[xml.Node] = [("Status", _SHOWN[state])] if state in _SHOWN else []
    return Response(200, XML, xml.document("VersioningConfiguration", nodes))


async def put_bucket_versioning(parts: Parts, request: Request) -> Response:
    root = xml.read(await request.document(), "VersioningConfiguration")
    texts = xml.child_texts(root, frozenset({"Status", "MfaDelete", "MFADelete"}))
    if texts.keys() - {"Status"} and "Enabled" in (texts.get("MfaDelete"), texts.get("MFADelete")):
        raise CallerError("NotImplemented", "PutBucketVersioning with MfaDelete is not implemented.")
    status = texts.get("Status", "")
    if status not in _STATES:
        raise CallerError("IllegalVersioningConfigurationException", f"Status is {status[:100]!r}: send Enabled or Suspended.")
    await buckets.put_versioning(parts.pool, request.project, request.bucket, _STATES[status])
    return Response(200)


async def list_object_versions(parts: Parts, request: Request) -> Response:
    query = request.target.query
    most = min(numbers.between(query, "max-keys", 0, 2**31 - 1, MOST), MOST)
    prefix, delimiter, key = (bounded(query, name) for name in ("prefix", "delimiter", "key-marker"))
    page = await version_listing.page(
        parts.pool,
        request.project,
        request.bucket,
        prefix=prefix,
        delimiter=delimiter,
        key=version_listing.behind(key, delimiter, prefix),
        ordinal=await _ordinal(parts, request, key, query.get("version-id-marker", "")),
        most=most,
    )
    encode = encoder(query)
    nodes: list[xml.Node] = [
        ("Name", request.bucket),
        ("Prefix", encode(prefix)),
        ("KeyMarker", encode(key)),
        ("VersionIdMarker", query.get("version-id-marker", "")),
        ("MaxKeys", str(most)),
        ("IsTruncated", "true" if page.more else "false"),
    ]
    if delimiter:
        nodes.append(("Delimiter", encode(delimiter)))
    if "encoding-type" in query:
        nodes.append(("EncodingType", "url"))
    if page.more:
        last = page.entries[-1]
        if isinstance(last, str):
            nodes.append(("NextKeyMarker", encode(last)))
        else:
            nodes += [("NextKeyMarker", encode(last.key)), ("NextVersionIdMarker", f"{last.version_id}.{last.ordinal}")]
    owner: xml.Node = ("Owner", [("ID", request.project), ("DisplayName", request.project)])
    for entry in page.entries:
        if isinstance(entry, str):
            nodes.append(("CommonPrefixes", [("Prefix", encode(entry))]))
        else:
            nodes.append(_node(entry, encode(entry.key), owner))
    return Response(200, XML, xml.document("ListVersionsResult", nodes))


async def _ordinal(parts: Parts, request: Request, key: str, marker: str) -> int | None:
    """Where in the key's versions a page goes on. Our own markers say it themselves: their version may be gone by then."""
    if not marker:
        return None
    if not key:
        message = "A version-id marker cannot be specified without a key marker."
        raise CallerError("InvalidArgument", message, ArgumentName="version-id-marker", ArgumentValue=marker[:100])
    version_id, dot, number = marker[:300].rpartition(".")
    if dot and number.isascii() and number.isdigit() and len(number) < 18:
        return int(number)
    try:
        return await version_listing.ordinal(parts.pool, Place(request.project, request.bucket, key), version_id or number)
    except CallerError as error:
        if error.code != objects.no_such_version("", "").code:
            raise
        raise CallerError("InvalidArgument", "Invalid version id specified", ArgumentName="version-id-marker") from None


def _node(version: ListedVersion, key: str, owner: xml.Node) -> xml.Node:
    children: list[xml.Node] = [
        ("Key", key),
        ("VersionId", version.version_id),
        ("IsLatest", "true" if version.latest else "false"),
        ("LastModified", iso(version.modified_at)),
    ]
    if version.delete_marker:
        return "DeleteMarker", [*children, owner]
    shown: list[xml.Node] = [("ETag", f'"{version.etag}"'), ("Size", str(version.size)), ("StorageClass", "STANDARD"), owner]
    return "Version", [*children, *shown]
