"""A collector that takes OTLP over HTTP, and remembers the spans: decoded with OpenTelemetry's own definitions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

import canary

SERVER, PRODUCER = Span.SPAN_KIND_SERVER, Span.SPAN_KIND_PRODUCER


@dataclass(frozen=True)
class Seen:
    """One span as it arrived."""

    service: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    error: str | None
    """What its status says, if that is an error."""
    began: int
    ended: int


class SpanReceiver:
    def __init__(self, port: int = 0) -> None:
        self.spans: list[Seen] = []
        self.requests = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests += 1
                if self.path != "/v1/traces":
                    self.send_error(404)
                    return
                canary.seen(body)
                receiver.spans += _seen(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def of(self, trace: str, kind: int | None = None) -> list[Seen]:
        return [span for span in list(self.spans) if span.trace == trace and kind in (None, span.kind)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _seen(request: ExportTraceServiceRequest) -> Iterator[Seen]:
    for resource in request.resource_spans:
        service = _plain(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                error = span.status.message if span.status.code == Status.STATUS_CODE_ERROR else None
                ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                times = (span.start_time_unix_nano, span.end_time_unix_nano)
                yield Seen(service, span.name, span.kind, *ids, _plain(span.attributes), error, *times)


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def receiving() -> Iterator[SpanReceiver]:
    receiver = SpanReceiver()
    try:
        yield receiver
    finally:
        receiver.close()
