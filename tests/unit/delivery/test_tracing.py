"""Spans of messages: who is their parent, what they say, and what the message carries on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tidings.delivery.tracing import Traced
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.testing import MemoryDestination

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
PUBSUB = "arn:gcp:pubsub::my-project:my-topic"
ACCOUNT = "12e9f7fe-0e0a-48a8-b16b-870baac1441b"


class Watched:
    """A destination in memory, and the spans of what is sent to it."""

    def __init__(self, arn: str = PUBSUB, tries: int = 0, destination: MemoryDestination | None = None) -> None:
        self.inner = destination or MemoryDestination()
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.traced = Traced(self.inner, provider.get_tracer("test"), arn, tries)

    def send(self, *messages: Message) -> list[Outcome]:
        return asyncio.run(self.traced.send(messages, 5))

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()


def message(id_: str = "m1", **attributes: str) -> Message:
    return Message(id_, b"12345", {"id": id_, "sequencer": "01", **attributes})


def traceparent(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"


def test_the_span_is_a_child_of_the_change_and_the_message_carries_the_span() -> None:
    watched = Watched()
    assert watched.send(message(traceparent=SAMPLED, tracestate="a=1")) == [SENT]
    [span] = watched.spans
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert (span.kind, span.name, span.status.status_code) == (SpanKind.PRODUCER, "send my-topic", StatusCode.UNSET)
    assert span.attributes == {
        "messaging.system": "gcp_pubsub",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "my-topic",
        "messaging.message.id": "m1",
        "messaging.message.body.size": 5,
        "tidings.destination": PUBSUB,
    }
    [sent] = watched.inner.received
    assert sent == message(traceparent=traceparent(span), tracestate="a=1")


def test_a_message_of_no_trace_is_sent_as_it_is() -> None:
    watched = Watched()
    assert watched.send(message("m1"), message("m2", traceparent=SAMPLED), message("m3")) == [SENT] * 3
    assert [each.id for each in watched.inner.received] == ["m1", "m2", "m3"]
    assert [watched.inner.received[i] for i in (0, 2)] == [message("m1"), message("m3")]
    assert [span.attributes["messaging.message.id"] for span in watched.spans if span.attributes] == ["m2"]


@pytest.mark.parametrize("carried", [UNSAMPLED])
def test_where_no_span_is_recorded_the_message_carries_what_its_change_has(carried: str) -> None:
    watched = Watched()
    watched.send(message(traceparent=carried))
    assert (watched.inner.received, list(watched.spans)) == ([message(traceparent=carried)], [])


def test_each_message_has_a_span_of_its_own() -> None:
    watched = Watched()
    watched.send(message("m1", traceparent=SAMPLED), message("m2", traceparent=SAMPLED))
    assert [each.attributes["traceparent"] for each in watched.inner.received] == [traceparent(span) for span in watched.spans]
    assert len({traceparent(span) for span in watched.spans}) == 2


@pytest.mark.parametrize("verdict", [Verdict.RETRY, Verdict.WAIT, Verdict.REJECTED])
def test_a_failure_is_the_span_s_error(verdict: Verdict) -> None:
    outcome = Outcome(verdict, "NOT_FOUND: no such topic", after=3)
    watched = Watched(destination=MemoryDestination(lambda each: outcome if each.id == "bad" else SENT))
    assert watched.send(message("good", traceparent=SAMPLED), message("bad", traceparent=SAMPLED)) == [SENT, outcome]
    good, bad = watched.spans
    assert good.status.status_code is StatusCode.UNSET
    assert good.attributes is not None
    assert bad.attributes is not None
    assert "error.type" not in good.attributes
    assert (bad.status.status_code, bad.status.description) == (StatusCode.ERROR, "NOT_FOUND: no such topic")
    assert bad.attributes["error.type"] == verdict.value


def test_a_destination_that_raises_leaves_no_span_open() -> None:
    def broken(_: Message) -> Outcome:
        raise RuntimeError("a defect")

    watched = Watched(destination=MemoryDestination(broken))
    with pytest.raises(RuntimeError, match="a defect"):
        watched.send(message(traceparent=SAMPLED))
    [span] = watched.spans
    assert span.status.status_code is StatusCode.ERROR


def test_the_message_that_a_failed_lane_is_tried_with_says_which_attempt_it_is() -> None:
    watched = Watched(tries=2)
    watched.send(message("m1", traceparent=SAMPLED))
    watched.send(message("m2", traceparent=SAMPLED))
    attempts = [(span.attributes or {}).get("tidings.attempt") for span in watched.spans]
    assert attempts == [3, None]


def test_a_replay_says_so() -> None:
    watched = Watched()
    watched.send(message(traceparent=SAMPLED, replay="true"))
    assert (watched.spans[0].attributes or {})["tidings.replay"] is True


@pytest.mark.parametrize(
    ("arn", "system", "name"),
    [
        ("arn:tidings:kafka::main:my-events", "kafka", "my-events"),
        (f"arn:aws:sns:us-east-1:{ACCOUNT}:my-topic:0b41ba0c-3b1a-4b32-9f0e-5ad8a7f0c9a1", "aws.sns", "my-topic"),
        ("arn:aws:sns:us-east-1:123456789012:my-topic", "aws.sns", "my-topic"),
        (f"arn:aws:sqs:us-east-1:{ACCOUNT}:my-queue", "aws_sqs", "my-queue"),
        ("arn:tidings:log:::here", "log", "here"),
    ],
)
def test_destinations_have_the_names_of_the_conventions(arn: str, system: str, name: str) -> None:
    watched = Watched(arn)
    watched.send(message(traceparent=SAMPLED))
    [span] = watched.spans
    assert span.attributes is not None
    assert (span.name, span.attributes["messaging.system"], span.attributes["messaging.destination.name"]) == (
        f"send {name}",
        system,
        name,
    )


def test_limits_are_those_of_the_destination_and_closing_closes_it() -> None:
    watched = Watched()
    limits = (watched.traced.max_batch, watched.traced.max_bytes, watched.traced.ahead)
    assert limits == (MemoryDestination.max_batch, MemoryDestination.max_bytes, MemoryDestination.ahead)
    asyncio.run(watched.traced.close())
    assert watched.inner.closed
