"""A configuration that changes all the time while thousands of objects are written: no change is judged by an old one."""

from __future__ import annotations

import bisect
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import psycopg
import pytest
from bench.requests import Signer, missing, receive

from arrivals import Collector
from conftest import Running, Say
from traffic import collecting
from waiting import until

WRITERS = 8
PAUSES = (0.02, 0.02, 0.02, 0.02, 2.0)
"""Between two configurations, over and over: some at once, then time enough for events to arrive."""
ALWAYS, SOMETIMES = PREFIXES = ("a/", "b/")
_REQUEST_ID = re.compile(rb"x-amz-request-id: ([0-9A-F]{16})", re.IGNORECASE)


@dataclass(frozen=True)
class Span:
    """When a request was sent and when its answer had come."""

    began: float
    ended: float


class Flips:
    """Puts one configuration after the other: those with an odd number want one prefix, those with an even one both."""

    def __init__(self, s3: Any, bucket: str, arn: str) -> None:
        self.spans: list[Span] = []
        self._s3, self._bucket, self._arn = s3, bucket, arn
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def put(self, *prefixes: str) -> None:
        rules = [
            {
                "Id": prefix,
                "TopicArn": self._arn,
                "Events": ["s3:ObjectCreated:*"],
                "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": prefix}]}},
            }
            for prefix in prefixes
        ]
        began = time.monotonic()
        self._s3.put_bucket_notification_configuration(
            Bucket=self._bucket, NotificationConfiguration={"TopicConfigurations": rules}
        )
        self.spans.append(Span(began, time.monotonic()))

    def _run(self) -> None:
        for number, pause in enumerate(cycle(PAUSES), start=2):
            if self._stop.wait(pause):
                return
            self.put(*(PREFIXES if number % 2 == 0 else (ALWAYS,)))

    def __enter__(self) -> Flips:
        self.put(ALWAYS)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def write(ready: dict[str, Any], bucket: str, writer: int, number: int, spans: dict[str, Span]) -> None:
    signer = Signer.of(ready)
    with signer.connect() as connection:
        for n in range(number):
            request = signer.put(bucket, f"{PREFIXES[n % 2]}{writer}-{n}")
            began, answer = time.monotonic(), b""
            connection.sendall(request)
            while missing(answer) != 0:
                answer += receive(connection)
            found = _REQUEST_ID.search(answer)
            assert found, answer
            spans[found[1].decode()] = Span(began, time.monotonic())


def stale(changes: Sequence[tuple[int, str]], writes: dict[str, Span], flips: Sequence[Span]) -> list[str]:
    """The writes whose configuration was older than the newest that had been answered before they were sent, or newer than the
    newest that had been sent before they were answered. Configuration n is the n-th flip, from 1."""
    ended, began = [flip.ended for flip in flips], [flip.began for flip in flips]
    return [
        request_id
        for config, request_id in changes
        if not bisect.bisect(ended, writes[request_id].began) <= config <= bisect.bisect(began, writes[request_id].ended)
    ]


@pytest.mark.parametrize("number", [2_000, pytest.param(20_000, marks=pytest.mark.chaos)])
def test_a_change_is_judged_by_the_configuration_committed_before_its_object(stack: Running, say: Say, number: int) -> None:
    with collecting(stack) as collector:
        _race(stack, collector, f"race-{number}", number, say)


def _race(stack: Running, collector: Collector, bucket: str, number: int, say: Say) -> None:
    arn, s3, writes = collector.listen(bucket), stack.s3(), dict[str, Span]()
    s3.create_bucket(Bucket=bucket)
    began = time.monotonic()
    with Flips(s3, bucket, arn) as flips:
        threads = [
            threading.Thread(target=write, args=(stack.ready, bucket, writer, number // WRITERS, writes))
            for writer in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    took = time.monotonic() - began
    with psycopg.connect(stack.ready["database"]) as connection:
        rows = connection.execute(
            "select config, request_id, key, coalesce(rules, '') from changes where bucket = %s", [bucket]
        ).fetchall()
        versions = connection.execute(
            "select config, rule::text from rule_versions where bucket = %s and filter_prefix = any(%s) order by config",
            [bucket, list(PREFIXES)],
        ).fetchall()
    assert len(writes) == number
    assert {row[1] for row in rows} == writes.keys()
    assert stale([row[:2] for row in rows], writes, flips.spans) == []
    (_, always), *others = versions
    sometimes = dict(others)  # a rule that was deleted and made again is another one
    assert [row for row in rows if row[3] != (always if row[2].startswith(ALWAYS) else sometimes.get(row[0], ""))] == []

    transmitted, wanted = ({row[1] for row in rows if row[3] in rules} for rules in ({always, *sometimes.values()}, {always}))
    until(lambda: wanted <= arrived(collector, bucket), "every event of the rule that stays")
    assert arrived(collector, bucket) <= transmitted, "an event that its configuration did not want"
    kept = len(arrived(collector, bucket) - wanted)
    say(
        f"{number} writes in {took:.0f} s against {len(flips.spans)} configurations: {len(transmitted)} transmitted, 0 stale;"
        f" of the rule that stays {len(wanted)} delivered, 0 lost;"
        f" of those that come and go {kept} of {len(transmitted - wanted)}"
    )


def arrived(collector: Collector, bucket: str) -> set[str]:
    return {arrival.request_id for arrival in collector.of(bucket)}
