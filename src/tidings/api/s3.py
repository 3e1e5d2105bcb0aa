"""The S3 front: verify first, dispatch after. There is one way in, and nothing counts before it is verified."""

from __future__ import annotations

import base64
import os
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any

from tidings.access import sigv4
from tidings.api import errors, operations
from tidings.api.body import Body, Receive
from tidings.api.parts import Parts
from tidings.api.request import Request, target
from tidings.api.response import Response, Send
from tidings.errors import CallerError

Scope = MutableMapping[str, Any]


class S3:
    """An ASGI application over the parts that the process has opened."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._host_id = base64.b64encode(os.urandom(48)).decode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = os.urandom(8).hex().upper()
        method: str = scope["method"]
        body = Body(receive, scope["headers"])
        try:
            response = await self._serve(scope, body, request_id)
        except Exception as error:
            resource = scope["raw_path"].decode("latin-1")
            response = errors.response(error, method, resource, request_id, self._host_id)
            await body.drain()
        response.headers = {**response.headers, "x-amz-request-id": request_id, "x-amz-id-2": self._host_id}
        await response.send(receive, send)

    async def _serve(self, scope: Scope, body: Body, request_id: str) -> Response:
        method, raw_path, raw_query = scope["method"], scope["raw_path"], scope["query_string"]
        now = datetime.now(UTC)
        signed = sigv4.parse(method, raw_path, raw_query, scope["headers"], now, self._parts.settings.api.region)
        principal = await self._parts.keys.find(signed.access_key_id)
        if principal is None:
            message = "The AWS access key ID you provided does not exist in our records."
            raise CallerError("InvalidAccessKeyId", message, AWSAccessKeyId=signed.access_key_id)
        signing = sigv4.verify(signed, principal.secret)
        request = Request(
            id=request_id,
            host_id=self._host_id,
            target=target(raw_path, raw_query),
            headers=signed.headers,
            raw_headers=scope["headers"],
            principal=principal,
            signing=signing,
            source_ip=scope["client"][0] if scope.get("client") else "",
            body=body,
        )
        operation = operations.find(method, request.target, request.headers)
        _check_owner(request)
        return await operation.serve(self._parts, request)


def _check_owner(request: Request) -> None:
    expected = request.headers.get("x-amz-expected-bucket-owner")
    if expected is not None and expected != request.project:
        raise CallerError("AccessDenied", "The bucket does not belong to the owner in x-amz-expected-bucket-owner.")
