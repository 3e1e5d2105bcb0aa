"""What the operations of the API work with."""

from __future__ import annotations

from dataclasses import dataclass

from tidings.access.keys import KeyCache
from tidings.api.request import Request
from tidings.catalog.service import Catalog
from tidings.db.pool import Pool
from tidings.queues.service import Queues
from tidings.rules.lookup import Cache, Lookup
from tidings.rules.notification import Notifications
from tidings.secrets import keyring
from tidings.settings import Settings
from tidings.store.blobs import Blobs
from tidings.store.model import Origin
from tidings.subscribers.dispatcher import Dispatcher, Publish
from tidings.topics.service import Topics
from tidings.topics.subscribing import Subscriptions

_NOBODY = Dispatcher().publish
"""Events of the catalog are heard by no subscriber."""


@dataclass(frozen=True, slots=True)
class Parts:
    settings: Settings
    pool: Pool
    blobs: Blobs
    keys: KeyCache
    lookup: Lookup
    notifications: Notifications
    queues: Queues
    topics: Topics
    subscriptions: Subscriptions
    catalog: Catalog

    @classmethod
    def over(
        cls, settings: Settings, pool: Pool, blobs: Blobs, cache: Cache | None = None, publish: Publish = _NOBODY
    ) -> Parts:
        lookup = Lookup(settings.bucket_eventing, pool, cache)
        queues = Queues(pool, settings.queues)
        topics = Topics(settings, pool)
        beside = queues, topics, Subscriptions(settings, pool, topics), Catalog(pool, settings.catalog, publish)
        keys = KeyCache(pool, keyring=keyring.under(settings.secrets))
        return cls(settings, pool, blobs, keys, lookup, Notifications(settings, pool, lookup), *beside)

    async def origin(self, request: Request) -> Origin:
        """Where a change comes from. Call it when the change is about to be made: it asks what is known of the rules."""
        eventing = await self.lookup.begin(request.project, request.bucket)
        return Origin(request.principal.access_key_id, request.source_ip, request.id, request.at, eventing, request.trace)
