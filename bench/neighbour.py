"""neighbour_latency: how long an event takes beside a project that commits to its catalog without pause, against alone.

Changes of one bucket are written at the same pace in phases. In every other phase another project commits 1,000 operations for
20 subscriptions, each to a topic of its own, and again as soon as all messages of the last commit were taken. The events of a
commit are in order, so that each of its messages is a call. Both clocks are as in `latency`.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import psycopg
from google.cloud import pubsub_v1

from bench.latency import BUCKET, arriving, quantile, waits, write
from bench.measure import Bar, CannotMeasure, Figure, Progress, interleaved, ratios
from bench.stack import TOPIC, Stack, bucket, running
from tidings.access import api_keys
from tidings.access.projects import create_project
from tidings.events.arn import PubSubTopic
from tidings.local import topics

NAMES = ("neighbour_latency",)
_BAR = Bar("<=", 2)
_PER_SECOND = 10
_OPERATIONS = 1000
_SUBSCRIPTIONS = 20
_WAIT_SECONDS = 180.0


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:  # noqa: ARG001
    seconds, pairs = (10, 2) if quick else (20, 5)
    with running(progress, {"TIDINGS_BUCKET_EVENTING__PROJECTS": "*"}) as stack:
        topics.create(TOPIC.name)
        bucket(stack.ready, BUCKET, eventing=True)
        neighbour = _Neighbour(stack)
        with arriving() as arrivals:
            numbers, written = count(), 0
            late: dict[bool, list[float]] = {False: [], True: []}

            def phase(beside: bool) -> float:
                nonlocal written
                folder, events = f"phase-{next(numbers)}", seconds * _PER_SECOND
                written += events
                with neighbour.committing() if beside else _nobody():
                    write(stack, folder, events, _PER_SECOND)
                    arrivals.wait_for(written)
                stack.wait_until_delivered(_WAIT_SECONDS)
                taken = waits(stack, arrivals, folder)
                if len(taken) != events:
                    raise CannotMeasure(f"{len(taken)} of {events} changes arrived.")
                late[beside].append(quantile(taken, 0.95))
                return quantile(taken, 0.5)

            found = interleaved({"alone": partial(phase, False), "beside": partial(phase, True)}, pairs, 1, progress)
    middle = ", ".join(
        f"{name} {statistics.median(values):.3f} s ({min(values):.3f} to {max(values):.3f})" for name, values in found.items()
    )
    tails = f"p95 {statistics.median(late[False]):.3f} s alone, {statistics.median(late[True]):.3f} s beside"
    note = f"p50 from commit to arrival at {_PER_SECOND} writes a second: {middle}; {tails}; {neighbour.said()}"
    yield Figure.median("neighbour_latency", ratios(found["beside"], found["alone"]), _BAR, "", note)


@contextmanager
def _nobody() -> Iterator[None]:
    yield


class _Neighbour:
    """Another project, with a catalog and subscriptions to it."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._commits, self._seconds, self._loads = 0, 0.0, count()
        with psycopg.connect(stack.ready["database"], autocommit=True) as connection:
            project = create_project(connection, "neighbour")
            self._key = api_keys.create(connection, project).api_key
        publisher = pubsub_v1.PublisherClient()
        for number in range(_SUBSCRIPTIONS):
            topic = PubSubTopic(TOPIC.project, f"neighbour-{number}")
            publisher.create_topic(request={"name": topic.name})
            self._call("PUT", f"subscriptions/neighbour-{number}", {"destination": topic.arn})
        self._commit()
        stack.wait_until_delivered(_WAIT_SECONDS)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Commit after commit while the block lasts."""
        over, failures = threading.Event(), list[Exception]()

        def commit() -> None:
            try:
                while not over.is_set():
                    began = time.monotonic()
                    self._commit()
                    self._stack.wait_until_delivered(_WAIT_SECONDS)
                    self._commits, self._seconds = self._commits + 1, self._seconds + time.monotonic() - began
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=commit)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if failures:
            raise failures[0]

    def said(self) -> str:
        rate = self._commits * (_OPERATIONS + 1) * _SUBSCRIPTIONS / self._seconds
        of = f"{_OPERATIONS:,} operations for {_SUBSCRIPTIONS} subscriptions"
        return f"the neighbour's {self._commits} commits of {of} were delivered at {rate:,.0f} messages a second"

    def _commit(self) -> None:
        content = {"type": "ICEBERG_TABLE", "metadataLocation": "s3://elsewhere/x", "snapshotId": 1}
        load = next(self._loads)
        puts = [
            {"type": "PUT", "key": {"elements": ["sales", f"table-{load}-{number}"]}, "content": content}
            for number in range(_OPERATIONS)
        ]
        self._call("POST", "api/v1/trees/branch/main/commit", {"commitMeta": {"message": "load"}, "operations": puts})

    def _call(self, method: str, path: str, document: Any) -> None:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        url = f"{self._stack.ready['s3']}/-/catalog/{path}"
        request = urllib.request.Request(url, json.dumps(document).encode(), headers, method=method)  # noqa: S310 our own server
        with urllib.request.urlopen(request, timeout=_WAIT_SECONDS) as answer:  # noqa: S310 our own server
            answer.read()
