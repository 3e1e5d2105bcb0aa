"""The message that Cloudflare R2 puts into a queue: what was done to which object. Who wants to know more asks the bucket."""

from __future__ import annotations

from pyspark.sql import functions as F

from tidings.events import names
from tidings.formats import Context, Json, Optional, Plain, Said, Text, Value, moment, raw_key, to_json

DETAILS = ("copy_source",)


def message(context: Context) -> Said:  # noqa: ARG001
    written = F.col("event").startswith("ObjectCreated:")
    copied = F.col("event") == names.COPY
    action = (
        F.when(copied, "CopyObject")
        .when(F.col("event") == names.MULTIPART, "CompleteMultipartUpload")
        .when(written, "PutObject")
        .otherwise("DeleteObject")
    )
    body: dict[str, Value] = {
        "account": Plain(F.col("project")),
        "action": Plain(action),
        "bucket": Plain(F.col("bucket")),
        "object": {
            "key": raw_key(),
            "size": Optional(Json(F.when(written, F.col("size").cast("string")))),
            "eTag": Optional(Plain(F.when(written, F.col("etag")))),
        },
        "eventTime": moment(F.col("at")),
        "copySource": Optional(Json(F.when(copied, to_json(_source())))),
    }
    return Said(to_json(body))


def _source() -> dict[str, Value]:
    """A change names the source as S3 does: BUCKET/KEY, the key percent-encoded, then perhaps ?versionId=…"""
    path = F.substring_index("copy_source", "?", 1)
    slash = F.instr(path, "/")
    encoded = F.substring(path, slash + 1, F.length(path))
    return {
        "bucket": Plain(F.substring(path, F.lit(1), slash - 1)),
        "object": Text(F.coalesce(F.try_url_decode(encoded), encoded)),
    }
