"""A span for each attempt to hand over an event that belongs to a trace, by the messaging conventions of OpenTelemetry.

It is a child of the request that changed the catalog, and current while the listener is called: spans that the listener
makes are below it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidings import telemetry
from tidings.events.catalog import CatalogEvent

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


class Spans:
    """What makes spans, if anybody wants them."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer

    def attempt(self, subscriber: str, event: CatalogEvent, trace: str | None, attempt: int) -> Attempt:
        if self._tracer is None or not trace:
            return Attempt(None)
        from opentelemetry.trace import SpanKind

        traceparent, _, tracestate = trace.partition(" ")
        attributes: dict[str, str | int] = {
            "messaging.system": "tidings",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "catalog-events",
            "messaging.consumer.group.name": subscriber,
            "messaging.message.id": event.id,
            "tidings.event_type": event.type,
            "tidings.attempt": attempt + 1,
        }
        context = telemetry.context_of({"traceparent": traceparent, "tracestate": tracestate})
        return Attempt(self._tracer.start_span(f"process {subscriber}", context, SpanKind.CONSUMER, attributes))


class Attempt:
    """It ends once: when the listener returns, or when it is given up, whichever comes first."""

    def __init__(self, span: Span | None) -> None:
        self._span = span
        self._ending = threading.Lock()

    @contextmanager
    def current(self) -> Iterator[None]:
        if self._span is None:
            yield
            return
        from opentelemetry import context
        from opentelemetry.trace import set_span_in_context

        token = context.attach(set_span_in_context(self._span))
        try:
            yield
        finally:
            context.detach(token)

    def end(self, error: str = "", words: str = "") -> None:
        if self._span is None or not self._ending.acquire(blocking=False):
            return
        from opentelemetry.trace import StatusCode

        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(StatusCode.ERROR, words)
        self._span.end()
