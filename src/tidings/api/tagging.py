"""Object tagging."""

from __future__ import annotations

from tidings.api import headers, xml
from tidings.api.buckets import XML
from tidings.api.objects import version_id, visible
from tidings.api.parts import Parts
from tidings.api.request import Request
from tidings.api.response import Response
from tidings.store import objects, tagging


async def get_object_tagging(parts: Parts, request: Request) -> Response:
    version = visible(request, await objects.get(parts.pool, request.place, version_id(request), body=False))
    tags: list[xml.Node] = [("Tag", [("Key", name), ("Value", value)]) for name, value in version.tags.items()]
    answer = {**XML, **headers.version_header(version.shown_id)}
    return Response(200, answer, xml.document("Tagging", [("TagSet", tags)]))


async def put_object_tagging(parts: Parts, request: Request) -> Response:
    tags = read_tags(await request.document())
    version = await tagging.replace_tags(parts.pool, request.place, version_id(request), tags)
    return Response(200, headers.version_header(version.shown_id))


def read_tags(document: bytes) -> dict[str, str]:
    """The tags in a Tagging document."""
    sets = list(xml.read(document, "Tagging"))
    if [xml.local(each) for each in sets] != ["TagSet"]:
        raise xml.malformed("Tagging holds one TagSet and nothing else")
    pairs = []
    for each in sets[0]:
        texts = xml.child_texts(each, frozenset({"Key", "Value"}))
        if xml.local(each) != "Tag" or texts.keys() != {"Key", "Value"}:
            raise xml.malformed("TagSet holds Tags with a Key and a Value")
        pairs.append((texts["Key"], texts["Value"]))
    return headers.checked_tags(pairs)


async def delete_object_tagging(parts: Parts, request: Request) -> Response:
    version = await tagging.replace_tags(parts.pool, request.place, version_id(request), {})
    return Response(204, headers.version_header(version.shown_id))
