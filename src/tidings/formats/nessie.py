"""Nessie's events: the body is what the catalog said when it changed; key and headers are those of its Kafka publisher."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.events.catalog import API_VERSION, SPEC_VERSION, Commit
from tidings.formats import Context, Optional, Plain, Said, Text, Value, to_json

DETAILS = ("catalog",)

_TIME = len("2026-01-17T10:30:00.123456Z")
_NAME = len("/refs/heads/") + 1
_TAG = "/refs/tags/"


def message(_context: Context) -> Said:
    return Said(F.col("catalog"), key(), to_json(headers()))


def key() -> Column:
    """`repository:reference`"""
    return F.concat_ws(":", "bucket", reference())


def headers() -> dict[str, Value]:
    of_commit = event_type() == Commit.type
    committed = F.when(of_commit, _time("commitTime")).otherwise(_time("commitCreationTimestamp"))
    return {
        "event-id": Plain(F.col("id")),
        "spec-version": SPEC_VERSION,
        "api-version": API_VERSION,
        "repository-id": Text(F.col("bucket")),
        "initiator": Text(F.col("principal")),
        "event-type": Plain(event_type()),
        "event-creation-time": Plain(_time("eventCreationTimestamp")),
        "commit-creation-time": Optional(Plain(committed)),
    }


def event_type() -> Column:
    return F.substring_index("event", ":", -1)


def reference() -> Column:
    """Its short name, from the full one that is the change's key."""
    short = F.when(F.startswith(F.col("key"), F.lit(_TAG)), F.substring("key", len(_TAG) + 1, 2**31 - 1))
    return short.otherwise(F.substring("key", _NAME, 2**31 - 1))


def _time(name: str) -> Column:
    """A moment that the event says, by the first member of this name; null if there is none.

    Found as text, for reading the JSON takes ten times as long. No text inside it can look like this, since quotes in texts
    are escaped; and what others may name as they like (a content, properties) comes after these members.
    """
    mark = f'"{name}":"'
    place = F.instr("catalog", mark)
    return F.when(place > 0, F.substring("catalog", place + len(mark), F.lit(_TIME)))
