"""The tools that people have already: the transfer manager, `aws s3`, s3fs and obstore, at their default settings."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import psutil
import pytest
import s3fs
from botocore.exceptions import ClientError
from obstore.store import S3Store
from s3_server import REGION, Server, s3_server

from conftest import Say, fresh_database
from tidings.local.postgres import Postgres

LARGE = 200 * 1024 * 1024
MOST_MEMORY = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(fresh_database(postgres, "s3_tools"), tmp_path_factory.mktemp("s3")) as running:
        yield running


def aws(server: Server, *arguments: str, **environment: str) -> str:
    command = [str(Path(sys.executable).parent / "aws"), *arguments]
    variables = {**server.environment(), **environment}
    done = subprocess.run(command, env=variables, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def events(server: Server, bucket: str) -> list[tuple[str, str, str]]:
    rows = server.query("select operation, event, key from changes where bucket = %s order by seq", bucket)
    return [(row[0], row[1], row[2]) for row in rows]


class Memory:
    """The most memory that the server had above where it began, looked at ten times a second."""

    def __init__(self, server: Server) -> None:
        self._processes = [psutil.Process(server.process.pid)]
        self._processes += self._processes[0].children(recursive=True)
        self._over = threading.Event()
        self._begin = self._now()
        self.grown = 0
        self._thread = threading.Thread(target=self._watch)

    def _now(self) -> int:
        return sum(process.memory_info().rss for process in self._processes)

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.grown = max(self.grown, self._now() - self._begin)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_the_transfer_manager_moves_a_large_file_and_the_server_stays_small(server: Server, tmp_path: Path, say: Say) -> None:
    s3 = server.client()
    s3.create_bucket(Bucket="large")
    for _ in range(3):  # whatever grows once, grows now
        s3.upload_fileobj(_zeros(20 * 1024 * 1024), "large", "warm")
    sent, got = tmp_path / "sent", tmp_path / "got"
    block = os.urandom(1024 * 1024)
    with sent.open("wb") as file:
        for number in range(LARGE // len(block)):
            file.write(number.to_bytes(4, "big") + block[4:])
    with Memory(server) as memory:
        s3.upload_file(str(sent), "large", "file")
        s3.download_file("large", "file", str(got))
    assert _sha256(got) == _sha256(sent)
    assert memory.grown <= MOST_MEMORY, f"grown by {memory.grown / 2**20:.0f} MiB"
    say(f"200 MiB up and down: the server grew by {memory.grown / 2**20:.0f} MiB")
    assert events(server, "large")[-1] == ("commit with segments", "ObjectCreated:CompleteMultipartUpload", "file")


def _zeros(size: int) -> Any:
    import io

    return io.BytesIO(bytes(size))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_aws_s3_copies_syncs_moves_removes_and_presigns(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    for number in range(5):
        (folder / f"file {number}.txt").write_text(f"number {number}")
    (folder / "deep" / "large.bin").write_bytes(os.urandom(9 * 1024 * 1024))  # above the limit for one PUT
    aws(server, "s3", "mb", "s3://tools")
    aws(server, "s3", "sync", str(folder), "s3://tools/in")
    assert aws(server, "s3", "sync", str(folder), "s3://tools/in") == ""
    aws(server, "s3", "cp", "s3://tools/in/deep/large.bin", "s3://tools/copy.bin")
    aws(server, "s3", "mv", "s3://tools/in/file 0.txt", "s3://tools/moved.txt")
    back = tmp_path / "back"
    aws(server, "s3", "cp", "--recursive", "s3://tools", str(back))
    assert (back / "copy.bin").read_bytes() == (folder / "deep" / "large.bin").read_bytes()
    assert (back / "moved.txt").read_text() == "number 0"
    assert not (back / "in" / "file 0.txt").exists()
    # The first version of the command line presigns for us-east-1 with the signature that S3 had before this one.
    config = tmp_path / "config"
    config.write_text("[default]\ns3 =\n    signature_version = s3v4\n")
    url = aws(server, "s3", "presign", "s3://tools/moved.txt", AWS_CONFIG_FILE=str(config)).strip()
    with urllib.request.urlopen(url, timeout=60) as response:
        assert response.read() == b"number 0"
    aws(server, "s3", "rm", "--recursive", "s3://tools")
    assert (
        json.loads(aws(server, "s3api", "list-objects-v2", "--bucket", "tools", "--output", "json") or "{}").get("Contents")
        is None
    )
    assert ("finish copy", "ObjectCreated:Copy", "moved.txt") in events(server, "tools")
    aws(server, "s3", "rb", "s3://tools")


def test_s3fs_reads_writes_lists_moves_and_removes(server: Server) -> None:
    files = s3fs.S3FileSystem(
        key=server.access_key_id,
        secret=server.secret,
        client_kwargs={"endpoint_url": server.endpoint, "region_name": REGION},
    )
    files.mkdir("with-s3fs")
    with files.open("with-s3fs/a/one.txt", "wb") as file:
        file.write(b"one")
    large = os.urandom(12 * 1024 * 1024)
    with files.open("with-s3fs/a/large.bin", "wb", block_size=5 * 1024 * 1024) as file:
        file.write(large)
    assert files.cat("with-s3fs/a/one.txt") == b"one"
    with files.open("with-s3fs/a/large.bin", "rb") as file:
        file.seek(6_000_000)
        assert file.read(1000) == large[6_000_000:6_001_000]
    assert sorted(files.ls("with-s3fs/a")) == ["with-s3fs/a/large.bin", "with-s3fs/a/one.txt"]
    files.mv("with-s3fs/a/one.txt", "with-s3fs/b.txt")
    assert (files.exists("with-s3fs/a/one.txt"), files.info("with-s3fs/b.txt")["size"]) == (False, 3)
    files.rm("with-s3fs", recursive=True)
    assert events(server, "with-s3fs")[-1][1] == "ObjectRemoved:Delete"


def test_obstore_puts_gets_lists_copies_and_deletes(server: Server) -> None:
    server.client().create_bucket(Bucket="with-obstore")
    store = S3Store(
        "with-obstore",
        endpoint=server.endpoint,
        region=REGION,
        access_key_id=server.access_key_id,
        secret_access_key=server.secret,
        client_options={"allow_http": True},
    )
    large = os.urandom(12 * 1024 * 1024)
    obstore.put(store, "a/small", b"hello")
    obstore.put(store, "a/large", large)
    assert bytes(obstore.get(store, "a/large").bytes()) == large
    assert bytes(obstore.get_range(store, "a/large", start=10, end=20)) == large[10:20]
    obstore.copy(store, "a/small", "b")
    obstore.rename(store, "b", "c")
    listed = sorted(each["path"] for batch in obstore.list(store) for each in batch)
    assert listed == ["a/large", "a/small", "c"]
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "c", b"again", mode="create")
    obstore.delete(store, listed)
    assert [batch for batch in obstore.list(store) if batch] == []


def test_a_bucket_is_emptied_and_deleted_with_all_its_versions(server: Server) -> None:
    s3 = server.client()
    s3.create_bucket(Bucket="full")
    s3.put_bucket_versioning(Bucket="full", VersioningConfiguration={"Status": "Enabled"})
    for number in range(3):
        s3.put_object(Bucket="full", Key="a", Body=os.urandom(5000 + number))
        s3.put_object(Bucket="full", Key=f"b{number}", Body=b"x")
    s3.delete_object(Bucket="full", Key="a")
    before = len(server.blobs())
    settings = {
        "TIDINGS_DATABASE__URL": server.database_url,
        "TIDINGS_STORE__BLOBS": f"file://{server.folder}/blobs",
        "TIDINGS_BUCKET_EVENTING__PROJECTS": "*",
    }

    def tidings(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "tidings"), *arguments]
        return subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=120)

    refused = tidings("bucket", "delete", "full", "--project", "tests")
    assert (refused.returncode, "not empty" in refused.stderr) == (2, True), refused.stderr
    done = tidings("bucket", "empty", "full", "--project", "tests")
    assert done.stdout == "bucket full is empty: 4 keys removed with all their versions\n", done.stderr
    assert s3.list_object_versions(Bucket="full").get("Versions") is None
    assert len(server.blobs()) == before - 3
    assert [each[0] for each in events(server, "full")].count("delete all versions") == 7
    s3.put_object(Bucket="full", Key="last", Body=b"x")
    done = tidings("bucket", "delete", "full", "--force", "--project", "tests", "--json")
    assert json.loads(done.stdout) == {"bucket": "full", "keys": 1}
    assert "full" not in [each["Name"] for each in s3.list_buckets()["Buckets"]]
    assert "does not exist" in tidings("bucket", "empty", "full", "--project", "tests").stderr


def sweep(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = {"TIDINGS_DATABASE__URL": server.database_url, "TIDINGS_STORE__BLOBS": f"file://{server.folder}/blobs"}
    command = [str(Path(sys.executable).parent / "tidings"), "sweep", *arguments]
    return subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=120)


def test_a_sweep_of_another_database_s_blobs_is_refused_until_they_are_adopted(postgres: Postgres, tmp_path: Path) -> None:
    """Two databases on one folder: what the one does not know, the other may."""
    with s3_server(fresh_database(postgres, "s3_first_owner"), tmp_path) as server:
        s3 = server.client()
        s3.create_bucket(Bucket="bucket")
        s3.put_object(Bucket="bucket", Key="live", Body=bytes(6000))
        old = time.time() - 7 * 3600
        for path in server.blobs():
            os.utime(path, (old, old))
        assert sweep(server).returncode == 0
        other = replace(server, database_url=fresh_database(postgres, "s3_second_owner"))
        refused = sweep(other)
        assert (refused.returncode, "belong to another database" in refused.stderr, "--adopt" in refused.stderr) == (
            2,
            True,
            True,
        )
        assert s3.get_object(Bucket="bucket", Key="live")["Body"].read() == bytes(6000)
        assert "1 orphans" in sweep(other, "--adopt").stdout
        assert sweep(server).returncode == 2


def test_what_an_upload_promises_about_its_object_is_checked(server: Server) -> None:
    s3 = server.client()
    s3.create_bucket(Bucket="promised")
    place = {"Bucket": "promised", "Key": "key"}
    body = os.urandom(5 << 20) + b"rest"
    crc = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()

    def begun(**how: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
        upload = {**place, "UploadId": s3.create_multipart_upload(**place, **how)["UploadId"]}
        parts = []
        for number, piece in enumerate((body[: 5 << 20], body[5 << 20 :]), 1):
            done = s3.upload_part(**upload, PartNumber=number, Body=piece, ChecksumAlgorithm="CRC32")
            parts.append({"PartNumber": number, "ETag": done["ETag"]})
        return upload, parts

    upload, parts = begun(ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    for wrong in (
        {"ChecksumCRC32": "AAAAAA=="},
        {"MpuObjectSize": 999},
        {"ChecksumType": "COMPOSITE"},
        {"ChecksumSHA1": "A" * 28},
    ):
        with pytest.raises(ClientError) as caught:
            s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **wrong)
        assert caught.value.response["Error"]["Code"] in ("BadDigest", "InvalidRequest")
    right = {"ChecksumCRC32": crc, "ChecksumType": "FULL_OBJECT", "MpuObjectSize": len(body)}
    done = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **right)
    assert done["ChecksumCRC32"] == crc
    again = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **right)  # the answer was lost
    assert (again["ETag"], again["ChecksumCRC32"]) == (done["ETag"], crc)
    assert len(events(server, "promised")) == 1
    s3.put_object(**place, Body=b"other")
    with pytest.raises(ClientError, match="NoSuchUpload"):
        s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    upload, parts = begun(ChecksumAlgorithm="crc32", ChecksumType="FULL_OBJECT")
    assert s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})["ChecksumCRC32"] == crc


def test_a_thousand_long_keys_are_deleted_at_once(server: Server) -> None:
    s3 = server.client()
    s3.create_bucket(Bucket="thousand")
    names = [f"{number:04}/" + "ü&" * 300 for number in range(1000)]
    s3.put_object(Bucket="thousand", Key=names[500], Body=b"x")
    done = s3.delete_objects(Bucket="thousand", Delete={"Objects": [{"Key": name} for name in names]})
    assert len(done["Deleted"]) == 1000
    assert [each[1] for each in events(server, "thousand")] == ["ObjectCreated:Put", "ObjectRemoved:Delete"]


def test_a_sweep_removes_orphans_and_nothing_else(server: Server) -> None:
    s3 = server.client()
    s3.create_bucket(Bucket="swept")
    body = os.urandom(6000)
    s3.put_object(Bucket="swept", Key="live", Body=body)
    upload = s3.create_multipart_upload(Bucket="swept", Key="going")["UploadId"]
    s3.upload_part(Bucket="swept", Key="going", UploadId=upload, PartNumber=1, Body=body)
    orphan = server.folder / "blobs" / "ab" / ("ab" + "0" * 30)
    orphan.write_bytes(b"left by a crash")
    strangers = [server.folder / "blobs" / name for name in ("README", "base/1234", "ab/0123", "ab/notes#1", "ab/cd/ef")]
    for path in strangers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not ours")
    young = server.folder / "blobs" / "cd" / ("cd" + "0" * 30)
    young.write_bytes(b"of an upload under way")
    old = time.time() - 7 * 3600
    before = set(server.blobs()) - {young, *strangers}
    for path in (*before, *strangers):
        os.utime(path, (old, old))
    live = {
        server.folder / "blobs" / row[0]
        for row in server.query(
            "select segment ->> 0 from (select segments from heads union all select segments from versions) h,"
            " jsonb_array_elements(segments) segment where segments is not null union all select segment from parts"
        )
    }
    assert orphan in before - live  # and what replaced objects have left for slow readers
    done = sweep(server, "--json")
    assert json.loads(done.stdout) == {"seen": len(before), "removed": len(before - live), "expired_parts": 0}
    assert set(server.blobs()) - {*strangers} == live | {young}
    assert all(path.exists() for path in strangers)
    young.unlink()
    server.query("update uploads set created_at = now() - interval '8 days' where id = %s returning 1", upload)
    assert sweep(server).returncode == 0
    assert s3.list_multipart_uploads(Bucket="swept").get("Uploads") is None
    assert s3.get_object(Bucket="swept", Key="live")["Body"].read() == body
