"""kill -9 on the API in the middle of uploads, copies, completes, moves and deletes: what is there is whole.

Afterwards every listed version is readable with its checksum. The changes, followed in their order, lead to exactly the
versions that are there: none is without a change, and no change is without what it speaks of. What a client was told is
done has its change. No orphan survives a sweep. The short form has 3 kills; `make chaos` does 30.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from s3_server import Server, s3_server, start, wait_until_ready

from conftest import Say, fresh_database
from tidings.local.postgres import Postgres
from traffic import seeded

KEYS = [f"key-{number}" for number in range(6)]
PART = 5 * 1024 * 1024
BUCKETS = ("plain", "versioned", "suspended")
PAGE = 20


@pytest.fixture
def server(postgres: Postgres, tmp_path: Path) -> Iterator[Server]:
    with s3_server(fresh_database(postgres, "store_kill"), tmp_path) as running:
        yield running


class Client(threading.Thread):
    """Does one operation after the other, whatever becomes of them. Each body says in its metadata what its hash is."""

    def __init__(self, server: Server, seed: int, over: threading.Event) -> None:
        super().__init__()
        self._s3 = server.client(connect_timeout=1, read_timeout=5)
        self._draw = random.Random(seed)
        self._over = over
        self.done = 0
        self.answered: list[str] = []

    def run(self) -> None:
        steps = [self._small, self._large, self._copy, self._move, self._multipart, self._remove, self._remove_version]
        steps.append(self._small_with_an_id)
        while not self._over.is_set():
            try:
                self._draw.choice(steps)(self._draw.choice(BUCKETS), self._draw.choice(KEYS))
                self.done += 1
            except (ClientError, BotoCoreError):
                time.sleep(0.05)  # it is being killed, or what was asked for is not there

    def _created(self, answer: Any) -> None:
        """What made a version and was answered: its change must be there, whatever happens next."""
        self.answered.append(answer["ResponseMetadata"]["RequestId"])

    def _put(self, bucket: str, key: str, body: bytes) -> None:
        sha = hashlib.sha256(body).hexdigest()
        self._created(self._s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata={"sha": sha}))

    def _small(self, bucket: str, key: str) -> None:
        self._put(bucket, key, self._draw.randbytes(self._draw.randrange(1, 4000)))

    def _large(self, bucket: str, key: str) -> None:
        self._put(bucket, key, self._draw.randbytes(self._draw.randrange(5000, 3_000_000)))

    def _copy(self, bucket: str, key: str) -> None:
        source = {"Bucket": self._draw.choice(BUCKETS), "Key": self._draw.choice(KEYS)}
        self._created(self._s3.copy_object(Bucket=bucket, Key=key, CopySource=source))

    def _move(self, bucket: str, key: str) -> None:
        source = f"/{self._draw.choice(BUCKETS)}/{self._draw.choice(KEYS)}"
        self._created(self._s3.rename_object(Bucket=bucket, Key=key, RenameSource=source))

    def _multipart(self, bucket: str, key: str) -> None:
        parts = [self._draw.randbytes(PART), self._draw.randbytes(1000)]
        sha = hashlib.sha256(b"".join(parts)).hexdigest()
        upload = self._s3.create_multipart_upload(Bucket=bucket, Key=key, Metadata={"sha": sha})["UploadId"]
        where: dict[str, Any] = {"Bucket": bucket, "Key": key, "UploadId": upload}
        tags = [self._s3.upload_part(**where, PartNumber=n, Body=body)["ETag"] for n, body in enumerate(parts, 1)]
        listed = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        self._created(self._s3.complete_multipart_upload(**where, MultipartUpload={"Parts": listed}))

    def _remove(self, bucket: str, key: str) -> None:
        self._s3.delete_object(Bucket=bucket, Key=key)

    def _remove_version(self, _bucket: str, key: str) -> None:
        bucket = self._draw.choice(["versioned", "suspended"])
        answer = self._s3.list_object_versions(Bucket=bucket, Prefix=key)
        if found := [*answer.get("Versions", []), *answer.get("DeleteMarkers", [])]:
            self._s3.delete_object(Bucket=bucket, Key=key, VersionId=self._draw.choice(found)["VersionId"])

    def _small_with_an_id(self, _bucket: str, key: str) -> None:
        """In the suspended bucket, so that its null versions come to lie behind others."""
        set_versioning(self._s3, "suspended", "Enabled")
        self._small("suspended", key)
        set_versioning(self._s3, "suspended", "Suspended")


def set_versioning(s3: Any, bucket: str, status: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})


def run(server: Server, say: Say, kills: int) -> None:
    seed = seeded()
    draw = random.Random(seed)
    s3 = server.client()
    for bucket in BUCKETS:
        s3.create_bucket(Bucket=bucket)
    set_versioning(s3, "versioned", "Enabled")
    set_versioning(s3, "suspended", "Suspended")
    settings = {
        "TIDINGS_DATABASE__URL": server.database_url,
        "TIDINGS_STORE__BLOBS": f"file://{server.folder}/blobs",
        "TIDINGS_API__PORT": str(server.port),
        "TIDINGS_BUCKET_EVENTING__PROJECTS": "*",
    }
    over = threading.Event()
    clients = [Client(server, seed + number, over) for number in range(6)]
    for client in clients:
        client.start()
    try:
        for _ in range(kills):
            time.sleep(0.5 + draw.random())
            family = [*psutil.Process(server.process.pid).children(recursive=True), psutil.Process(server.process.pid)]
            for process in family:
                process.send_signal(signal.SIGKILL)
            psutil.wait_procs(family, 10)
            with (server.folder / "server.log").open("ab") as log:
                server.process = start(settings, log)
            wait_until_ready(server)
        time.sleep(1)
    finally:
        over.set()
        for client in clients:
            client.join()
    done = sum(client.done for client in clients)
    whole = everything_is_whole(s3)
    assert done > 5 * kills
    the_changes_explain_what_is_there(server, s3)
    known = {row[0] for row in server.query("select request_id from changes")}
    assert {request_id for client in clients for request_id in client.answered} <= known
    swept = no_orphan_survives(server, settings)
    say(f"seed {seed}: {kills} kills, {done} operations answered, {whole} versions read and whole, {swept} orphans swept")


def everything_is_whole(s3: Any) -> int:
    """Returns how many versions were read."""
    read = 0
    for bucket in BUCKETS:
        for kind, each in listed(s3, bucket):
            if kind == "Versions":
                got = s3.get_object(Bucket=bucket, Key=each["Key"], VersionId=each["VersionId"])
                assert hashlib.sha256(got["Body"].read()).hexdigest() == got["Metadata"]["sha"], each
                read += 1
    return read


def listed(s3: Any, bucket: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Versions and delete markers, from all pages."""
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket, PaginationConfig={"PageSize": PAGE}):
        for kind in ("Versions", "DeleteMarkers"):
            yield from ((kind, each) for each in page.get(kind, []))


Versions = dict[tuple[str, str], list[tuple[str, bool, str, int]]]
"""Of each bucket and key the versions, the newest last: id, whether it is a delete marker, etag, size."""


def the_changes_explain_what_is_there(server: Server, s3: Any) -> None:
    there = as_the_tables_say(server)
    explained = as_the_changes_say(server)
    assert there == explained, {
        place: {"there": there.get(place), "by the changes": explained.get(place)}
        for place in {*there, *explained}
        if there.get(place) != explained.get(place)
    }
    for bucket in BUCKETS:
        found = {
            (each["Key"], each["VersionId"], kind == "DeleteMarkers", each["IsLatest"]) for kind, each in listed(s3, bucket)
        }
        assert found == {
            (key, version_id, marker, version_id == versions[-1][0])
            for (name, key), versions in explained.items()
            if name == bucket
            for version_id, marker, _, _ in versions
        }


def as_the_tables_say(server: Server) -> Versions:
    columns = "bucket_id, key, version_id, delete_marker, etag, size, ordinal"
    found: Versions = defaultdict(list)
    for bucket, key, *version in server.query(
        "select b.name, key, version_id, delete_marker, etag, size"
        f" from (select {columns}, true as newest from heads union all select {columns}, false from versions) v"
        " join bucket_metainfos b on b.id = v.bucket_id order by newest, ordinal"
    ):
        found[bucket, key].append((version[0], version[1], version[2], version[3]))
    return dict(found)


def as_the_changes_say(server: Server) -> Versions:
    """Each change done again in memory, in their order."""
    found: dict[tuple[str, str], dict[str, tuple[str, bool, str, int]]] = defaultdict(dict)
    for bucket, key, event, version_id, etag, size in server.query(
        "select b.name, key, event, coalesce(version_id, 'null'), etag, size"
        " from changes c join bucket_metainfos b on b.id = c.bucket_id and b.name = c.bucket order by seq"
    ):
        versions = found[bucket, key]
        before = versions.pop(version_id, None)
        if event.startswith("ObjectCreated:"):
            versions[version_id] = (version_id, False, etag, size)
        elif event == "ObjectRemoved:DeleteMarkerCreated":
            versions[version_id] = (version_id, True, "", 0)
        else:
            assert event == "ObjectRemoved:Delete"
            assert before is not None, f"{bucket}/{key}: version {version_id} was deleted, but no change made it"
    return {place: list(versions.values()) for place, versions in found.items() if versions}


def no_orphan_survives(server: Server, settings: dict[str, str]) -> int:
    """Sweep, and look; returns how many orphans there were."""
    server.query("delete from uploads returning 1")
    command = [str(Path(sys.executable).parent / "tidings"), "sweep", "--min-age-minutes", "0", "--json"]
    swept = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True, timeout=60)
    wanted = {
        row[0]
        for row in server.query(
            "select segment ->> 0 from (select segments from heads union all select segments from versions) h,"
            " jsonb_array_elements(segments) segment where segments is not null"
        )
    }
    found = {str(path.relative_to(server.folder / "blobs")) for path in server.blobs()}
    assert found == wanted
    removed: int = json.loads(swept.stdout)["removed"]
    return removed


def test_what_is_there_after_a_kill_is_whole(server: Server, say: Say) -> None:
    run(server, say, kills=3)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_what_is_there_after_thirty_kills_is_whole(server: Server, say: Say) -> None:
    run(server, say, kills=30)
