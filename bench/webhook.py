"""webhooks: how many events a second reach one endpoint that takes 20 ms for each.

A rule leads to a topic of ours with one subscription over HTTP, with raw delivery: one POST for each event. The changes are
there when the clock starts. One sender in sequence would do 50 a second; the bar is twenty times that.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from bench import endpoint
from bench.measure import Bar, CannotMeasure, Figure, Progress, cpu_seconds, said
from bench.streaming import Streaming, streaming
from tidings import settings as settings_module
from tidings.events.arn import SnsTopic

NAMES = ("webhooks",)
_BAR = Bar(">=", 1000)
_ENDPOINT_SECONDS = 0.02


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:  # noqa: ARG001
    rows, repeats = (3_000, 3) if quick else (10_000, 5)
    with ExitStack() as open_:
        stream = open_.enter_context(streaming(progress))
        hook = open_.enter_context(endpoint.running(_ENDPOINT_SECONDS))
        stream.environment |= {"TIDINGS_OUTGOING__ALLOW": '["127.0.0.0/8"]', "TIDINGS_OUTGOING__ALLOW_HTTP": "true"}
        _subscribe(stream, hook.url)
        folder = Path(open_.enter_context(TemporaryDirectory(prefix="tidings-bench-")))
        open_.enter_context(stream.stream(folder, progress))
        stream.warm_up("hook-", 100, progress)
        _drain(stream, rows)
        rates: list[float] = []
        spent: Counter[str] = Counter()
        posts, messages, _ = hook.taken()
        for number in range(repeats):
            progress(f"repeat {number + 1} of {repeats}")
            rate, used = _drain(stream, rows)
            rates.append(rate)
            spent += used
        all_posts, all_messages, most = hook.taken()
    if all_messages - messages != rows * repeats:
        raise CannotMeasure(f"{all_messages - messages} of {rows * repeats} events reached the endpoint.")
    twice = (all_posts - posts) / (rows * repeats) - 1
    note = (
        f"{rows:,} events a run, an endpoint that takes {_ENDPOINT_SECONDS * 1000:g} ms; one sender in sequence would do"
        f" {1 / _ENDPOINT_SECONDS:.0f} a second; {most} under way at most, {twice:.1%} sent twice;"
        f" processor time for 1,000: {said(spent, rows * repeats / 1000)}"
    )
    yield Figure.median("webhooks", rates, _BAR, "/s", note)


def _subscribe(stream: Streaming, url: str) -> None:
    """A topic with a subscription that its endpoint has confirmed."""
    topic = SnsTopic(settings_module.load().api.region, stream.project, "bench")
    arn = f"{topic.arn}:{uuid4()}"
    database = stream.database
    database.execute("insert into topics (arn, project) values (%s, %s)", [topic.arn, stream.project])
    row = database.execute(
        "insert into lanes (project, destination, state, win, seq) select %s, %s, 'behind', win, seq from stream returning id",
        [stream.project, arn],
    ).fetchone()
    assert row is not None
    database.execute(
        "insert into subscriptions (arn, topic, project, protocol, endpoint, raw, lane)"
        " values (%s, %s, %s, 'http', %s, true, %s)",
        [arn, topic.arn, stream.project, url, row[0]],
    )
    stream.buckets("hook-", topic)


def _drain(stream: Streaming, rows: int) -> tuple[float, Counter[str]]:
    """Events a second, and the processor time."""
    stream.stand_still()
    backlog = stream.fill("hook-", rows)
    before, began = cpu_seconds(os.getpid()), time.perf_counter()
    stream.go_on()
    stream.wait_for(backlog)
    return rows / (time.perf_counter() - began), cpu_seconds(os.getpid()) - before
