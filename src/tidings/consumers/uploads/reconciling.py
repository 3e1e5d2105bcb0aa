"""The upload registry's side of `tidings reconcile`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from pyspark.sql import DataFrame, SparkSession

from tidings.consumers.bucket_listing import Listing
from tidings.consumers.reconcile import Event, Registry, from_query
from tidings.consumers.uploads.consuming import Consumer, Outcome
from tidings.errors import OperatorError
from tidings.settings import Settings

_AT_ONCE = 100
"""Keys in one transaction, which holds the lock of each."""

_KNOWN = """
select organisation || '/' || name as key, null as version_id, null as etag, null as size, null as delete_marker,
       null as latest, null as sequencer, false as gone
from upload_registry
"""


class UploadRegistry(Registry):
    """It has no order to keep: whatever is told, the store is asked what is there now, as the consumer does."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def known(self, spark: SparkSession, listing: Listing) -> DataFrame:
        of_uploads = self._settings.uploads.bucket
        if listing.bucket != of_uploads:
            raise OperatorError(f"The upload registry is of the bucket {of_uploads!r}, not of {listing.bucket!r}.")
        return from_query(spark, _KNOWN)

    def repair(self, events: Sequence[Event]) -> int:
        """First what is too much: an object that was put past the front may be registered under a name that is not its key."""
        consumer = Consumer(self._settings)
        try:
            extra = [event.key for event in events if event.finding == "extra"]
            missing = [event.key for event in events if event.finding == "missing"]
            gone = sum(consumer.forget(keys) for keys in _pieces(extra))
            headed = [found for keys in _pieces(missing) for found in consumer.record(keys).values()]
            return gone + sum(not isinstance(found, Outcome) for found in headed)
        finally:
            consumer.close()


def _pieces(keys: Sequence[str]) -> Iterator[list[str]]:
    left = iter(keys)
    while piece := list(islice(left, _AT_ONCE)):
        yield piece


def registry(settings: Settings) -> Registry:
    return UploadRegistry(settings)
