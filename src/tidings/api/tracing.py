"""A span for each request to the S3 API and the services beside it.

Who calls may continue a trace of their own, but not before they are verified: a stranger's request is in a trace of ours.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidings import telemetry

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_CALL = "tidings.trace"
_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})


def verified(scope: Scope, bucket: str = "") -> str | None:
    """The caller is known now. Returns what the request's changes carry; None if it is in no trace that anybody records."""
    call: _Call | None = scope.get(_CALL)
    return None if call is None else call.verified(scope, bucket)


class Traced:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = scope[_CALL] = _Call(self._tracer)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            call.end(scope)


class _Call:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._began = time.time_ns()
        self._span: Span | None = None
        self.status = 500  # if nothing was answered

    def verified(self, scope: Scope, bucket: str) -> str | None:
        span = self._span = self._start(scope, trusted=True)
        if not span.is_recording():
            return None
        if bucket:
            span.set_attribute("tidings.bucket", bucket)
        return telemetry.stored(span.get_span_context())

    def end(self, scope: Scope) -> None:
        from opentelemetry.trace import StatusCode

        span = self._span or self._start(scope, trusted=False)
        span.update_name(scope.get("tidings.operation", "unknown"))
        span.set_attribute("http.response.status_code", self.status)
        if self.status >= 500:
            span.set_attribute("error.type", str(self.status))
            span.set_status(StatusCode.ERROR)
        span.end()

    def _start(self, scope: Scope, trusted: bool) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        context = telemetry.caller_s_context(scope["headers"]) if trusted else Context()
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        attributes = {"http.request.method": method, "url.scheme": scope.get("scheme", "http")}
        return self._tracer.start_span(method, context, SpanKind.SERVER, attributes, start_time=self._began)
