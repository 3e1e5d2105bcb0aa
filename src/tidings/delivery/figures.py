"""The figures of the stream, for Prometheus: what each lane did, how far behind it is, and how long changes take.

A label names a lane or a rule by its number, never a project, a bucket or a key. Counts are this process's, since it
started; states and lags are read from the database when somebody asks.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_address

import psycopg
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from psycopg import Connection

from tidings.delivery import overview
from tidings.delivery.alerts import NAME as ALERT
from tidings.delivery.reports import Report
from tidings.delivery.sending import DELAYS
from tidings.delivery.unanswered import Unanswered
from tidings.errors import OperatorError

_log = logging.getLogger(__name__)
STATES = ("live", "behind", "ready", "backfill", "paused", "closed")


class Figures:
    """What the rounds of this process did. Threads add to it side by side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._delivered: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()
        self._dead: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self._unanswered: Counter[int] = Counter()
        self._delays = [0] * (len(DELAYS) + 1)
        self._delay = 0.0
        self._alerts = 0

    def add(self, reports: Iterable[Report], failed_filters: Iterable[Unanswered] = ()) -> None:
        with self._lock:
            for each in failed_filters:
                self._unanswered[each.rule] += each.times
            for report in reports:
                self._delivered[report.lane] += report.sent
                self._failed[report.lane] += report.cursor is not None and not report.late
                self._dead[report.lane] += len(report.dead)
                self._bytes[report.lane] += report.bytes
                for place, count in enumerate(report.delays):
                    self._delays[place] += count
                self._delay += report.delay

    def alerted(self) -> None:
        with self._lock:
            self._alerts += 1

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            yield from self._counts()
            histogram = HistogramMetricFamily(
                "tidings_delivery_seconds", "Seconds from the commit of a change to the word that its message was taken."
            )
            total, buckets = 0, []
            for upto, count in zip((*map(str, DELAYS), "+Inf"), self._delays, strict=True):
                total += count
                buckets.append((upto, total))
            histogram.add_metric([], buckets, self._delay)
            yield histogram
            alerts = CounterMetricFamily("tidings_alerts", "Alerts that were raised.", labels=["alert"])
            alerts.add_metric([ALERT], self._alerts)
            yield alerts

    def _counts(self) -> Iterator[Metric]:
        filters = "Events for which the filter of a subscription to a catalog had no answer."
        for name, words, counts, label in (
            ("tidings_lane_delivered", "Messages that the destination of a lane has taken.", self._delivered, "lane"),
            ("tidings_lane_failures", "Rounds and tries that a lane's destination has refused.", self._failed, "lane"),
            ("tidings_lane_dead_letters", "Messages of a lane that became dead letters.", self._dead, "lane"),
            ("tidings_lane_bytes", "Bytes of messages that the destination of a lane has taken.", self._bytes, "lane"),
            ("tidings_catalog_filter_unanswered", filters, self._unanswered, "rule"),
        ):
            family = CounterMetricFamily(name, words, labels=[label])
            for number, count in sorted(counts.items()):
                family.add_metric([str(number)], count)
            yield family


class _Lags:
    """States and lags, read when they are asked for. While the database does not answer they are left out."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect

    def collect(self) -> Iterator[Metric]:
        try:
            with self._connect() as connection:
                lanes = overview.lanes(connection)
        except (psycopg.Error, OperatorError):
            return
        state = GaugeMetricFamily("tidings_lane_state", "1 for the state that a lane is in.", labels=["lane", "state"])
        owed = GaugeMetricFamily("tidings_lane_lag_changes", "Changes that a lane is owed.", labels=["lane"])
        seconds = GaugeMetricFamily(
            "tidings_lane_lag_seconds", "Age of the oldest change that a lane is owed.", labels=["lane"]
        )
        for lane in lanes:
            for each in STATES:
                state.add_metric([str(lane["id"]), each], float(lane["state"] == each))
            owed.add_metric([str(lane["id"])], lane["owed"])
            seconds.add_metric([str(lane["id"])], lane["seconds"])
        yield from (state, owed, seconds)


def serve(figures: Figures, host: str, port: int, connect: Callable[[], Connection]) -> None:
    """Show them at this address, in a thread, as long as the process lives."""
    registry = CollectorRegistry()
    for collector in (figures, _Lags(connect)):
        registry.register(collector)
    start_http_server(port, host, registry)
    if not ip_address(host).is_loopback:
        words = "The stream's figures are shown on %s:%d to whoever reaches it: see TIDINGS_DELIVERY__METRICS_HOST."
        _log.warning(words, host, port)
