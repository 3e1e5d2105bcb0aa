"""The clients of destinations that one worker process keeps: made on first use, used again by every later batch."""

from __future__ import annotations

import asyncio
import os
from functools import lru_cache

import psycopg

from tidings import destinations, plugins, settings

# A process serves many lanes over time; beyond this the one unused for longest is made again when it is needed.
_KEPT = 1024


def loop() -> asyncio.AbstractEventLoop:
    """This process's event loop. The clients are bound to it, so it outlives the batch."""
    return _loop(os.getpid())


@lru_cache(maxsize=1)
def _loop(_pid: int) -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


@lru_cache(maxsize=_KEPT)
def for_lane(lane: int) -> destinations.Destination:
    """The client of a lane's destination."""
    return _connected(_arn_of(lane))


def _arn_of(lane: int) -> str:
    """Where a lane leads. That never changes."""
    with psycopg.connect(settings.load().database_url) as connection:
        row = connection.execute("select destination from lanes where id = %s", [lane]).fetchone()
    if row is None:
        raise LookupError(f"there is no lane {lane}")
    arn: str = row[0]
    return arn


@lru_cache(maxsize=_KEPT)
def _connected(arn: str) -> destinations.Destination:
    return destinations.connect(arn, settings.load())


def preload() -> None:
    for name in plugins.names("destinations"):
        plugins.load("destinations", name)
