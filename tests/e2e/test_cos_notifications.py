"""Seed 001 through a real store: what is done with boto3 in each versioning state, read from the change stream and rendered by
Spark, field by field as the seed's tables have it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from aws_lambda_powertools.utilities.parser.models import S3Model
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from s3_server import REGION, Server, s3_server

from change_rows import Spoken, spoken
from tidings.changestream import windows
from tidings.changestream.source import TidingsSource
from tidings.events.arn import PubSubTopic
from tidings.events.names import NAMES
from tidings.events.profiles import AWS
from tidings.formats import Context
from tidings.rules import table
from tidings.rules.model import Rule

CONTEXT = Context(REGION, AWS, "48def817-f0a3-1949-abe2-9193be91de22", "My Store")
META = {"foobar": "foobar value", "mandm": 'gr"een'}
HEADERS = [
    {"header": "x-amz-meta-foobar", "value": "foobar value"},
    {"header": "x-amz-meta-mandm", "value": 'gr"een'},
]
DESCRIBED = {"content_type": "image/jpg", "meta_headers": HEADERS}
WRITE, DELETE, MARKER = "Object:Write", "Object:Delete", "Object:CreateDeleteMarker"
NULL_DELETED = f"{MARKER}:NullVersionDeleted"


class Bucket:
    """One bucket over boto3, with what the seed says of each of its operations, in their order."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self.server = server
        self.s3 = server.client(signature_version="s3v4")
        self.s3.create_bucket(Bucket=name)
        self.versioned = False
        self.expected: list[dict[str, Any]] = []
        rule = Rule("all", PubSubTopic("tidings-test", "one"), ("s3:ObjectCreated:*", "s3:ObjectRemoved:*"))
        asyncio.run(_set_rule(server, name, rule))

    def versioning(self, status: str) -> None:
        self.versioned = True
        self.s3.put_bucket_versioning(Bucket=self.name, VersioningConfiguration={"Status": status})

    def put(self, key: str, body: bytes, **given: Any) -> str | None:
        given = given or {"ContentType": "image/jpg", "Metadata": META, "CacheControl": "no-cache"}
        done = self.s3.put_object(Bucket=self.name, Key=key, Body=body, **given)
        described = DESCRIBED if "ContentType" in given else {}
        self.written(done, key, len(body), done["ETag"], described)
        version_id: str | None = done.get("VersionId")
        return version_id

    def written(self, done: Any, key: str, size: int, etag: str, described: dict[str, Any]) -> None:
        """The version in the notification is the one that the write was answered with, if there was one."""
        assert ("VersionId" in done) == self.versioned
        version = {"object_version": done["VersionId"]} if self.versioned else {}
        self._expect(done, key, WRITE, size, {**version, "object_etag": etag.strip('"'), **described})

    def delete(self, key: str, kind: str, length: int, described: dict[str, Any], version_id: str | None = None) -> str | None:
        exact = {} if version_id is None else {"VersionId": version_id}
        done = self.s3.delete_object(Bucket=self.name, Key=key, **exact)
        version = {"object_version": done["VersionId"]} if self.versioned else {}
        self._expect(done, key, kind, length, {**version, **described})
        made: str | None = done.get("VersionId")
        return made

    def _expect(self, done: Any, key: str, kind: str, length: int, more: dict[str, Any]) -> None:
        request_id = done["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"]
        self.expect(request_id, key, kind, length, more)

    def expect(self, request_id: str, key: str, kind: str, length: int, more: dict[str, Any]) -> None:
        [[bucket_id]] = self.server.query("select id from bucket_metainfos where name = %s", self.name)
        fixed = {
            "format": "2.0",
            "request_id": request_id,
            "event_type": kind,
            "bucket_name": self.name,
            "bucket_uuid": bucket_id,
            "system_uuid": CONTEXT.system_uuid,
            "system_name": CONTEXT.system_name,
            "object_name": key,
            "object_length": length,
        }
        self.expected.append(fixed | more)


async def _set_rule(server: Server, bucket: str, rule: Rule) -> None:
    async with await psycopg.AsyncConnection.connect(server.database_url, autocommit=True) as connection:
        await table.replace(connection, server.project, bucket, [rule])


@pytest.fixture
def server(spark_database: psycopg.Connection, tmp_path: Path) -> Iterator[Server]:
    assert spark_database
    with s3_server(os.environ["TIDINGS_DATABASE__URL"], tmp_path) as running:
        yield running


def rendered(spark: SparkSession, database: psycopg.Connection, format_name: str) -> list[Spoken]:
    """Every change of the stream, as the pipeline reads and renders it."""
    spark.dataSource.register(TidingsSource)
    windows.latest(database)
    routed = spark.read.format("tidings").load().withColumns({"rule": F.col("rules"), "config_json": F.lit('"all"')})
    return spoken(format_name, CONTEXT, routed)


def unversioned(server: Server) -> Bucket:
    bucket = Bucket(server, "unversioned")
    bucket.put("key", b"12345")
    bucket.delete("key", DELETE, 5, DESCRIBED)
    bucket.put('odd "key" ß\\', b"", StorageClass="STANDARD")  # neither a type nor metadata
    bucket.delete('odd "key" ß\\', DELETE, 0, {})
    bucket.put("key", b"1")
    bucket.delete("key", DELETE, 1, DESCRIBED, version_id="null")
    return bucket


def writers(server: Server) -> Bucket:
    """PUT has been seen; POST, copy and multipart are writes too, and a copy says nothing of its source."""
    bucket = Bucket(server, "writers")
    s3 = bucket.s3
    post = s3.generate_presigned_post(
        bucket.name, "posted", Fields={"Content-Type": "image/jpg"}, Conditions=[["eq", "$Content-Type", "image/jpg"]]
    )
    answer = httpx.post(post["url"], data=post["fields"], files={"file": b"123"})
    assert answer.status_code == 204, answer.text
    etag = {"object_etag": answer.headers["etag"].strip('"')}
    bucket.expect(answer.headers["x-amz-request-id"], "posted", WRITE, 3, {**etag, "content_type": "image/jpg"})
    source = bucket.put("source", b"1234")
    assert source is None
    copied = s3.copy_object(Bucket=bucket.name, Key="copy", CopySource={"Bucket": bucket.name, "Key": "source"})
    bucket.written(copied, "copy", 4, copied["CopyObjectResult"]["ETag"], DESCRIBED)
    where = {"Bucket": bucket.name, "Key": "parts"}
    upload = s3.create_multipart_upload(**where, ContentType="image/jpg", Metadata=META)["UploadId"]
    part = s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"123456")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    completed = s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=parts)
    bucket.written(completed, "parts", 6, completed["ETag"], DESCRIBED)
    deleted = s3.delete_objects(Bucket=bucket.name, Delete={"Objects": [{"Key": "copy"}, {"Key": "parts"}]})
    request_id = deleted["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"]
    bucket.expect(request_id, "copy", DELETE, 4, DESCRIBED)  # each delete of a multi-delete has a notification
    bucket.expect(request_id, "parts", DELETE, 6, DESCRIBED)
    return bucket


def enabled(server: Server) -> Bucket:
    bucket = Bucket(server, "enabled")
    bucket.versioning("Enabled")
    first = bucket.put("key", b"12345")
    second = bucket.put("key", b"123")
    marker = bucket.delete("key", MARKER, 0, {})
    assert len({first, second, marker}) == 3
    assert bucket.delete("key", DELETE, 0, {}, version_id=marker) == marker  # a delete marker
    assert bucket.delete("key", DELETE, 5, DESCRIBED, version_id=first) == first  # behind the newest
    assert bucket.delete("key", DELETE, 3, DESCRIBED, version_id=second) == second
    return bucket


def suspended(server: Server) -> Bucket:
    bucket = Bucket(server, "suspended")
    bucket.versioning("Suspended")
    assert bucket.delete("key", MARKER, 0, {}) == "null"  # there is no null version
    assert bucket.delete("key", NULL_DELETED, 0, {}) == "null"  # a null marker is replaced by a new one
    assert bucket.put("key", b"12345") == "null"
    assert bucket.delete("key", NULL_DELETED, 5, DESCRIBED) == "null"
    bucket.put("key", b"1234")
    bucket.versioning("Enabled")
    kept = bucket.put("key", b"12")
    bucket.versioning("Suspended")
    bucket.delete("key", NULL_DELETED, 4, DESCRIBED)  # the null version lay behind the kept one
    assert bucket.delete("key", DELETE, 0, {}, version_id="null") == "null"
    assert bucket.delete("key", DELETE, 2, DESCRIBED, version_id=kept) == kept
    bucket.versioning("Enabled")
    bucket.put("other", b"1")
    bucket.versioning("Suspended")
    bucket.delete("other", MARKER, 0, {})  # a version with an id is no null version: it stays
    return bucket


def test_every_notification_is_as_the_tables_say(
    spark: SparkSession, spark_database: psycopg.Connection, server: Server
) -> None:
    began = datetime.now(UTC)
    made = [make(server) for make in (unversioned, writers, enabled, suspended)]
    expected = [each for bucket in made for each in bucket.expected]
    said = rendered(spark, spark_database, "cos")
    payloads = [json.loads(message.body) for message in said]
    for payload in payloads:  # in the order in which they were sent, or stored
        payload.get("meta_headers", []).sort(key=lambda pair: pair["header"])
    times = [payload.pop("request_time") for payload in payloads]
    assert payloads == expected
    assert {payload["event_type"] for payload in payloads} == {WRITE, DELETE, MARKER, NULL_DELETED}
    assert times == sorted(times)
    assert began.isoformat(timespec="milliseconds")[:-6] <= times[0][:-1]
    keys = [json.loads(message.key or "") for message in said]
    assert [key["request_id"] for key in keys] == [payload["request_id"] for payload in payloads]
    assert len({key["notification_id"] for key in keys}) == len(keys)  # also of a multi-delete, which is one request

    records = [S3Model.model_validate_json(message.body).Records for message in rendered(spark, spark_database, "s3")]
    assert {record.eventName for [record] in records} == set(NAMES)
    assert len({(r.responseElements.x_amz_request_id, r.responseElements.x_amz_id_2) for [r] in records}) == len(expected)
