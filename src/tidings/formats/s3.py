"""The S3 event record, as AWS writes it: `{"Records": [{...}]}` with one record for each message."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.formats import Context, Json, Optional, Plain, Said, Value, to_json


def message(context: Context) -> Said:
    profile = context.profile
    record: dict[str, Value] = {
        "eventVersion": "2.1",
        "eventSource": profile.event_source,
        "awsRegion": context.region,
        "eventTime": Plain(F.date_format("at", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")),
        "eventName": Plain(F.col("event")),
        "userIdentity": {"principalId": Plain(F.col("principal"))},
        "requestParameters": {"sourceIPAddress": Plain(F.col("source_ip"))},
        "responseElements": {"x-amz-request-id": Plain(F.col("request_id"))},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": Json(F.col("config_json")),
            "bucket": {
                "name": Plain(F.col("bucket")),
                "ownerIdentity": {"principalId": Plain(F.col("project"))},
                "arn": Plain(F.concat(F.lit(profile.bucket_arn), F.col("bucket"))),
            },
            "object": {
                "key": Plain(F.coalesce("encoded", "key")),
                "size": Optional(Json(F.col("size").cast("string"))),
                "eTag": Optional(Plain(F.col("etag"))),
                "versionId": Optional(Plain(F.col("version_id"))),
                "sequencer": Plain(sequencer()),
            },
        },
    }
    return Said(to_json({"Records": [record]}))


def sequencer() -> Column:
    """Comparable per key as text: 16 hexadecimal digits, upper case, zero-padded."""
    return F.lpad(F.hex("seq"), 16, "0")
