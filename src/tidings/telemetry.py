"""Spans for OpenTelemetry, and the context that ties them together (W3C Trace Context).

OpenTelemetry's SDK is imported only where spans are wanted. The provider is ours, not the process's global one: libraries that
look for that find none, and stay quiet.

Spans travel by OTLP over HTTP, OpenTelemetry's own default. Its other way, gRPC, would cost each process of the API 20 MB more.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext, Tracer

log = logging.getLogger(__name__)

OFF = "off"
SEND_SECONDS = 0.5
"""Spans wait this long for others to be sent with. A process that is killed takes those with it."""
CLOSE_SECONDS = 2.0
"""A process that ends waits this long for its last spans to be taken."""
_WAITING = 10_000
"""Spans that wait to be sent at most: two full rounds. What comes on top, because the collector is slow or away, is dropped."""
_TRACEPARENT = 55
_TRACESTATE = 512
"""Characters that W3C asks everybody to pass on; what a caller's tracestate has beyond that is left out, entry by entry."""
_COLLECTOR_PATH = "/v1/traces"


class TelemetrySettings(BaseModel, frozen=True, extra="forbid"):
    """Traces."""

    traces: str = Field(
        OFF, description="where spans go: off, or the URL of a collector that takes OTLP over HTTP (http://127.0.0.1:4318)"
    )
    sample_ratio: float = Field(
        1.0, ge=0, le=1, description="of how many requests that bring no trace of their own one begins: from 0, none, to 1, all"
    )

    @field_validator("traces")
    @classmethod
    def _is_off_or_a_url(cls, value: str) -> str:
        if value == OFF:
            return value
        url = urlsplit(value)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"{value[:200]!r} is neither off nor a URL such as http://127.0.0.1:4318")
        if url.username or url.password:
            raise ValueError("a URL with a password would be seen in logs: put it in the variable OTEL_EXPORTER_OTLP_HEADERS")
        return value

    @property
    def on(self) -> bool:
        return self.traces != OFF

    @property
    def endpoint(self) -> str:
        """A URL without a path is the collector's, and spans have a place of their own there."""
        url = urlsplit(self.traces)
        return self.traces if url.path.strip("/") else url._replace(path=_COLLECTOR_PATH).geturl()


@dataclass(frozen=True)
class Traces:
    """What makes spans, and sends them from a thread of its own."""

    tracer: Tracer
    provider: TracerProvider
    exporter: SpanExporter

    def close(self) -> None:
        """Send what is left, unless that takes too long."""
        last = threading.Thread(target=self.provider.shutdown, daemon=True)
        last.start()
        last.join(CLOSE_SECONDS)
        if last.is_alive():
            self.exporter.shutdown()


def traces(settings: TelemetrySettings, service: str) -> Traces | None:
    """For one process, after it was forked; None where nobody wants spans."""
    if not settings.on:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    # It warns of what callers send, in their words, and for every batch that is not taken. We say the latter once.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    class Telling(SpanExporter):
        """Says once that the collector does not take spans, and once that it does again."""

        def __init__(self) -> None:
            self._exporter = OTLPSpanExporter(endpoint=settings.endpoint)
            self._well = True

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = self._exporter.export(spans)
            well = result is SpanExportResult.SUCCESS
            if well != self._well:
                words = "takes spans again" if well else "does not take spans; they are dropped until it does"
                log.log(logging.INFO if well else logging.WARNING, "the collector at %s %s", settings.traces, words)
            self._well = well
            return result

        def shutdown(self) -> None:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]

    exporter = Telling()
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
        resource=Resource.create({"service.name": service, "process.pid": os.getpid()}),
        shutdown_on_exit=False,  # that would wait half a minute for a collector that is away
    )
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=_WAITING, schedule_delay_millis=SEND_SECONDS * 1000)
    )
    return Traces(provider.get_tracer("tidings"), provider, exporter)


def context_of(carrier: Mapping[str, str | list[str]]) -> Context:
    """The context that `traceparent` and `tracestate` tell of; an empty one where they are missing or wrong."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(carrier)


def caller_s_context(headers: Sequence[tuple[bytes, bytes]]) -> Context:
    """The context that a request brings. Of two that say different things neither counts."""
    found: dict[str, list[str]] = {"traceparent": [], "tracestate": []}
    for name, value in headers:
        if name in (b"traceparent", b"tracestate"):
            found[name.decode()].append(value.decode("latin-1"))
    return context_of(found if len(found["traceparent"]) == 1 else {})


def carried(context: SpanContext) -> dict[str, str]:
    """A span's context as headers or attributes, for whoever continues the trace."""
    flags = f"{int(context.trace_flags) & 0xFF:02x}"
    found = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags}"}
    state = context.trace_state.to_header()
    while len(state) > _TRACESTATE:
        state = state.rpartition(",")[0]
    return found | {"tracestate": state} if state else found


def stored(context: SpanContext) -> str:
    """The same as one text, as a change has it: the traceparent, and behind a space the tracestate if there is one."""
    return " ".join(carried(context).values())


TRACEPARENT_AT, TRACESTATE_AT = (1, _TRACEPARENT), (_TRACEPARENT + 2, _TRACESTATE)
"""Where they are in that text: from which character, counted from 1, and how many at most."""
