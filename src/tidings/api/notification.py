"""PUT and GET of a bucket's notification configuration."""

from __future__ import annotations

from tidings.api.buckets import XML
from tidings.api.parts import Parts
from tidings.api.request import Request
from tidings.api.response import Response
from tidings.rules import notification, xml


async def put_notification(parts: Parts, request: Request) -> Response:
    rules = xml.parse(await request.document())
    await notification.put(
        parts.pool,
        parts.settings,
        request.project,
        request.bucket,
        rules,
        request_id=request.id,
        host_id=request.host_id,
    )
    return Response(200)


async def get_notification(parts: Parts, request: Request) -> Response:
    rules = await notification.get(parts.pool, request.project, request.bucket)
    return Response(200, XML, xml.render(rules))
