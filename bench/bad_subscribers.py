"""Subscribers that misbehave, each in its way, and one that does not: found as those of users are, by their entry points."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tidings.events.catalog import CatalogEvent
from tidings.subscribers import EventListener, EventSubscriber, Registrar

_ENTRY_POINTS = """[tidings.subscribers]
sleeps = bench.bad_subscribers:Sleeps
throws = bench.bad_subscribers:Throws
hangs = bench.bad_subscribers:Hangs
healthy = bench.bad_subscribers:Healthy
"""


def installed(folder: Path) -> Path:
    """A folder for a process's PYTHONPATH: there they look like a package that was installed."""
    package = folder / "bad_subscribers-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-subscribers\nVersion: 1\n")
    (package / "entry_points.txt").write_text(_ENTRY_POINTS)
    return folder


class _Subscriber(EventSubscriber, EventListener):
    def register(self, registrar: Registrar) -> None:
        registrar.register(self)


class Sleeps(_Subscriber):
    def on_event(self, _: CatalogEvent) -> None:
        time.sleep(10)


class Throws(_Subscriber):
    def on_event(self, _: CatalogEvent) -> None:
        raise RuntimeError("never")


class Hangs(_Subscriber):
    def on_event(self, _: CatalogEvent) -> None:
        threading.Event().wait()


class Healthy(_Subscriber):
    def on_event(self, _: CatalogEvent) -> None:
        pass
