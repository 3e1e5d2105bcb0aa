"""What is counted, declared once, and how it is read. No label names a project, a bucket, a key or an id.

The API has several processes, and whoever asks for the figures reaches one of them. So each process keeps its counts in a
file of one folder (`shared`), which outlives it, and the one that is asked adds up the files. Where there is no such folder,
in a command or a test, counts stay in their process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.multiprocess import MultiProcessCollector

__all__ = [
    "CONTENT_TYPE",
    "HANDED",
    "answered",
    "attempted",
    "decided",
    "exposition",
    "handed",
    "looked_up",
    "lookup_failed",
    "of_database",
    "shared",
    "subscriber_is",
    "tested",
]

Decision = Literal["transmitted", "unmatched", "not_enabled", "unread"]
Source = Literal["database", "redis"]
Tested = Literal["sent", "refused"]

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # the client library's own name; its worker processes inherit it
_registry = CollectorRegistry()

_DECISIONS = Counter(
    "tidings_transmit_decisions",
    "Changes by what was decided about them when they were written: transmitted to the stream; unmatched by any rule; of a "
    "project without eventing (not_enabled); or transmitted because the rules could not be read (unread).",
    ["decision"],
    registry=_registry,
)
_LOOKUPS = Counter("tidings_rule_lookups", "Lookups of a bucket's rules, by who answered.", ["source"], registry=_registry)
_FAILED_LOOKUPS = Counter(
    "tidings_rule_lookup_failures", "Lookups of a bucket's rules that failed, by who was asked.", ["source"], registry=_registry
)
_TESTS = Counter(
    "tidings_test_events",
    "Test events for new notification configurations, by whether the destination took them.",
    ["outcome"],
    registry=_registry,
)
_REQUESTS = Counter(
    "tidings_requests",
    "Answers of the API; operations of other services than S3 have the service in front. Requests that were refused before it "
    "was known what they ask for have the operation unknown.",
    ["operation", "status_class"],
    registry=_registry,
)
_HANDED = Counter(
    "tidings_subscriber_events",
    "Events of the catalog by what became of them at each subscriber: delivered; failed at the last attempt; rejected, because "
    "the breaker was open; dropped, because the queue was full; or filtered.",
    ["subscriber", "outcome"],
    registry=_registry,
)
_RETRIES = Counter(
    "tidings_subscriber_retries", "Attempts to hand over an event after the first one.", ["subscriber"], registry=_registry
)
_UNANSWERED = Counter(
    "tidings_subscriber_filter_failures",
    "Events for which a subscriber's filter failed; they are among the filtered ones.",
    ["subscriber"],
    registry=_registry,
)
_ATTEMPTS = Histogram(
    "tidings_subscriber_attempt_seconds", "How long listeners took for one event.", ["subscriber"], registry=_registry
)
_QUEUED = Gauge(
    "tidings_subscriber_queue_length",
    "Events that wait for a subscriber.",
    ["subscriber"],
    registry=_registry,
    multiprocess_mode="livesum",
)
_BREAKER = Gauge(
    "tidings_subscriber_breaker",
    "The breaker of a subscriber, in the process where it is worst: 0 closed, 1 half open, 2 open.",
    ["subscriber"],
    registry=_registry,
    multiprocess_mode="livemax",
)
_HUNG = Gauge(
    "tidings_subscriber_hung_calls",
    "Calls of a listener that have not returned in time.",
    ["subscriber"],
    registry=_registry,
    multiprocess_mode="livesum",
)
HANDED = ("delivered", "failed", "rejected", "dropped", "filtered")
_STATES = {"closed": 0, "half-open": 1, "open": 2}
_OF_SUBSCRIBERS = (_HANDED, _RETRIES, _UNANSWERED, _ATTEMPTS, _QUEUED, _BREAKER, _HUNG)
_ALWAYS_SHOWN = ((_DECISIONS, Decision), (_LOOKUPS, Source), (_FAILED_LOOKUPS, Source), (_TESTS, Tested))


def decided(decision: Decision, changes: int = 1) -> None:
    """What became of changes when they were written."""
    _child(_DECISIONS, decision).inc(changes)


def looked_up(source: Source) -> None:
    """The rules of a bucket were asked for, and this source answered."""
    _child(_LOOKUPS, source).inc()


def lookup_failed(source: Source) -> None:
    _child(_FAILED_LOOKUPS, source).inc()


def tested(outcome: Tested) -> None:
    """A test event was sent to one destination."""
    _child(_TESTS, outcome).inc()


def answered(operation: str, status: int) -> None:
    """A request was answered. The operation is one of a fixed set of names, never what a caller wrote."""
    _child(_REQUESTS, operation, f"{status // 100}xx").inc()


def handed(subscriber: str, outcome: str, events: int) -> None:
    """What became of events at a subscriber: one of HANDED. Or how many were `retried`, or left its filter `unanswered`."""
    if outcome in HANDED:
        _child(_HANDED, subscriber, outcome).inc(events)
    else:
        _child({"retried": _RETRIES, "unanswered": _UNANSWERED}[outcome], subscriber).inc(events)


def attempted(subscriber: str, seconds: float) -> None:
    """A listener was called, and came back."""
    _child(_ATTEMPTS, subscriber).observe(seconds)


def subscriber_is(subscriber: str, queued: int, breaker: str, hung: int) -> None:
    """How a subscriber is doing in this process."""
    _child(_QUEUED, subscriber).set(queued)
    _child(_BREAKER, subscriber).set(_STATES[breaker])
    _child(_HUNG, subscriber).set(hung)


_Kind = TypeVar("_Kind", Counter, Gauge, Histogram)


@cache
def _made(metric: Any, *labels: str) -> Any:
    # Made when it is first needed: how counts are kept is only known once `shared` was called, or was not.
    return metric.labels(*labels)


def _child(metric: _Kind, *labels: str) -> _Kind:
    child: _Kind = _made(metric, *labels)
    return child


@contextmanager
def shared() -> Iterator[None]:
    """Add up the counts of this process and of those it starts inside. Call it before they start, whatever was imported."""
    folder = tempfile.mkdtemp(prefix="tidings-metrics-")
    _forget()
    os.environ[_FOLDER] = folder
    values.ValueClass = values.MultiProcessValue()
    for counter, labels in _ALWAYS_SHOWN:
        for label in get_args(labels):
            _child(counter, label)
    try:
        yield
    finally:
        del os.environ[_FOLDER]
        values.ValueClass = values.MutexValue
        _forget()
        shutil.rmtree(folder, ignore_errors=True)


def _forget() -> None:
    _made.cache_clear()
    for metric in (_DECISIONS, _LOOKUPS, _FAILED_LOOKUPS, _TESTS, _REQUESTS, *_OF_SUBSCRIBERS):
        metric.clear()


def of_database(configurations: int, lanes: Mapping[str, int], oldest_behind_seconds: float) -> list[Metric]:
    """The gauges. They are read when they are asked for, so no process has a value of its own that could grow old."""
    by_state = GaugeMetricFamily("tidings_lanes", "Lanes by state: live, behind, ready, paused, closed.", labels=["state"])
    for state, number in lanes.items():
        by_state.add_metric([state], number)
    return [
        GaugeMetricFamily("tidings_notification_configurations", "Active notification configurations.", configurations),
        by_state,
        GaugeMetricFamily(
            "tidings_lane_oldest_behind_seconds",
            "Seconds since the lane that is behind for longest fell behind; 0 if none is.",
            oldest_behind_seconds,
        ),
    ]


def exposition(gauges: Iterable[Metric]) -> bytes:
    """All counts, and these gauges, in the Prometheus text format."""
    registry = CollectorRegistry()
    folder = os.environ.get(_FOLDER)
    if folder:
        _bury(Path(folder))
    counts = MultiProcessCollector(None, folder) if folder else _registry
    registry.register(_Families([*counts.collect(), *gauges]))
    return generate_latest(registry)


def _bury(folder: Path) -> None:
    """What a process that was killed had in its queues is gone with it; its counts stay."""
    for file in folder.glob("gauge_live*_*.db"):
        if not psutil.pid_exists(int(file.stem.rpartition("_")[2])):
            file.unlink(missing_ok=True)


class _Families:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
