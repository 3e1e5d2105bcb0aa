"""commits_with_events and commits_with_bad_subscribers: what telling of a commit costs who commits.

The catalog's service over a PostgreSQL of its own, eight committers side by side, each on a branch of its own, one table in
each commit. First with events in the change stream against without; then with three subscribers in the same process that
misbehave (one sleeps 10 s for each event, one always throws, one never returns) and a healthy one, against none. The healthy
one must get everything.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import psycopg

from bench.changes import database
from bench.measure import Bar, CannotMeasure, Figure, Progress, interleaved, ratios
from tidings.access.projects import create_project
from tidings.catalog.model import Caller, Key, Meta, Put
from tidings.catalog.service import Catalog
from tidings.catalog.settings import CatalogSettings
from tidings.changestream.retention import keep_up
from tidings.changestream.settings import ChangestreamSettings
from tidings.db.pool import Pool, make_pool
from tidings.events.catalog import CatalogEvent
from tidings.subscribers import EventListener, EventSubscriber, Registrar
from tidings.subscribers.dispatcher import Dispatcher
from tidings.subscribers.finding import start_with
from tidings.subscribers.settings import SubscribersSettings

NAMES = ("commits_with_events", "commits_with_bad_subscribers")
_COMMITTERS = 8
_CALLER = Caller("bench", (), "127.0.0.1", "bench")
_HEALTHY_SECONDS = 60.0


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    commits, pairs = (200, 3) if quick else (1000, 9)
    with database(progress) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            keep_up(connection, ChangestreamSettings())
            project = create_project(connection, "bench")
        with asyncio.Runner() as runner:
            pool = runner.run(_opened(url))
            try:
                for name in NAMES:
                    if name in names:
                        of = _with_events if name == "commits_with_events" else _with_bad_subscribers
                        yield of(_Commits(runner, pool, project, commits), pairs, progress)
            finally:
                runner.run(pool.close())


async def _opened(url: str) -> Pool:
    pool = make_pool(url, _COMMITTERS)
    await pool.open(wait=True)
    return pool


class _Commits:
    """So many commits, again and again: each run on new branches, so that all find the same."""

    def __init__(self, runner: asyncio.Runner, pool: Pool, project: str, commits: int) -> None:
        self._runner, self._pool, self._project, self.count = runner, pool, project, commits
        self._numbers = itertools.count()
        self._place = f"{os.getpid()}-{id(self)}"

    def run(self, settings: CatalogSettings, publish: Callable[..., None] = lambda _events, _trace: None) -> float:
        """Seconds."""
        catalog = Catalog(self._pool, settings, publish)
        return self._runner.run(self._all(catalog, next(self._numbers)))

    async def _all(self, catalog: Catalog, run: int) -> float:
        names = [f"run-{self._place}-{run}-{committer}" for committer in range(_COMMITTERS)]
        for name in names:
            await catalog.create(self._project, _CALLER, name, "BRANCH", "main", None)
        began = time.perf_counter()
        await asyncio.gather(*(self._some(catalog, name) for name in names))
        return time.perf_counter() - began

    async def _some(self, catalog: Catalog, branch: str) -> None:
        for number in range(self.count // _COMMITTERS):
            content = {"type": "ICEBERG_TABLE", "metadataLocation": f"s3://elsewhere/{number}", "snapshotId": number}
            operation = Put(Key.of(["sales", f"table-{number}"]), content)
            await catalog.commit(self._project, _CALLER, branch, None, [operation], Meta(f"load {number}"))


def _with_events(commits: _Commits, pairs: int, progress: Progress) -> Figure:
    ways = {"events": CatalogSettings(), "no events": CatalogSettings(events=False)}
    seconds = interleaved({name: partial(commits.run, settings) for name, settings in ways.items()}, pairs, 1, progress)
    return _figure(NAMES[0], commits.count, seconds, ("events", "no events"), Bar(">=", 0.9), "")


def _with_bad_subscribers(commits: _Commits, pairs: int, progress: Progress) -> Figure:
    over, heard, told = threading.Event(), [0], [0]

    def sleep(_: CatalogEvent) -> None:
        over.wait(10)

    def throw(_: CatalogEvent) -> None:
        raise RuntimeError("never")

    def hang(_: CatalogEvent) -> None:
        over.wait()

    def count(_: CatalogEvent) -> None:
        heard[0] += 1

    acts = {"sleeps": sleep, "throws": throw, "hangs": hang, "healthy": count}
    dispatcher = start_with([(name, partial(_Subscriber, act)) for name, act in acts.items()], SubscribersSettings())

    def publish(events: Sequence[CatalogEvent], trace: str | None) -> None:
        told[0] += len(events)
        dispatcher.publish(events, trace)

    settings = CatalogSettings()
    try:
        runs = {"bad subscribers": partial(commits.run, settings, publish), "nobody": partial(commits.run, settings)}
        seconds = interleaved(runs, pairs, 1, progress)
        _wait_for(lambda: heard[0] == told[0], f"The healthy subscriber got {heard[0]} of {told[0]} events.")
        note = f"; the healthy one got all {told[0]:,} events; {_states(dispatcher)}"
    finally:
        over.set()
        dispatcher.stop()
    return _figure(NAMES[1], commits.count, seconds, ("bad subscribers", "nobody"), Bar(">=", 1 / 1.1), note)


def _states(dispatcher: Dispatcher) -> str:
    found = [(feed.name, feed.status) for feed in dispatcher.feeds]
    return ", ".join(f"{name}: {each.dropped} dropped, breaker {each.breaker}" for name, each in found if name != "healthy")


def _wait_for(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _HEALTHY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise CannotMeasure(otherwise)
        time.sleep(0.05)


def _figure(name: str, commits: int, seconds: dict[str, list[float]], ways: tuple[str, str], bar: Bar, more: str) -> Figure:
    rates = {way: [commits / value for value in values] for way, values in seconds.items()}
    middle = ", ".join(f"{way} {sorted(values)[len(values) // 2]:.0f} commits/s" for way, values in rates.items())
    note = f"{middle}; {commits:,} commits in a run, {_COMMITTERS} committers{more}"
    return Figure.median(name, ratios(rates[ways[0]], rates[ways[1]]), bar, "", note)


class _Listener(EventListener):
    def __init__(self, act: Callable[[CatalogEvent], None]) -> None:
        self._act = act

    def on_event(self, event: CatalogEvent) -> Any:
        return self._act(event)


class _Subscriber(EventSubscriber):
    def __init__(self, act: Callable[[CatalogEvent], None]) -> None:
        self._act = act

    def register(self, registrar: Registrar) -> None:
        registrar.register(_Listener(self._act))
