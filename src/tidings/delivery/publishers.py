"""The clients of destinations that one worker process keeps: made on first use, used again by every later batch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from functools import lru_cache

import psycopg

from tidings import destinations, plugins, settings
from tidings.db.connecting import noticing
from tidings.delivery import tracing

# A process serves many lanes over time; beyond this the one unused for longest is made again when it is needed.
_KEPT = 1024


def loop() -> asyncio.AbstractEventLoop:
    """This process's event loop. The clients are bound to it, so it outlives the batch."""
    return _loop(os.getpid())


@lru_cache(maxsize=1)
def _loop(_pid: int) -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def for_lane(lane: int, tries: int = 0) -> destinations.Destination:
    """The client of a lane's destination; `learn` it before. `tries` is how often the lane has failed in a row just before."""
    project, arn = _ways[lane]
    return tracing.traced(_connected(project, arn), arn, tries)


_ways: dict[int, tuple[str, str]] = {}
"""The project and the destination of each lane."""


def learn(lanes: Iterable[int]) -> None:
    """Whose lanes they are and where they lead. That never changes: each is asked for once, all that are new in one query."""
    unknown = [lane for lane in lanes if lane not in _ways]
    if unknown:
        with psycopg.connect(noticing(settings.load().database_url)) as connection:
            rows = connection.execute("select id, project, destination from lanes where id = any(%s)", [unknown])
            _ways.update({lane: (project, arn) for lane, project, arn in rows})


@lru_cache(maxsize=_KEPT)
def _connected(project: str, arn: str) -> destinations.Destination:
    return destinations.connect_for(project, arn, settings.load())


def preload() -> None:
    load_clients()
    tracing.prepare()


def load_clients() -> None:
    """Import them. Nothing is made or started."""
    for name in plugins.names("destinations"):
        plugins.load("destinations", name)
