"""What is counted: by whom it is added up, what it is called, and that it costs next to nothing."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidings import metrics

Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def figures() -> Figures:
    families = text_string_to_metric_families(metrics.exposition([]).decode())
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples}


def count_some() -> None:
    metrics.decided("transmitted")
    metrics.decided("unmatched", 5)
    metrics.looked_up("redis")
    metrics.lookup_failed("redis")
    metrics.answered("PutObject", 204)


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_counts_of_all_processes_are_added_up_and_outlive_them(how: str) -> None:
    metrics.decided("transmitted", 1000)  # before there was anything to share: not theirs
    with warnings.catch_warnings(action="error"), metrics.shared():
        count_some()
        for _ in range(2):
            process = multiprocessing.get_context(how).Process(target=count_some)
            process.start()
            process.join()
            assert process.exitcode == 0
        seen = figures()
    assert seen[("tidings_transmit_decisions_total", (("decision", "transmitted"),))] == 3
    assert seen[("tidings_transmit_decisions_total", (("decision", "unmatched"),))] == 15
    assert seen[("tidings_rule_lookups_total", (("source", "redis"),))] == 3
    assert seen[("tidings_rule_lookup_failures_total", (("source", "redis"),))] == 3
    assert seen[("tidings_requests_total", (("operation", "PutObject"), ("status_class", "2xx")))] == 3


def test_what_has_not_happened_yet_is_shown_as_zero() -> None:
    with metrics.shared():
        seen = figures()
    for decision in ("transmitted", "unmatched", "not_enabled", "unread"):
        assert seen[("tidings_transmit_decisions_total", (("decision", decision),))] == 0
    for source in ("database", "redis"):
        assert seen[("tidings_rule_lookups_total", (("source", source),))] == 0
        assert seen[("tidings_rule_lookup_failures_total", (("source", source),))] == 0
    for outcome in ("sent", "refused"):
        assert seen[("tidings_test_events_total", (("outcome", outcome),))] == 0


def test_the_shared_folder_goes_with_the_one_who_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # as TMPDIR, which Python reads once
    with metrics.shared():
        metrics.tested("sent")
        assert [path.suffix for path in tmp_path.glob("*/*")] == [".db"]
    assert list(tmp_path.iterdir()) == []
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ


def _feed_a_subscriber(ready: Any, end: Any) -> None:
    metrics.handed("one", "dropped", 3)
    metrics.subscriber_is("one", 5, "open", 1)
    ready.set()
    end.wait(60)


def test_queues_of_subscribers_are_added_up_while_their_process_lives_and_counts_for_ever() -> None:
    spawning = multiprocessing.get_context("spawn")
    of_one = (("subscriber", "one"),)
    with metrics.shared():
        metrics.handed("one", "dropped", 1)
        metrics.subscriber_is("one", 2, "closed", 0)
        ready, end = spawning.Event(), spawning.Event()
        other = spawning.Process(target=_feed_a_subscriber, args=(ready, end))
        other.start()
        assert ready.wait(60)
        both = figures()
        other.kill()
        other.join()
        alone = figures()
    dropped = ("tidings_subscriber_events_total", (("outcome", "dropped"), *of_one))
    assert (both[dropped], alone[dropped]) == (4, 4)
    assert [each[("tidings_subscriber_queue_length", of_one)] for each in (both, alone)] == [7, 2]
    assert [each[("tidings_subscriber_breaker", of_one)] for each in (both, alone)] == [2, 0]


def test_counting_costs_microseconds() -> None:
    """It lies on the path of every PUT. About 1.5 µs where it was measured; the limit is for a busy machine."""
    rounds = []
    with metrics.shared():
        for _ in range(5):
            began = time.thread_time()
            for _ in range(10_000):
                metrics.decided("transmitted")
            rounds.append((time.thread_time() - began) / 10_000)
    assert min(rounds) < 20e-6
