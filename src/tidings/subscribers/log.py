"""A subscriber that writes each event to the log: what there is to see before anybody has written one."""

from __future__ import annotations

import logging

from tidings.events.catalog import CatalogEvent
from tidings.subscribers.interface import EventListener, EventSubscriber, Registrar

log = logging.getLogger("tidings.catalog.events")


class LogSubscriber(EventSubscriber):
    def register(self, registrar: Registrar) -> None:
        registrar.register(LogListener())


class LogListener(EventListener):
    def on_event(self, event: CatalogEvent) -> None:
        log.info("%s on %s of %s", event.type, event.about.full_name, event.repository, extra={"event": event.to_json()})
