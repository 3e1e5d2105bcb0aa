"""Notes each table that is dropped from `main` in a file, one JSON line each: for a job that cleans up after it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tidings.events.catalog import ContentRemoved
from tidings.subscribers import EventListener, EventSubscriber, Registrar, Subscription, filters

FILE_VARIABLE = "CLEANUP_FILE"


class CleanupSubscriber(EventSubscriber):
    """What the entry point names. The server makes one, and calls `register`."""

    subscription: Subscription

    def register(self, registrar: Registrar) -> None:
        listener = CleanupListener(Path(os.environ.get(FILE_VARIABLE, "cleanup.jsonl")))
        on_main = filters.types("CONTENT_REMOVED") & filters.references("main")
        self.subscription = registrar.register(listener, on_main & filters.cel("contentType != 'NAMESPACE'"))


class CleanupListener(EventListener):
    """Is called for each event that the filter wants, in a thread of its own: it may write to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_content_removed(self, event: ContentRemoved) -> None:
        line = {"table": ".".join(event.content_key), "type": event.content_type, "commit": event.hash, "by": event.created_by}
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
