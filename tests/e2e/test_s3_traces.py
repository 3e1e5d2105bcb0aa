"""Spans of the API: whose trace they are in, what they say and what they keep to themselves. And a collector that is away."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from s3_server import Answer, Server, request, s3_server
from sqs_clients import sqs

from conftest import fresh_database
from span_receiver import SERVER, Seen, SpanReceiver, receiving
from tidings.local.postgres import Postgres
from tidings.local.processes import free_port
from waiting import until

PARENT = "00f067aa0ba902b7"
_traces = count(0x4BF92F3577B34DA6A3CE929D0E0E4736)


def new_trace() -> str:
    return f"{next(_traces):032x}"


@pytest.fixture(scope="module")
def receiver() -> Iterator[SpanReceiver]:
    with receiving() as running:
        yield running


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory, receiver: SpanReceiver) -> Iterator[Server]:
    """One process, so that spans arrive in their order; it begins no trace by itself."""
    url, folder = fresh_database(postgres, "s3_traces"), tmp_path_factory.mktemp("s3-traces")
    with s3_server(url, folder, **_traced(receiver.url), TIDINGS_TELEMETRY__SAMPLE_RATIO="0") as running:
        assert request(running, "PUT", "/my-bucket").status == 200
        yield running


def _traced(url: str) -> dict[str, str]:
    return {"TIDINGS_TELEMETRY__TRACES": url, "TIDINGS_API__WORKERS": "1"}


def call(server: Server, method: str, path: str, trace: str, flags: str = "01", **more: Any) -> Answer:
    """A request in the middle of a trace."""
    headers = {"traceparent": f"00-{trace}-{PARENT}-{flags}", **more.pop("headers", {})}
    return request(server, method, path, headers=headers, unsigned=("traceparent", "tracestate"), **more)


def span_of(receiver: SpanReceiver, trace: str) -> Seen:
    until(lambda: receiver.of(trace), "a span")
    [span] = receiver.of(trace)
    return span


def nothing_else(server: Server, receiver: SpanReceiver) -> None:
    """Wait until all spans of requests before this one must have come."""
    last = new_trace()
    assert call(server, "HEAD", "/my-bucket", last).status == 200
    span_of(receiver, last)


def test_a_request_continues_its_caller_s_trace_and_so_does_its_change(server: Server, receiver: SpanReceiver) -> None:
    trace = new_trace()
    state = {"tracestate": "vendor=one,other=two"}
    assert call(server, "PUT", "/my-bucket/secret-name.txt", trace, headers=state, body=b"hello").status == 200
    span = span_of(receiver, trace)
    assert (span.service, span.name, span.kind, span.parent, span.error) == (
        *("tidings-serve", "PutObject", SERVER, PARENT),
        None,
    )
    assert span.attributes == {
        "http.request.method": "PUT",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "tidings.bucket": "my-bucket",
    }
    assert 0 < span.ended - span.began < 60e9
    [stored] = server.query("select trace from changes where key = 'secret-name.txt'")
    assert stored == (f"00-{trace}-{span.id}-01 vendor=one,other=two",)


def test_a_caller_s_mistake_is_no_error_of_ours(server: Server, receiver: SpanReceiver) -> None:
    trace = new_trace()
    assert call(server, "GET", "/my-bucket/nothing-here", trace).status == 404
    span = span_of(receiver, trace)
    assert (span.name, span.attributes["http.response.status_code"], span.error) == ("GetObject", 404, None)


def test_a_trace_that_is_not_sampled_and_none_at_all_leave_nothing_behind(server: Server, receiver: SpanReceiver) -> None:
    trace = new_trace()
    assert call(server, "PUT", "/my-bucket/unsampled", trace, "00").status == 200
    assert call(server, "PUT", "/my-bucket/unsampled", "0" * 32).status == 200
    assert request(server, "PUT", "/my-bucket/unsampled").status == 200
    before = len(receiver.spans)
    nothing_else(server, receiver)
    assert receiver.of(trace) == []
    assert len(receiver.spans) == before + 1
    assert server.query("select distinct trace from changes where key = 'unsampled'") == [(None,)]


def test_a_stranger_s_request_is_not_in_the_trace_that_it_names(server: Server, receiver: SpanReceiver) -> None:
    trace = new_trace()
    forged = call(server, "PUT", "/my-bucket/forged", trace, after_signing=lambda fields: fields.update({"x-amz-date": "x"}))
    assert forged.status in (400, 403)
    nothing_else(server, receiver)
    assert receiver.of(trace) == []


def test_the_services_beside_s3_have_spans_too(server: Server, receiver: SpanReceiver) -> None:
    trace = new_trace()
    client = sqs(server)

    def in_trace(request: Any, **_: Any) -> None:
        request.headers["traceparent"] = f"00-{trace}-{PARENT}-01"

    client.meta.events.register("before-send.sqs", in_trace)
    client.list_queues()
    span = span_of(receiver, trace)
    assert (span.name, span.kind, span.parent) == ("sqs:ListQueues", SERVER, PARENT)


def test_requests_of_no_trace_begin_one_and_the_last_spans_are_sent_when_the_server_stops(
    postgres: Postgres, tmp_path: Path, receiver: SpanReceiver
) -> None:
    known = {span.trace for span in receiver.spans}
    with s3_server(fresh_database(postgres, "s3_traces_root"), tmp_path, **_traced(receiver.url)) as running:
        assert request(running, "PUT", "/other-bucket").status == 200
        assert request(running, "GET", "/other-bucket", after_signing=lambda fields: fields.pop("authorization")).status == 403
    mine = [span for span in receiver.spans if span.trace not in known]
    assert [(span.name, span.parent) for span in mine] == [("CreateBucket", ""), ("unknown", "")]
    assert "tidings.bucket" not in mine[1].attributes


@pytest.mark.parametrize("collector", ["gone", "silent"])
def test_a_collector_that_does_not_answer_costs_one_line_of_the_log(postgres: Postgres, tmp_path: Path, collector: str) -> None:
    with socket.socket() as listening:
        port = free_port()
        if collector == "silent":  # it takes connections and never says a word
            listening.bind(("127.0.0.1", 0))
            listening.listen(100)
            port = listening.getsockname()[1]
        settings = {**_traced(f"http://127.0.0.1:{port}"), "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2"}
        with s3_server(fresh_database(postgres, f"s3_traces_{collector}"), tmp_path, **settings) as running:
            assert request(running, "PUT", "/my-bucket").status == 200
            seconds: list[float] = []

            def put_until_it_is_said() -> bool:
                began = time.monotonic()
                assert request(running, "PUT", "/my-bucket/key", body=b"x").status == 200
                seconds.append(time.monotonic() - began)
                return "does not take spans" in running.log

            until(put_until_it_is_said, "a word about the collector")
            end = time.monotonic() + 3  # some more batches that fail
            while time.monotonic() < end:
                put_until_it_is_said()
            assert statistics.median(seconds) < 1  # it is some milliseconds; one try of the collector's takes 2 s
            stopping = time.monotonic()
        assert time.monotonic() - stopping < 15
        said = [line for line in running.log.splitlines() if "span" in line or "Traceback" in line or "telemetry" in line]
        assert len(said) == 1, running.log
