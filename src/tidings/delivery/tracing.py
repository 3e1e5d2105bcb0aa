"""A span for each message that is sent and belongs to a trace, by the messaging conventions of OpenTelemetry.

It is a child of the request that made the change. The message carries the span's context on, so that a consumer's span is a
child of this one; where no span is recorded, it carries the change's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from tidings import settings, telemetry
from tidings.destinations import Destination
from tidings.events.messages import Message, Outcome, Verdict

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

SERVICE = "tidings-stream"

_SYSTEMS = {"pubsub": "gcp_pubsub", "sns": "aws.sns", "sqs": "aws_sqs"}
"""What the conventions call them; others are called by the service in their ARN."""


def traced(destination: Destination, arn: str, tries: int = 0) -> Destination:
    """The destination, with spans where somebody wants them. `tries` is how often its lane has failed in a row just before."""
    tracer = _tracer(os.getpid())
    return destination if tracer is None else Traced(destination, tracer, arn, tries)


def prepare() -> None:
    """Load what spans need, if they are wanted, before the first message has to wait for it."""
    _tracer(os.getpid())


@lru_cache(maxsize=1)
def _tracer(_pid: int) -> Tracer | None:
    """A process has one, made on first use. Spark ends its workers without a word, so nothing is sent at the end."""
    made = telemetry.traces(settings.load().telemetry, SERVICE)
    return made.tracer if made else None


class Traced:
    """A destination around another one."""

    def __init__(self, destination: Destination, tracer: Tracer, arn: str, tries: int = 0) -> None:
        self.max_batch, self.max_bytes, self.ahead = destination.max_batch, destination.max_bytes, destination.ahead
        self._destination = destination
        self._tracer = tracer
        self._tries = tries
        parts = arn.split(":")
        self._name = f"send {parts[5]}"
        self._attributes = {
            "messaging.system": _SYSTEMS.get(parts[2], parts[2]),
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": parts[5],
            "tidings.destination": arn,
        }

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        spans = [self._started(message) for message in messages]
        self._tries = 0  # a lane is tried with the first ones that it sends; for the others it is the first time
        outcomes: list[Outcome] = []
        try:
            outcomes = await self._destination.send(
                [_carrying(m, span) for m, span in zip(messages, spans, strict=True)], timeout
            )
        finally:
            for i, span in enumerate(spans):
                if span is not None:
                    _end(span, outcomes[i] if i < len(outcomes) else None)
        return outcomes

    async def close(self) -> None:
        await self._destination.close()

    def _started(self, message: Message) -> Span | None:
        from opentelemetry.trace import SpanKind

        if "traceparent" not in message.attributes:
            return None
        attributes = self._attributes | {"messaging.message.id": message.id}
        span = self._tracer.start_span(self._name, telemetry.context_of(message.attributes), SpanKind.PRODUCER, attributes)
        span.set_attribute("messaging.message.body.size", len(message.body))
        if self._tries:
            span.set_attribute("tidings.attempt", self._tries + 1)
        if "replay" in message.attributes:
            span.set_attribute("tidings.replay", True)
        return span


def _carrying(message: Message, span: Span | None) -> Message:
    if span is None or not span.is_recording():
        return message
    return replace(message, attributes=message.attributes | telemetry.carried(span.get_span_context()))


def _end(span: Span, outcome: Outcome | None) -> None:
    from opentelemetry.trace import StatusCode

    if outcome is None:
        span.set_attribute("error.type", "_OTHER")
        span.set_status(StatusCode.ERROR, "no outcome")
    elif outcome.verdict is not Verdict.SENT:
        span.set_attribute("error.type", outcome.verdict.value)
        span.set_status(StatusCode.ERROR, outcome.reason)
    span.end()
