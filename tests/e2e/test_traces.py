"""A trace through the whole path: from the caller's span over the API's and the stream's to the consumer's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from google.pubsub_v1 import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from grpc import insecure_channel

from arrivals import PROJECT, Arrival, Collector
from conftest import Running, running_stack
from span_receiver import PRODUCER, SERVER, Seen, SpanReceiver, receiving
from traffic import Caller, collecting, send_events
from waiting import until

pytestmark = pytest.mark.chaos  # a stack of its own, for which make test has no time

PARENT = "00f067aa0ba902b7"


def put(ready: dict[str, Any], path: str, **headers: str) -> str:
    """Put an object with these headers, which are not signed; returns the id of the request."""
    caller = Caller(ready)
    send = caller.send
    caller.send = lambda method, target, body, signed: send(method, target, body, {**signed, **headers})  # type: ignore[method-assign]
    answer = caller.call("PUT", path, b"x")
    caller.close()
    assert answer.status == 200, answer.body
    return answer.request_id


def spans(receiver: SpanReceiver, trace: str, number: int) -> list[Seen]:
    """The API's span and those of the messages, when there are so many."""
    until(lambda: len(receiver.of(trace)) >= number, f"{number} spans of trace {trace}")
    found = sorted(receiver.of(trace), key=lambda span: span.began)
    assert len(found) == number, found
    return found


def test_one_trace_goes_from_a_request_to_its_message_and_a_collector_that_dies_hurts_nobody(tmp_path: Path) -> None:
    with receiving() as receiver:
        settings = {"TIDINGS_TELEMETRY__TRACES": receiver.url, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2"}
        with running_stack(tmp_path, **settings) as stack, collecting(stack) as collector:
            send_events(stack, collector, "traced")
            the_caller_s_trace_is_continued(stack, receiver, collector)
            a_request_of_no_trace_begins_one(stack, receiver, collector)
            a_trace_that_is_not_sampled_leaves_nothing(stack, receiver, collector)
            every_try_is_a_span(stack, receiver)
            receiver.close()
            events_arrive_without_a_collector(stack, collector)
        for name in ("api", "stream"):
            log = (stack.data / "logs" / f"{name}.log").read_text()
            assert log.count("does not take spans") <= 12, log  # once for each process that sends spans
            assert "opentelemetry" not in log, log
            assert "export" not in log, log


def the_caller_s_trace_is_continued(stack: Running, receiver: SpanReceiver, collector: Collector) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-{PARENT}-01", "tracestate": "vendor=one"}
    arrival = collector.event(put(stack.ready, "/traced/photos/one.jpg", **headers))
    request, message = spans(receiver, trace, 2)
    assert (request.service, request.kind, request.name, request.parent) == ("tidings-serve", SERVER, "PutObject", PARENT)
    assert (message.service, message.kind, message.name, message.parent) == (
        *("tidings-stream", PRODUCER, "send traced"),
        request.id,
    )
    assert message.attributes == {
        "messaging.system": "gcp_pubsub",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "traced",
        "messaging.message.id": arrival.id,
        "messaging.message.body.size": message.attributes["messaging.message.body.size"],
        "tidings.destination": f"arn:gcp:pubsub::{PROJECT}:traced",
    }
    assert arrival.attributes == {
        "id": arrival.id,
        "sequencer": arrival.attributes["sequencer"],
        "traceparent": f"00-{trace}-{message.id}-01",
        "tracestate": "vendor=one",
    }


def a_request_of_no_trace_begins_one(stack: Running, receiver: SpanReceiver, collector: Collector) -> None:
    arrival = collector.event(put(stack.ready, "/traced/photos/two.jpg"))
    trace, parent = _of(arrival)
    request, message = spans(receiver, trace, 2)
    assert (request.parent, message.parent, message.id) == ("", request.id, parent)


def a_trace_that_is_not_sampled_leaves_nothing(stack: Running, receiver: SpanReceiver, collector: Collector) -> None:
    trace = "5bf92f3577b34da6a3ce929d0e0e4736"
    arrival = collector.event(put(stack.ready, "/traced/photos/three.jpg", traceparent=f"00-{trace}-{PARENT}-00"))
    assert set(arrival.attributes) == {"id", "sequencer"}
    assert receiver.of(trace) == []


def every_try_is_a_span(stack: Running, receiver: SpanReceiver) -> None:
    trace = "6bf92f3577b34da6a3ce929d0e0e4736"
    topic = f"projects/{PROJECT}/topics/traced"
    client = PublisherClient(transport=PublisherGrpcTransport(channel=insecure_channel(stack.ready["pubsub"])))
    client.delete_topic(topic=topic)
    put(stack.ready, "/traced/photos/four.jpg", traceparent=f"00-{trace}-{PARENT}-01")
    until(lambda: any("tidings.attempt" in span.attributes for span in receiver.of(trace, PRODUCER)), "a second try")
    client.create_topic(name=topic)
    until(lambda: any(span.error is None for span in receiver.of(trace, PRODUCER)), "a try that went well")
    *failed, last = sorted(receiver.of(trace, PRODUCER), key=lambda span: span.began)
    assert len({span.id for span in failed}) == len(failed)
    assert all(span.error and "NOT_FOUND" in span.error for span in failed), failed
    assert {span.attributes["error.type"] for span in failed} == {"wait"}
    attempts = [span.attributes.get("tidings.attempt", 1) for span in (*failed, last)]
    assert attempts == sorted(attempts)
    assert (attempts[0], attempts[-1] > 2) == (1, True)
    [request] = receiver.of(trace, SERVER)
    assert {span.parent for span in (*failed, last)} == {request.id}


def events_arrive_without_a_collector(stack: Running, collector: Collector) -> None:
    send_events(stack, collector, "untold")
    for number in range(5):
        arrival = collector.event(put(stack.ready, f"/untold/{number}"))
        assert "traceparent" in arrival.attributes
    logs = [stack.data / "logs" / f"{name}.log" for name in ("api", "stream")]
    until(lambda: all("does not take spans" in log.read_text() for log in logs), "a word about the collector")


def _of(arrival: Arrival) -> tuple[str, str]:
    _, trace, parent, flags = arrival.attributes["traceparent"].split("-")
    assert int(flags, 16) & 1, "sampled"
    return trace, parent


def test_where_traces_are_off_a_caller_s_trace_goes_nowhere(stack: Running) -> None:
    with collecting(stack) as collector:
        send_events(stack, collector, "untraced")
        trace = "7bf92f3577b34da6a3ce929d0e0e4736"
        arrival = collector.event(put(stack.ready, "/untraced/one.jpg", traceparent=f"00-{trace}-{PARENT}-01"))
        assert set(arrival.attributes) == {"id", "sequencer"}
    with psycopg.connect(stack.ready["database"]) as connection:
        assert connection.execute("select trace from changes where bucket = 'untraced'").fetchall() == [(None,)]
