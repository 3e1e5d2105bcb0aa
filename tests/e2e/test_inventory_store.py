"""A real store that several write to at once, in all versioning states: the inventory made of its events is its listing."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from botocore.exceptions import ClientError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from s3_server import REGION, Server, s3_server

from tidings import settings
from tidings.changestream import windows
from tidings.changestream.source import TidingsSource
from tidings.consumers import reconcile
from tidings.consumers.bucket_listing import Elsewhere, Ours
from tidings.consumers.inventory import listing
from tidings.consumers.inventory.merging import merge
from tidings.consumers.inventory.rules import Row, read
from tidings.events.arn import PubSubTopic
from tidings.events.profiles import AWS
from tidings.formats import Context, cos, sequencer
from tidings.rules import table
from tidings.rules.model import Rule

BUCKETS = ("never-versioned", "one", "two")
KEYS = ("a", "a/b", 'ß "odd" key', "z")
WRITERS, STEPS = 4, 80


@pytest.fixture
def server(spark_database: psycopg.Connection, tmp_path: Path) -> Iterator[Server]:
    assert spark_database
    with s3_server(os.environ["TIDINGS_DATABASE__URL"], tmp_path) as running:
        yield running


async def want_all(server: Server, bucket: str) -> None:
    rule = Rule("all", PubSubTopic("tidings-test", "one"), ("s3:ObjectCreated:*", "s3:ObjectRemoved:*"))
    async with await psycopg.AsyncConnection.connect(server.database_url, autocommit=True) as connection:
        await table.replace(connection, server.project, bucket, [rule])


def write(server: Server, seed: int) -> None:
    """Somebody who does not know of the others: what is gone meanwhile is no failure."""
    draw, s3 = random.Random(seed), server.client(signature_version="s3v4")
    for _ in range(STEPS):
        place = {"Bucket": draw.choice(BUCKETS), "Key": draw.choice(KEYS)}
        with suppress(ClientError):
            step(draw, s3, place)


def step(draw: random.Random, s3: Any, place: dict[str, str]) -> None:
    kind = draw.choice(("put", "put", "delete", "delete", "version", "version", "copy", "parts", "many", "versioning"))
    body = draw.randbytes(draw.randrange(9000))  # larger ones are blobs
    if kind == "put":
        s3.put_object(**place, Body=body, **draw.choice([{}, {"ContentType": "image/png"}]))
    elif kind == "delete":
        s3.delete_object(**place)
    elif kind == "version":
        found = s3.list_object_versions(Bucket=place["Bucket"], Prefix=place["Key"])
        there = [each for each in found.get("Versions", []) + found.get("DeleteMarkers", []) if each["Key"] == place["Key"]]
        if there:
            s3.delete_object(**place, VersionId=draw.choice(there)["VersionId"])
    elif kind == "copy":
        s3.copy_object(**place, CopySource={"Bucket": draw.choice(BUCKETS), "Key": draw.choice(KEYS)})
    elif kind == "parts":
        upload = s3.create_multipart_upload(**place)["UploadId"]
        part = s3.upload_part(**place, UploadId=upload, PartNumber=1, Body=body)
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload=parts)
    elif kind == "many":
        s3.delete_objects(Bucket=place["Bucket"], Delete={"Objects": [{"Key": key} for key in draw.sample(KEYS, 2)]})
    elif place["Bucket"] != BUCKETS[0]:
        status = {"Status": draw.choice(["Enabled", "Suspended"])}
        s3.put_bucket_versioning(Bucket=place["Bucket"], VersioningConfiguration=status)


def listed(server: Server, bucket: str) -> list[tuple[Any, ...]]:
    """(key, version, latest, marker, size, etag), in the order of the listing within each kind."""
    found = []
    for page in server.client().get_paginator("list_object_versions").paginate(Bucket=bucket):
        for kind in ("Versions", "DeleteMarkers"):
            for each in page.get(kind, []):
                etag = each["ETag"].strip('"') if kind == "Versions" else None
                found.append((each["Key"], each["VersionId"], each["IsLatest"], etag is None, each.get("Size", 0), etag))
    return sorted(found, key=lambda each: each[3])


def notifications(spark: SparkSession, database: psycopg.Connection) -> list[tuple[bytes, str]]:
    """As the pipeline says them, with their headers."""
    spark.dataSource.register(TidingsSource)
    windows.latest(database)
    routed = spark.read.format("tidings").load().withColumns({"rule": F.col("rules"), "config_json": F.lit('"all"')})
    said = cos.message(Context(REGION, AWS, "48def817-f0a3-1949-abe2-9193be91de22", "My Store"))
    return [
        (row.body.encode(), row.sequencer)
        for row in routed.select(said.body.alias("body"), sequencer().alias("sequencer")).collect()
    ]


def written(server: Server) -> None:
    s3 = server.client()
    for bucket in BUCKETS:
        s3.create_bucket(Bucket=bucket)
        asyncio.run(want_all(server, bucket))
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda seed: write(server, seed), range(WRITERS)))


def told(database: psycopg.Connection, sent: list[tuple[bytes, str]]) -> None:
    for start in range(0, len(sent), 50):
        rows = [found for body, header in sent[start : start + 50] if isinstance(found := read(body, header), Row)]
        assert len(rows) == len(sent[start : start + 50])
        with database.transaction():
            merge(database, rows)


def known(database: psycopg.Connection, bucket: str) -> list[tuple[Any, ...]]:
    """As `listed` has them."""
    names = ("key", "version_id", "is_latest", "delete_marker", "size", "etag")
    rows = [tuple(row[name] for name in names) for row in listing.versions(database, bucket)]
    return sorted(rows, key=lambda each: each[3])


def test_what_the_notifications_tell_is_what_the_store_lists(
    spark: SparkSession, spark_database: psycopg.Connection, server: Server
) -> None:
    written(server)
    sent = notifications(spark, spark_database)
    sent += random.Random(1).choices(sent, k=len(sent) // 4)
    random.Random(2).shuffle(sent)
    told(spark_database, sent)
    store = {bucket: listed(server, bucket) for bucket in BUCKETS}
    for bucket, there in store.items():
        assert known(spark_database, bucket) == there
    assert any(each[3] for there in store.values() for each in there)  # delete markers


def test_what_was_withheld_is_repaired_to_what_the_store_lists_however_it_is_listed(
    spark: SparkSession, spark_database: psycopg.Connection, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
    registry = reconcile.load("inventory", settings.load())
    sent = notifications(spark, spark_database)
    for seed, ours in enumerate((True, False)):
        spark_database.execute("truncate inventory")
        draw, repaired = random.Random(seed), 0
        told(spark_database, [each for each in sent if draw.random() < 0.6])
        for bucket in BUCKETS:
            at = Ours.of(spark_database, server.project, bucket) if ours else Elsewhere.of(bucket, server.endpoint)
            found = reconcile.reconcile(spark, at, registry, repair=True)
            store = listed(server, bucket)
            assert found.listed == len(store)
            assert found.repaired == found.missing + found.extra + found.different + found.misplaced
            repaired += found.repaired
            assert known(spark_database, bucket) == store, at
        after = reconcile.reconcile(spark, at, registry, repair=True)
        assert (after.missing, after.extra, after.different, after.misplaced, after.repaired) == (0, 0, 0, 0, 0)
        if ours:  # what comes late all the same changes nothing
            told(spark_database, sent)
            assert all(known(spark_database, bucket) == listed(server, bucket) for bucket in BUCKETS)
        assert repaired > 3
