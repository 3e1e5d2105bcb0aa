"""Each attempt is a span in the trace of the call, by the messaging conventions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.trace import Tracer

from catalog_events import commit
from span_receiver import Seen, SpanReceiver, receiving
from tidings import telemetry
from tidings.events.catalog import CatalogEvent
from tidings.subscribers import EventListener, EventSubscriber, Registrar
from tidings.subscribers.finding import start_with
from tidings.subscribers.settings import SubscribersSettings
from tidings.telemetry import TelemetrySettings
from waiting import until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


class Subscribing(EventSubscriber):
    def __init__(self, act: Any) -> None:
        self.act = act

    def register(self, registrar: Registrar) -> None:
        listener = EventListener()
        listener.on_event = self.act  # type: ignore[method-assign]
        self.subscription = registrar.register(listener)


@pytest.fixture
def collected() -> Iterator[tuple[SpanReceiver, Tracer, Any]]:
    with receiving() as receiver:
        traces = telemetry.traces(TelemetrySettings(traces=receiver.url), "tidings-serve")
        assert traces is not None
        yield receiver, traces.tracer, traces.close


def spans_of(collected: tuple[SpanReceiver, Tracer, Any], act: Any, carried: str | None, **settings: Any) -> list[Seen]:
    receiver, tracer, close = collected
    subscriber = Subscribing(act)
    quick = {"backoff_seconds": 0.01, "drain_seconds": 0.1}
    dispatcher = start_with([("it", lambda: subscriber)], SubscribersSettings(**{**quick, **settings}), tracer)
    dispatcher.publish([commit(id="event-1")], carried)
    until(lambda: subscriber.subscription.status.queued == 0, "it is dealt with")
    dispatcher.stop()
    close()
    return sorted(receiver.spans, key=lambda span: span.began)


def test_each_attempt_is_a_child_of_the_call_and_a_failure_is_an_error(collected: Any) -> None:
    current: list[str] = []

    def act(event: CatalogEvent) -> None:
        current.append(f"{trace.get_current_span().get_span_context().span_id:016x}")
        if len(current) == 1:
            raise ConnectionError(f"no broker for {event.id}")

    first, second = spans_of(collected, act, f"00-{TRACE}-{PARENT}-01 vendor=1")
    assert {(span.trace, span.parent, span.name, span.kind) for span in (first, second)} == {
        (TRACE, PARENT, "process it", Span.SPAN_KIND_CONSUMER)
    }
    assert first.attributes == {
        "messaging.system": "tidings",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "catalog-events",
        "messaging.consumer.group.name": "it",
        "messaging.message.id": "event-1",
        "tidings.event_type": "COMMIT",
        "tidings.attempt": 1,
        "error.type": "ConnectionError",
    }
    assert (first.error, second.error) == ("no broker for event-1", None)
    assert second.attributes["tidings.attempt"] == 2
    assert current == [first.id, second.id], "it is the current span while the listener runs"


def test_a_call_that_hangs_has_a_span_that_ended_in_time(collected: Any) -> None:
    release = threading.Event()
    [span] = spans_of(collected, lambda _: release.wait(60), f"00-{TRACE}-{PARENT}-01", timeout_seconds=0.1)
    release.set()
    assert (span.attributes["error.type"], span.error) == ("timeout", "a call has not returned within 0.1 s")
    assert span.ended > span.began


def test_an_event_that_is_in_no_trace_has_no_span(collected: Any) -> None:
    assert spans_of(collected, lambda _: None, None) == []
