"""The S3 front: verify first, dispatch after. There is one way in, and nothing counts before it is verified."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any

from tidings import metrics
from tidings.access import policy, sigv4
from tidings.api import acts, cors, errors, hosts, limits, operations, post, tracing
from tidings.api.body import Body, Receive
from tidings.api.parts import Parts
from tidings.api.request import Request, target
from tidings.api.response import Response, Send
from tidings.errors import CallerError

_ID = re.compile(r"\w{1,32}")

Scope = MutableMapping[str, Any]


class S3:
    """An ASGI application over the parts that the process has opened."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._host_id = base64.b64encode(os.urandom(48)).decode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = os.urandom(8).hex().upper()
        method: str = scope["method"]
        body = Body(receive, scope["headers"], self._parts.settings.limits)
        try:
            response = await self._serve(scope, body, request_id)
        except Exception as error:
            resource = scope["raw_path"].decode("latin-1")
            response = errors.response(error, method, resource, request_id, self._host_id)
            await body.drain(response.status)
        answer = {**response.headers, "x-amz-request-id": request_id, "x-amz-id-2": self._host_id}
        if body.unread:
            # botocore takes an answer that came in place of "100 Continue" for the answer to its next request as well
            # (its issue 3755). It forgets it with the connection.
            answer["connection"] = "close"
        response.headers = answer | cors.visible(scope["headers"], self._parts.settings.api.cors_origins, answer)
        body.close()
        metrics.answered(scope.get("tidings.operation", "unknown"), response.status)
        await response.send(receive, send)

    async def _serve(self, scope: Scope, body: Body, request_id: str) -> Response:
        method, raw_path, raw_query, raw_headers = scope["method"], scope["raw_path"], scope["query_string"], scope["headers"]
        settings, now = self._parts.settings.api, datetime.now(UTC)
        limits.enter(scope)
        if cors.is_preflight(method, raw_headers):
            return cors.preflight(raw_headers, settings.cors_origins)
        form = await post.opened(body, raw_headers) if post.is_post(method, raw_query, raw_headers) else None
        if form is None:
            signed = sigv4.parse(method, raw_path, raw_query, raw_headers, now, settings.region)
        else:
            signed = policy.parse(form.fields, now, settings.region)
        key = await self._parts.keys.find(signed.access_key_id)
        if key is None:
            message = "The AWS access key ID you provided does not exist in our records."
            raise CallerError("InvalidAccessKeyId", message, **_named(signed.access_key_id))
        signing = sigv4.verify(signed, key.secret)
        self._parts.keys.keep(key)
        limits.admit(scope, key.principal.project)
        host = hosts.host(raw_headers)
        wanted = target(raw_path, raw_query, host, settings.domains, signed.spent)
        request = Request(
            id=request_id,
            host_id=self._host_id,
            target=wanted,
            headers=signed.headers,
            raw_headers=[*raw_headers, *signed.from_query] if signed.from_query else raw_headers,
            principal=key.principal,
            signing=signing,
            source_ip=scope["client"][0] if scope.get("client") else "",
            body=body,
            at=now,
            trace=tracing.verified(scope, wanted.bucket),
        )
        if form is not None:
            scope["tidings.operation"] = "PostObject"
            url = f"{scope.get('scheme', 'http')}://{host}{raw_path.decode('latin-1')}"
            return await post.serve_post(self._parts, post.accepted(form, request, url, now))
        operation = operations.find(method, request.target, request.headers)
        scope["tidings.operation"] = operation.name
        place = (request.project, request.source_ip, request.bucket, request_id)
        async with acts.act(self._parts.pool, "s3", operation.name, request.principal, *place):
            operations.check(operation, request)
            _check_owner(request)
            return await operation.serve(self._parts, request)


def _named(access_key_id: str) -> dict[str, str]:
    """The id, if it can be one. A secret that somebody sent in its place does not come back in an answer, nor in a log."""
    return {"AWSAccessKeyId": access_key_id} if _ID.fullmatch(access_key_id) else {}


def _check_owner(request: Request) -> None:
    expected = request.headers.get("x-amz-expected-bucket-owner")
    if expected is not None and expected != request.project:
        raise CallerError("AccessDenied", "The bucket does not belong to the owner in x-amz-expected-bucket-owner.")
