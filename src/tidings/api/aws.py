"""The way in for the services beside S3 on the same port: the signature's scope says which one is meant.

Verify first, dispatch after, as for S3. The key must be known before the body is read, because the signature is over the
body: who names no key cannot make us hold one. An id is no secret, so what is held before it is verified has limits.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from tidings import metrics
from tidings.access import sigv4
from tidings.access.keys import Principal
from tidings.api import acts, cors, errors, hosts, limits, tracing
from tidings.api.body import Body, Receive
from tidings.api.parts import Parts
from tidings.api.response import Response, Send, closed
from tidings.api.s3 import Scope
from tidings.errors import CallerError

MAX_BODY = 2 * 1024 * 1024
"""Room for 256 KiB of text in which every character is written as six."""


@dataclass(slots=True)
class Call:
    """A verified request to one of these services. `url` is where the caller reached us, without a path."""

    id: str
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    principal: Principal
    body: bytes
    url: str
    scope: Scope = field(repr=False)
    receive: Receive = field(repr=False)
    source_ip: str = ""
    operation: str = "unknown"
    """For the metrics; the front sets it, to one of a fixed set of names."""

    @property
    def project(self) -> str:
        return self.principal.project

    def act(self, parts: Parts, service: str, target: str) -> AbstractAsyncContextManager[None]:
        """Around what serves it, once its operation is known."""
        place = (self.project, self.source_ip, target, self.id)
        return acts.act(parts.pool, service, self.operation, self.principal, *place)

    async def closed(self) -> None:
        """Returns when the caller has gone away."""
        await closed(self.receive)


class Front(Protocol):
    """One service: what it does with a call, and how it says what went wrong (also before there is a call)."""

    async def serve(self, parts: Parts, call: Call) -> Response: ...

    def refused(self, problem: CallerError, request_id: str) -> Response: ...


class Aws:
    """An ASGI application over the parts that the process has opened. `fronts` are by the service in the signature's scope."""

    def __init__(self, parts: Parts, fronts: Mapping[str, Front]) -> None:
        self._parts = parts
        self._fronts = fronts

    def serves(self, scope: Scope) -> bool:
        return sigv4.service_of(scope["headers"]) in self._fronts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = str(uuid.uuid4())
        service = sigv4.service_of(scope["headers"])
        front = self._fronts[service]
        limited = self._parts.settings.limits
        body = Body(receive, scope["headers"], limited, limited.unproven_seconds)
        call: Call | None = None
        try:
            limits.enter(scope)
            call = await self._verified(scope, service, body, receive, request_id)
            response = await front.serve(self._parts, call)
        except Exception as error:
            resource = f"{service}:{call.operation}" if call else service
            response = front.refused(errors.as_caller_error(error, scope["method"], resource, request_id), request_id)
            await body.drain(response.status)
        answer = {**response.headers, "x-amzn-requestid": request_id}
        if body.unread:  # see `S3.__call__`
            answer["connection"] = "close"
        response.headers = answer | cors.visible(scope["headers"], self._parts.settings.api.cors_origins, answer)
        body.close()
        operation = scope["tidings.operation"] = f"{service}:{call.operation if call else 'unknown'}"
        metrics.answered(operation, response.status)
        await response.send(receive, send)

    async def _verified(self, scope: Scope, service: str, body: Body, receive: Receive, request_id: str) -> Call:
        method, raw_path, raw_query, raw_headers = scope["method"], scope["raw_path"], scope["query_string"], scope["headers"]
        region = self._parts.settings.api.region
        signed = sigv4.parse_call(method, raw_path, raw_query, raw_headers, datetime.now(UTC), region, service)
        key = await self._parts.keys.find(signed.access_key_id)
        if key is None:
            raise CallerError("InvalidAccessKeyId", "The security token included in the request is invalid: no such key.")
        content = await _whole(body, scope)
        if (key := await self._parts.keys.renewed(key)) is None:
            raise CallerError("InvalidAccessKeyId", "The key was revoked while the request came.")
        sigv4.verify(signed.over(content), key.secret)
        self._parts.keys.keep(key)
        limits.admit(scope, key.principal.project)
        tracing.verified(scope)
        return Call(
            request_id,
            method,
            raw_path.decode("latin-1"),
            raw_query.decode("latin-1"),
            signed.headers,
            key.principal,
            content,
            f"{scope.get('scheme', 'http')}://{hosts.host(raw_headers)}",
            scope,
            receive,
            scope["client"][0] if scope.get("client") else "",
        )


async def _whole(body: Body, scope: Scope) -> bytes:
    """Kept before the signature over it can be verified: whoever knows the id of a key can send so much."""
    content = bytearray()
    while not body.ended:
        content += await body.next()
        limits.hold(scope, len(content))
        if len(content) > MAX_BODY:
            raise CallerError("EntityTooLarge", f"The request is longer than {MAX_BODY} bytes.")
    return bytes(content)
