"""PUT and GET of a bucket's notification configuration."""

from __future__ import annotations

from collections.abc import Sequence

from tidings.api.buckets import XML
from tidings.api.headers import etags
from tidings.api.parts import Parts
from tidings.api.request import Request
from tidings.api.response import Response
from tidings.rules import xml
from tidings.rules.model import Rule


async def put_notification(parts: Parts, request: Request) -> Response:
    async def read() -> Sequence[Rule]:
        return xml.parse(await request.document(), parts.settings.bucket_eventing.dialect)

    etag = await parts.notifications.put(
        request.principal,
        request.bucket,
        read,
        expected=_expected(request),
        request_id=request.id,
        host_id=request.host_id,
    )
    return Response(200, {"etag": f'"{etag}"'})


async def get_notification(parts: Parts, request: Request) -> Response:
    found = await parts.notifications.get(request.principal, request.bucket)
    return Response(200, {**XML, "etag": f'"{found.etag}"'}, xml.render(found.rules))


def _expected(request: Request) -> Sequence[str] | None:
    """The entity tags that the caller is ready to change from; None if any will do."""
    named = etags(request.headers.get("if-match", "*"))
    return None if "*" in named else named
