"""boto3 and the AWS command line at their default settings, against the server as a process."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from s3_server import Server, s3_server

from conftest import fresh_database
from tidings.local.postgres import Postgres
from waiting import PATIENCE_SECONDS

SIZES = [0, 1, 4096, 4097, 20 * 1024 * 1024]
ODD_KEYS = [
    "plain",
    "with space",
    "plus+percent%25%",
    "ünïcödé/日本語/🎉",
    "/leading",
    "trailing/",
    "a/./b/..c/...",
    "?query=1&x#fragment",
    "next\x85line\u2028",
    "quotes'\"<&>",
    "\U0010ffff",
    "~*!()'-_.",
    "x" * 1024,
]


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(fresh_database(postgres, "s3_clients"), tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(scope="module")
def s3(server: Server) -> Any:
    return server.client()


@pytest.fixture
def bucket(s3: Any, request: pytest.FixtureRequest) -> str:
    name = f"b-{hashlib.md5(request.node.name.encode()).hexdigest()}"
    s3.create_bucket(Bucket=name)
    return name


def problem(caught: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    return caught.value.response["Error"]["Code"], caught.value.response["ResponseMetadata"]["HTTPStatusCode"]


@pytest.mark.parametrize("size", SIZES)
def test_an_object_of_any_size_comes_back_whole_and_in_part(server: Server, s3: Any, bucket: str, size: int) -> None:
    data = os.urandom(size)
    put = s3.put_object(Bucket=bucket, Key="key", Body=data)
    assert put["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
    assert put["ChecksumCRC32"]
    got = s3.get_object(Bucket=bucket, Key="key")
    assert got["Body"].read() == data
    assert (got["ContentLength"], got["ETag"], got["ContentType"]) == (size, put["ETag"], "binary/octet-stream")
    assert got["ChecksumCRC32"] == put["ChecksumCRC32"]
    if size > 2:
        part = s3.get_object(Bucket=bucket, Key="key", Range=f"bytes=1-{size - 2}")
        assert part["Body"].read() == data[1:-1]
        assert part["ContentRange"] == f"bytes 1-{size - 2}/{size}"
        assert "ChecksumCRC32" not in part
    (change,) = server.query("select event, size, etag from changes where bucket = %s", bucket)
    assert change == ("ObjectCreated:Put", size, put["ETag"].strip('"'))


def test_after_an_empty_object_the_next_one_is_answered_too(s3: Any, bucket: str) -> None:
    """boto3 announces even an empty body with 100-continue, and must not take the answer for that of the next request."""
    for body in (b"", b"x", b"", b"y"):
        assert s3.put_object(Bucket=bucket, Key="key", Body=body)["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    with pytest.raises(ClientError):
        s3.put_object(Bucket="no-such-bucket", Key="key", Body=b"")
    assert s3.put_object(Bucket=bucket, Key="key", Body=b"z")["ETag"] == f'"{hashlib.md5(b"z").hexdigest()}"'


def test_a_replaced_and_a_deleted_body_leave_no_blob_behind(server: Server, s3: Any, bucket: str) -> None:
    before = set(server.blobs())
    for _ in range(3):
        s3.put_object(Bucket=bucket, Key="key", Body=os.urandom(10_000))
    wait_for(lambda: len(set(server.blobs()) - before) == 1)
    s3.delete_object(Bucket=bucket, Key="key")
    wait_for(lambda: set(server.blobs()) == before)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_reader_never_sees_half_of_a_replacement(server: Server, s3: Any, bucket: str) -> None:
    """Each body says its own number all over; old blobs go while others read."""
    s3.put_object(Bucket=bucket, Key="key", Body=b"0" * 200_000)

    def write(number: int) -> None:
        s3.put_object(Bucket=bucket, Key="key", Body=str(number % 10).encode() * 200_000)

    def read(_: int) -> bool:
        body = s3.get_object(Bucket=bucket, Key="key")["Body"].read()
        return len(body) == 200_000 and len(set(body)) == 1

    with ThreadPoolExecutor(8) as threads:
        writes = [threads.submit(write, number) for number in range(60)]
        assert all(threads.map(read, range(120)))
        for each in writes:
            each.result()
    assert "ERROR" not in server.log


def test_what_nobody_expected_is_an_internal_error_and_is_logged_once(server: Server, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="key", Body=os.urandom(10_000))
    ((blob,),) = server.query(
        "select segments -> 0 ->> 0 from heads join bucket_metainfos b on b.id = bucket_id where b.name = %s", bucket
    )
    (server.folder / "blobs" / blob).unlink()
    with pytest.raises(ClientError) as caught:
        s3.get_object(Bucket=bucket, Key="key")
    assert problem(caught) == ("InternalError", 500)
    assert server.log.count(f"request {caught.value.response['ResponseMetadata']['RequestId']}") == 1
    assert blob not in str(caught.value.response)


def test_a_key_may_be_any_text(server: Server, s3: Any, bucket: str) -> None:
    for key in ODD_KEYS:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    for key in ODD_KEYS:
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    listed = s3.list_objects_v2(Bucket=bucket)
    assert [each["Key"] for each in listed["Contents"]] == sorted(ODD_KEYS, key=str.encode)
    for key in ODD_KEYS:
        s3.delete_object(Bucket=bucket, Key=key)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    assert len(server.query("select from changes where bucket = %s", bucket)) == 2 * len(ODD_KEYS)


def test_metadata_and_the_standard_headers_come_back(s3: Any, bucket: str) -> None:
    given = {
        "ContentType": "text/html; charset=utf-8",
        "CacheControl": "no-store",
        "ContentDisposition": 'attachment; filename="a  b"',
        "ContentEncoding": "gzip",
        "ContentLanguage": "de",
        "Metadata": {"colour": "dark  green", "empty": ""},
    }
    s3.put_object(Bucket=bucket, Key="key", Body=b"x", **given)
    for answer in (s3.head_object(Bucket=bucket, Key="key"), s3.get_object(Bucket=bucket, Key="key")):
        assert {name: answer[name] for name in given} == given
        assert answer["AcceptRanges"] == "bytes"
    overridden = s3.get_object(Bucket=bucket, Key="key", ResponseContentType="text/plain")
    assert overridden["ContentType"] == "text/plain"


def test_a_read_may_have_conditions(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="key", Body=b"x")["ETag"]
    assert s3.get_object(Bucket=bucket, Key="key", IfMatch=etag)["ETag"] == etag
    with pytest.raises(ClientError) as caught:
        s3.get_object(Bucket=bucket, Key="key", IfNoneMatch=etag)
    assert problem(caught)[1] == 304
    with pytest.raises(ClientError) as caught:
        s3.get_object(Bucket=bucket, Key="key", IfMatch='"other"')
    assert problem(caught) == ("PreconditionFailed", 412)


def test_what_is_missing_is_said_to_be_missing(server: Server, s3: Any, bucket: str) -> None:
    for call, arguments, expected in [
        (s3.get_object, {"Bucket": bucket, "Key": "none"}, ("NoSuchKey", 404)),
        (s3.head_object, {"Bucket": bucket, "Key": "none"}, ("404", 404)),
        (s3.get_object, {"Bucket": "no-such-bucket", "Key": "none"}, ("NoSuchBucket", 404)),
        (s3.head_bucket, {"Bucket": "no-such-bucket"}, ("404", 404)),
        (s3.put_object, {"Bucket": "no-such-bucket", "Key": "k", "Body": b"x"}, ("NoSuchBucket", 404)),
        (s3.put_object, {"Bucket": "no-such-bucket", "Key": "k", "Body": bytes(100_000)}, ("NoSuchBucket", 404)),
        (s3.delete_object, {"Bucket": "no-such-bucket", "Key": "k"}, ("NoSuchBucket", 404)),
        (s3.list_objects_v2, {"Bucket": "no-such-bucket"}, ("NoSuchBucket", 404)),
        (s3.get_bucket_notification_configuration, {"Bucket": "no-such-bucket"}, ("NoSuchBucket", 404)),
    ]:
        with pytest.raises(ClientError) as caught:
            call(**arguments)
        assert problem(caught) == expected
    s3.delete_object(Bucket=bucket, Key="none")
    assert server.query("select from changes where bucket = %s", bucket) == []


def test_buckets_are_made_listed_and_deleted(server: Server, s3: Any, bucket: str) -> None:
    listed = s3.list_buckets(Prefix=bucket)
    assert [each["Name"] for each in listed["Buckets"]] == [bucket]
    assert listed["Owner"]["ID"] == server.project
    assert s3.head_bucket(Bucket=bucket)["BucketRegion"] == "us-east-1"
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    with pytest.raises(ClientError) as caught:
        s3.create_bucket(Bucket=bucket)
    assert problem(caught) == ("BucketAlreadyOwnedByYou", 409)
    s3.put_object(Bucket=bucket, Key="key")
    with pytest.raises(ClientError) as caught:
        s3.delete_bucket(Bucket=bucket)
    assert problem(caught) == ("BucketNotEmpty", 409)
    s3.delete_object(Bucket=bucket, Key="key")
    s3.delete_bucket(Bucket=bucket)
    with pytest.raises(ClientError) as caught:
        s3.head_bucket(Bucket=bucket)
    assert problem(caught)[1] == 404


def test_all_buckets_can_be_paged_through(s3: Any) -> None:
    names = [f"paged-{number}" for number in range(5)]
    for name in names:
        s3.create_bucket(Bucket=name)
    pages = s3.get_paginator("list_buckets").paginate(Prefix="paged-", PaginationConfig={"PageSize": 2})
    assert [[each["Name"] for each in page["Buckets"]] for page in pages] == [names[:2], names[2:4], names[4:]]


def test_a_listing_is_paged_and_rolled_up(s3: Any, bucket: str) -> None:
    keys = ["a", "b/1", "b/2", "c d/1", "c d/2/3", "e", "ü/1"]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    paginate = s3.get_paginator("list_objects_v2").paginate
    pages = list(paginate(Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": 2}))
    names = [
        [each["Key"] for each in page.get("Contents", [])] + [each["Prefix"] for each in page.get("CommonPrefixes", [])]
        for page in pages
    ]
    assert names == [["a", "b/"], ["e", "c d/"], ["ü/"]]
    assert [page["IsTruncated"] for page in pages] == [True, True, False]
    under = s3.list_objects_v2(Bucket=bucket, Prefix="c d/", Delimiter="/", FetchOwner=True)
    assert [each["Key"] for each in under["Contents"]] == ["c d/1"]
    assert [each["Prefix"] for each in under["CommonPrefixes"]] == ["c d/2/"]
    assert under["Contents"][0]["Owner"]["ID"]
    after = s3.list_objects_v2(Bucket=bucket, StartAfter="c d/1", MaxKeys=1)
    assert [each["Key"] for each in after["Contents"]] == ["c d/2/3"]


def test_a_transfer_of_many_parts_of_one_object_can_be_downloaded(s3: Any, bucket: str, tmp_path: Path) -> None:
    data = os.urandom(20 * 1024 * 1024)  # more than one part for the transfer manager: ranges, side by side
    s3.put_object(Bucket=bucket, Key="key", Body=data)
    s3.download_file(bucket, "key", str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == data
    s3.upload_fileobj(io.BytesIO(data[:1000]), bucket, "up")
    assert s3.head_object(Bucket=bucket, Key="up")["ContentLength"] == 1000


def test_a_notification_configuration_can_be_read_and_emptied(s3: Any, bucket: str) -> None:
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={})
    found = s3.get_bucket_notification_configuration(Bucket=bucket)
    assert set(found) == {"ResponseMetadata"}
    with pytest.raises(ClientError) as caught:
        s3.put_bucket_notification_configuration(
            Bucket=bucket,
            NotificationConfiguration={"TopicConfigurations": [{"TopicArn": "arn:x", "Events": ["s3:ObjectCreated:*"]}]},
        )
    assert problem(caught) == ("InvalidArgument", 400)


def test_what_is_not_served_says_so_and_changes_nothing(server: Server, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="key", Body=b"x")
    before = server.everything()
    where: dict[str, Any] = {"Bucket": bucket, "Key": "key"}
    for name, call, arguments in [
        ("GetObjectAttributes", s3.get_object_attributes, {**where, "ObjectAttributes": ["ETag"]}),
        ("GetBucketLifecycleConfiguration", s3.get_bucket_lifecycle_configuration, {"Bucket": bucket}),
        ("PutObjectLegalHold", s3.put_object_legal_hold, {**where, "LegalHold": {"Status": "ON"}}),
        ("PutObjectAcl", s3.put_object_acl, {**where, "ACL": "public-read"}),
        ("PutObject with x-amz-acl", s3.put_object, {**where, "ACL": "public-read"}),
        ("PutObject with x-amz-server-side-encryption", s3.put_object, {**where, "ServerSideEncryption": "AES256"}),
        ("DeleteObject with if-match", s3.delete_object, {**where, "IfMatch": "x"}),
    ]:
        with pytest.raises(ClientError) as caught:
            call(**arguments)
        assert problem(caught) == ("NotImplemented", 501), name
        assert caught.value.response["Error"]["Operation"] == name
    assert server.everything() == before


def aws(server: Server, *arguments: str, stdin: bytes = b"", fails: bool = False) -> Any:
    command = [str(Path(sys.executable).parent / "aws"), *arguments]
    done = subprocess.run(command, env=server.environment(), input=stdin, capture_output=True, check=False, timeout=60)
    assert (done.returncode != 0) == fails, done.stderr.decode()
    if fails:
        return done.stderr.decode()
    return json.loads(done.stdout) if arguments[0] == "s3api" and done.stdout else done.stdout.decode()


def test_the_aws_command_line_works(server: Server, tmp_path: Path) -> None:
    body, copy = tmp_path / "body", tmp_path / "copy"
    body.write_bytes(os.urandom(300_000))
    aws(server, "s3api", "create-bucket", "--bucket", "from-the-shell")
    put = aws(server, "s3api", "put-object", "--bucket", "from-the-shell", "--key", "a b/ü", "--body", str(body))
    got = aws(server, "s3api", "get-object", "--bucket", "from-the-shell", "--key", "a b/ü", str(copy))
    assert put["ETag"] == got["ETag"] == f'"{hashlib.md5(body.read_bytes()).hexdigest()}"'
    assert copy.read_bytes() == body.read_bytes()
    aws(server, "s3", "cp", "-", "s3://from-the-shell/hello.txt", stdin=b"hello")
    assert aws(server, "s3", "cp", "s3://from-the-shell/hello.txt", "-") == "hello"
    assert "PRE a b/" in aws(server, "s3", "ls", "s3://from-the-shell")
    aws(server, "s3", "rm", "--recursive", "s3://from-the-shell")
    assert "NoSuchKey" in aws(
        server, "s3api", "get-object", "--bucket", "from-the-shell", "--key", "a b/ü", str(copy), fails=True
    )
