"""The S3 event record, as AWS writes it: `{"Records": [{...}]}` with one record for each message."""

from __future__ import annotations

from pyspark.sql import functions as F

from tidings.formats import Context, Json, Optional, Plain, Said, Value, encoded_key, moment, sequencer, to_json


def message(context: Context) -> Said:
    return Said(to_json({"Records": [record(context)]}))


def record(context: Context) -> dict[str, Value]:
    profile = context.profile
    return {
        "eventVersion": "2.1",
        "eventSource": profile.event_source,
        "awsRegion": context.region,
        "eventTime": moment(F.col("at")),
        "eventName": Plain(F.col("event")),
        "userIdentity": {"principalId": Plain(F.col("principal"))},
        "requestParameters": {"sourceIPAddress": Plain(F.col("source_ip"))},
        # Readers that know AWS want both ids, and take the two together for the name of an event. The change's own id makes
        # that true: a request that deletes many objects has one request id and many events.
        "responseElements": {"x-amz-request-id": Plain(F.col("request_id")), "x-amz-id-2": Plain(F.col("id"))},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": Json(F.col("config_json")),
            "bucket": {
                "name": Plain(F.col("bucket")),
                "ownerIdentity": {"principalId": Plain(F.col("project"))},
                "arn": Plain(F.concat(F.lit(profile.bucket_arn), F.col("bucket"))),
            },
            "object": {
                "key": encoded_key(),
                "size": Optional(Json(F.col("size").cast("string"))),
                "eTag": Optional(Plain(F.col("etag"))),
                "versionId": Optional(Plain(F.col("version_id"))),
                "sequencer": Plain(sequencer()),
            },
        },
    }
