"""The context of a trace: what is taken from callers, and what is handed on."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.trace import get_current_span
from pydantic import ValidationError

from tidings import telemetry
from tidings.telemetry import TelemetrySettings

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


def context(*headers: tuple[str, str]) -> tuple[str, str, int] | None:
    """Trace, span and flags of the context that a request with these headers brings."""
    found = get_current_span(
        telemetry.caller_s_context([(name.encode(), value.encode("latin-1")) for name, value in headers])
    ).get_span_context()
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}", int(found.trace_flags)) if found.is_valid else None


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (GOOD, 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"cc-{TRACE}-{SPAN}-01", 1),  # a later version begins in the same way
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", 1),
    ],
)
def test_a_traceparent_is_continued(value: str, flags: int) -> None:
    assert context(("host", "here"), ("traceparent", value)) == (TRACE, SPAN, flags)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",  # not in this version
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}0-{SPAN}-01",
        f"00-{TRACE}-{SPAN[:-1]}-01",
        f"00-{TRACE}-{SPAN}-0",
        f"00-{TRACE}-{SPAN}-0g",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"{GOOD},{GOOD}",
        f"00-{TRACE}-{SPAN}-01é",
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 600,
    ],
)
def test_a_bad_traceparent_is_as_none(value: str) -> None:
    assert context(("traceparent", value)) is None


def test_of_two_traceparents_neither_counts() -> None:
    assert context(("traceparent", GOOD), ("traceparent", f"00-{TRACE[::-1]}-{SPAN}-01")) is None


def carried(*states: str) -> dict[str, str]:
    headers = [(b"traceparent", GOOD.encode()), *((b"tracestate", state.encode()) for state in states)]
    return telemetry.carried(get_current_span(telemetry.caller_s_context(headers)).get_span_context())


def test_what_was_brought_is_handed_on() -> None:
    assert carried() == {"traceparent": GOOD}
    assert carried("a=1,b=2", "c=3") == {"traceparent": GOOD, "tracestate": "a=1,b=2,c=3"}


def test_a_bad_tracestate_does_not_take_the_traceparent_with_it() -> None:
    assert carried("no equals sign", "=") == {"traceparent": GOOD}
    assert carried(",".join(f"key{i}=v" for i in range(40))) == {"traceparent": GOOD}


def test_a_long_tracestate_loses_whole_entries_at_its_end() -> None:
    state = ",".join(f"vendor{i}={'x' * 90}" for i in range(8))
    kept = carried(state)["tracestate"]
    assert state.startswith(f"{kept},")
    assert 400 < len(kept) <= 512


def test_the_text_of_a_change_can_be_taken_apart_again() -> None:
    headers = [(b"traceparent", GOOD.encode()), (b"tracestate", b"a=1,b=x y")]
    text = telemetry.stored(get_current_span(telemetry.caller_s_context(headers)).get_span_context())
    parts = [text[start - 1 : start - 1 + most] for start, most in (telemetry.TRACEPARENT_AT, telemetry.TRACESTATE_AT)]
    assert parts == [GOOD, "a=1,b=x y"]


@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector.example/some/where", "https://collector.example/some/where"),
    ],
)
def test_a_collector_without_a_path_gets_spans_at_their_usual_place(given: str, endpoint: str) -> None:
    settings = TelemetrySettings(traces=given)
    assert settings.on
    assert settings.endpoint == endpoint


@pytest.mark.parametrize(
    "given", ["on", "", "127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://", "http://me:secret@collector"]
)
def test_where_spans_cannot_go_is_refused(given: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TelemetrySettings(traces=given)
    assert "secret" not in str(refused.value.errors(include_input=False))


def test_where_nobody_wants_spans_nothing_of_opentelemetry_is_loaded() -> None:
    program = (
        "import sys; from tidings.telemetry import *; import tidings.delivery.deliver, tidings.api.tracing;"
        "from tidings.delivery import tracing; assert traces(TelemetrySettings(), 'x') is None; tracing.prepare();"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
