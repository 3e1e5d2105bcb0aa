"""Notifications as IBM Cloud Object Storage sends them to Kafka (seed 001): which fields there are depends on what happened
and on the bucket's versioning. Order per key is told by the header `sequencer`: key and partitioning are the seed's.
"""

from __future__ import annotations

from uuid import UUID

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.events import names
from tidings.formats import Context, Json, Optional, Plain, Said, Text, Value, message_id, moment, raw_key, to_json

DETAILS = ("bucket_id", "old_size", "content_type", "metadata", "request_at", "replaced")

NAMESPACE = UUID("f9faf101-3f10-54eb-b890-543f4ff976bd")
"""Where notification ids are names: each is the version 5 UUID of its message's id."""

_FORMAT = "2.0"
_META = "x-amz-meta-"


def message(context: Context) -> Said:
    written = F.col("event").startswith("ObjectCreated:")
    marked = F.col("event") == names.MARKER
    only_marked = marked & F.col("replaced").isNull()
    event_type = (
        F.when(written, "Object:Write")
        .when(only_marked, "Object:CreateDeleteMarker")
        .when(marked, "Object:CreateDeleteMarker:NullVersionDeleted")
        .otherwise("Object:Delete")
    )
    length = F.when(written, F.col("size")).when(~only_marked, F.col("old_size"))
    payload: dict[str, Value] = {
        "format": _FORMAT,
        "request_id": Plain(F.col("request_id")),
        "request_time": moment(F.coalesce("request_at", "at")),
        "event_type": Plain(event_type),
        "bucket_name": Plain(F.col("bucket")),
        "bucket_uuid": Plain(F.col("bucket_id")),
        "system_uuid": context.system_uuid,
        **({"system_name": context.system_name} if context.system_name else {}),
        # Null, and so left out, unless the bucket is or was versioned. The null version is the text "null", as in the
        # header x-amz-version-id that it has to match.
        "object_version": Optional(Plain(F.col("version_id"))),
        "object_name": raw_key(),
        "object_length": Json(F.coalesce(length, F.lit(0)).cast("string")),
        "object_etag": Optional(Plain(F.when(written, F.col("etag")))),
        "content_type": Optional(Text(F.when(~only_marked, F.nullif(F.col("content_type"), F.lit(""))))),
        "meta_headers": Optional(Json(F.when(~only_marked, _meta_headers()))),
    }
    key: dict[str, Value] = {
        "format": _FORMAT,
        "request_id": Plain(F.col("request_id")),
        "notification_id": Plain(_name_based_uuid(message_id())),
    }
    return Said(to_json(payload), key=to_json(key))


def _meta_headers() -> Column:
    """A list of the user's own metadata. What else is stored with an object (cache-control, checksums) is not theirs."""
    stored = F.from_json("metadata", "map<string,string>")
    own = F.map_entries(F.map_filter(stored, lambda name, _: F.startswith(name, F.lit(_META))))
    listed = F.to_json(own.cast("array<struct<header:string,value:string>>"))
    # Most objects have none: looking for the name is cheaper than reading the JSON.
    return F.when(F.col("metadata").contains(f'"{_META}'), F.nullif(listed, F.lit("[]")))


def _name_based_uuid(name: Column) -> Column:
    digits = F.sha1(F.concat(F.lit(NAMESPACE.bytes), F.encode(name, "utf-8")))
    variant = F.translate(F.substring(digits, 17, 1), "0123456789abcdef", "89ab" * 4)
    return F.concat(
        F.substring(digits, 1, 8),
        F.lit("-"),
        F.substring(digits, 9, 4),
        F.lit("-5"),
        F.substring(digits, 14, 3),
        F.lit("-"),
        variant,
        F.substring(digits, 18, 3),
        F.lit("-"),
        F.substring(digits, 21, 12),
    )
