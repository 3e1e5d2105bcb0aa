"""Nessie's events: the body is what the catalog said when it changed; key and headers are those of its Kafka publisher."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.events.catalog import API_VERSION, SPEC_VERSION
from tidings.formats import Context, Optional, Plain, Said, Text, Value, to_json

DETAILS = ("catalog",)

_NAME = len("/refs/heads/") + 1
_TAG = "/refs/tags/"


def message(_context: Context) -> Said:
    return Said(F.col("catalog"), key(), to_json(headers()))


def key() -> Column:
    """`repository:reference`"""
    return F.concat_ws(":", "bucket", reference())


def headers() -> dict[str, Value]:
    committed = F.coalesce(_member("$.commitCreationTimestamp"), _member("$.commitMeta.commitTime"))
    return {
        "event-id": Plain(F.col("id")),
        "spec-version": SPEC_VERSION,
        "api-version": API_VERSION,
        "repository-id": Text(F.col("bucket")),
        "initiator": Text(F.col("principal")),
        "event-type": Plain(event_type()),
        "event-creation-time": Plain(_member("$.eventCreationTimestamp")),
        "commit-creation-time": Optional(Plain(committed)),
    }


def event_type() -> Column:
    return F.substring_index("event", ":", -1)


def reference() -> Column:
    """Its short name, from the full one that is the change's key."""
    short = F.when(F.startswith(F.col("key"), F.lit(_TAG)), F.substring("key", len(_TAG) + 1, 2**31 - 1))
    return short.otherwise(F.substring("key", _NAME, 2**31 - 1))


def _member(path: str) -> Column:
    return F.get_json_object("catalog", path)
