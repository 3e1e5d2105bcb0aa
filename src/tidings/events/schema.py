"""What a change looks like to Spark: the columns of the change stream, declared once."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

_TEXT, _NUMBER, _TIME = StringType(), LongType(), TimestampType()

CHANGE = StructType(
    [
        StructField("window", _NUMBER),
        StructField("seq", _NUMBER),
        StructField("id", _TEXT),
        StructField("at", _TIME),
        StructField("project", _TEXT),
        StructField("bucket", _TEXT),
        StructField("key", _TEXT),
        StructField("encoded", _TEXT),
        StructField("event", _TEXT),
        StructField("size", _NUMBER),
        StructField("etag", _TEXT),
        StructField("version_id", _TEXT),
        StructField("principal", _TEXT),
        StructField("source_ip", _TEXT),
        StructField("request_id", _TEXT),
        StructField("config", _NUMBER),
        StructField("rules", _TEXT),
        StructField("bucket_id", _TEXT),
        StructField("old_size", _NUMBER),
        StructField("content_type", _TEXT),
        StructField("metadata", _TEXT),
        StructField("copy_source", _TEXT),
        StructField("request_at", _TIME),
        StructField("replaced", _TEXT),
        StructField("trace", _TEXT),
        StructField("catalog", _TEXT),
    ]
)
"""`window` and `seq` are the position; the other columns are those of the table `changes`, in this order."""

DETAILS = ("bucket_id", "old_size", "content_type", "metadata", "copy_source", "request_at", "replaced", "trace", "catalog")
"""Of which only some formats speak; of the trace none does, it is read where traces are on. Reading them all takes a third to a
half more time than reading the others alone."""

STORED = [field.name for field in CHANGE.fields if field.name != "window"]
"""The columns that are stored with a change. The window is known from the snapshots."""


def stored(details: Collection[str]) -> list[str]:
    """Of these, the ones that every format needs, and these details."""
    return [name for name in STORED if name not in DETAILS or name in details]
