"""kill -9 on the API in the middle of uploads, copies, completes, moves and deletes: what is there is whole.

Afterwards every listed version is readable with its checksum, every change has the state that it speaks of, and no orphan
survives a sweep. The short form has 5 kills; `make chaos` does 30.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from s3_server import Server, s3_server, start, wait_until_ready

from conftest import fresh_database
from tidings.local.postgres import Postgres

KEYS = [f"key-{number}" for number in range(6)]
PART = 5 * 1024 * 1024


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

    def run(self) -> None:
        steps = [self._small, self._large, self._copy, self._move, self._multipart, self._remove, self._remove_version]
        while not self._over.is_set():
            try:
                self._draw.choice(steps)(self._draw.choice(["plain", "versioned"]), self._draw.choice(KEYS))
                self.done += 1
            except (ClientError, BotoCoreError):
                time.sleep(0.05)  # it is being killed, or what was asked for is not there

    def _put(self, bucket: str, key: str, body: bytes) -> None:
        self._s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata={"sha": hashlib.sha256(body).hexdigest()})

    def _small(self, bucket: str, key: str) -> None:
        self._put(bucket, key, self._draw.randbytes(self._draw.randrange(4000)))

    def _large(self, bucket: str, key: str) -> None:
        self._put(bucket, key, self._draw.randbytes(self._draw.randrange(5000, 3_000_000)))

    def _copy(self, bucket: str, key: str) -> None:
        source = {"Bucket": self._draw.choice(["plain", "versioned"]), "Key": self._draw.choice(KEYS)}
        self._s3.copy_object(Bucket=bucket, Key=key, CopySource=source)

    def _move(self, bucket: str, key: str) -> None:
        source = f"/{self._draw.choice(['plain', 'versioned'])}/{self._draw.choice(KEYS)}"
        self._s3.rename_object(Bucket=bucket, Key=key, RenameSource=source)

    def _multipart(self, bucket: str, key: str) -> None:
        parts = [self._draw.randbytes(PART), self._draw.randbytes(1000)]
        sha = hashlib.sha256(b"".join(parts)).hexdigest()
        upload = self._s3.create_multipart_upload(Bucket=bucket, Key=key, Metadata={"sha": sha})["UploadId"]
        where: dict[str, Any] = {"Bucket": bucket, "Key": key, "UploadId": upload}
        tags = [self._s3.upload_part(**where, PartNumber=n, Body=body)["ETag"] for n, body in enumerate(parts, 1)]
        listed = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        self._s3.complete_multipart_upload(**where, MultipartUpload={"Parts": listed})

    def _remove(self, bucket: str, key: str) -> None:
        self._s3.delete_object(Bucket=bucket, Key=key)

    def _remove_version(self, _bucket: str, key: str) -> None:
        found = self._s3.list_object_versions(Bucket="versioned", Prefix=key).get("Versions", [])
        if found:
            self._s3.delete_object(Bucket="versioned", Key=key, VersionId=self._draw.choice(found)["VersionId"])


def run(server: Server, kills: int) -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**32))
    print(f"\n  seed {seed}: ", end="")
    draw = random.Random(seed)
    s3 = server.client()
    for bucket in ("plain", "versioned"):
        s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    settings = {
        "TIDINGS_DATABASE__URL": server.database_url,
        "TIDINGS_STORE__BLOBS": f"file://{server.folder}/blobs",
        "TIDINGS_API__PORT": str(server.port),
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
    everything_is_whole(server, s3, sum(client.done for client in clients), kills)
    no_orphan_survives(server, settings)


def everything_is_whole(server: Server, s3: Any, done: int, kills: int) -> None:
    read = 0
    for bucket in ("plain", "versioned"):
        for each in s3.list_object_versions(Bucket=bucket).get("Versions", []):
            got = s3.get_object(Bucket=bucket, Key=each["Key"], VersionId=each["VersionId"])
            assert hashlib.sha256(got["Body"].read()).hexdigest() == got["Metadata"]["sha"], each
            read += 1
    for bucket, key, event, etag, version_id in server.query(
        "select distinct on (bucket, key) bucket, key, event, etag, version_id from changes order by bucket, key, seq desc"
    ):
        rows = server.query(
            "select etag, version_id, delete_marker from heads h join bucket_metainfos b on b.id = h.bucket_id"
            " where b.name = %s and h.key = %s",
            bucket,
            key,
        )
        if event.startswith("ObjectCreated"):
            assert rows[0][0] == etag, (bucket, key)
        elif event.endswith("DeleteMarkerCreated"):
            assert rows[0][1:] == (version_id, True), (bucket, key)
        elif bucket == "plain":
            assert rows == [], (bucket, key)
        else:
            assert all(row[1] != version_id for row in rows), (bucket, key)
    print(f"{kills} kills, {done} operations answered, {read} versions read and whole", end="")
    assert done > 5 * kills


def no_orphan_survives(server: Server, settings: dict[str, str]) -> None:
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
    print(f", {json.loads(swept.stdout)['removed']} orphans swept", end="")


@pytest.mark.timeout(300)
def test_what_is_there_after_a_kill_is_whole(server: Server) -> None:
    run(server, kills=5)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_what_is_there_after_thirty_kills_is_whole(server: Server) -> None:
    run(server, kills=30)
