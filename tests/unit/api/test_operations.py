from __future__ import annotations

import pytest

from tidings.api import operations
from tidings.api.request import target
from tidings.errors import CallerError


def found(method: str, path: str, query: str = "", **headers: str) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return operations.find(method, target(path.encode(), query.encode()), named).name


def refused(method: str, path: str, query: str = "", **headers: str) -> CallerError:
    with pytest.raises(CallerError) as caught:
        found(method, path, query, **headers)
    return caught.value


@pytest.mark.parametrize(
    ("method", "path", "query", "name"),
    [
        ("GET", "/", "", "ListBuckets"),
        ("GET", "/", "max-buckets=5&prefix=a", "ListBuckets"),
        ("PUT", "/bucket", "", "CreateBucket"),
        ("PUT", "/bucket/", "", "CreateBucket"),
        ("HEAD", "/bucket", "", "HeadBucket"),
        ("DELETE", "/bucket", "", "DeleteBucket"),
        ("GET", "/bucket", "location", "GetBucketLocation"),
        ("GET", "/bucket", "notification=", "GetBucketNotificationConfiguration"),
        ("PUT", "/bucket", "notification", "PutBucketNotificationConfiguration"),
        ("GET", "/bucket/", "list-type=2&prefix=&delimiter=%2F&encoding-type=url", "ListObjectsV2"),
        ("PUT", "/bucket/key", "x-id=PutObject", "PutObject"),
        ("GET", "/bucket//", "", "GetObject"),
        ("GET", "/bucket/key", "response-content-type=a%2Fb", "GetObject"),
        ("HEAD", "/bucket/key", "", "HeadObject"),
        ("DELETE", "/bucket/a/b", "", "DeleteObject"),
        ("GET", "/bucket", "", "ListObjects"),
        ("GET", "/bucket", "prefix=a&encoding-type=url", "ListObjects"),
        ("GET", "/bucket", "versioning", "GetBucketVersioning"),
        ("PUT", "/bucket", "versioning", "PutBucketVersioning"),
        ("GET", "/bucket", "versions", "ListObjectVersions"),
        ("GET", "/bucket", "uploads", "ListMultipartUploads"),
        ("POST", "/bucket", "delete", "DeleteObjects"),
        ("POST", "/bucket/key", "uploads", "CreateMultipartUpload"),
        ("PUT", "/bucket/key", "partNumber=1&uploadId=x", "UploadPart"),
        ("GET", "/bucket/key", "uploadId=x", "ListParts"),
        ("POST", "/bucket/key", "uploadId=x", "CompleteMultipartUpload"),
        ("DELETE", "/bucket/key", "uploadId=x", "AbortMultipartUpload"),
        ("GET", "/bucket/key", "tagging", "GetObjectTagging"),
        ("GET", "/bucket/key", "versionId=1", "GetObject"),
        ("DELETE", "/bucket/key", "versionId=1", "DeleteObject"),
        ("GET", "/bucket/key", "partNumber=1", "GetObject"),
        ("PUT", "/bucket/key", "renameObject", "RenameObject"),
    ],
)
def test_what_is_served_is_found(method: str, path: str, query: str, name: str) -> None:
    assert found(method, path, query) == name


@pytest.mark.parametrize(
    ("method", "path", "query", "name"),
    [
        ("GET", "/bucket", "acl", "GetBucketAcl"),
        ("PUT", "/bucket", "lifecycle", "PutBucketLifecycleConfiguration"),
        ("DELETE", "/bucket", "notification", "DeleteBucket with the parameter notification"),
        ("POST", "/bucket", "", "PostObject"),
        ("PUT", "/bucket/key", "acl", "PutObjectAcl"),
        ("GET", "/bucket/key", "legal-hold", "GetObjectLegalHold"),
        ("PUT", "/bucket/key", "something-new", "PutObject with the parameter something-new"),
        ("GET", "/bucket/key", "notification", "GetObject with the parameter notification"),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(method: str, path: str, query: str, name: str) -> None:
    problem = refused(method, path, query)
    assert (problem.code, problem.status) == ("NotImplemented", 501)
    assert problem.elements["Operation"] == name


@pytest.mark.parametrize(
    "header",
    [
        "x-amz-server-side-encryption",
        "x-amz-object-lock-mode",
        "x-amz-website-redirect-location",
        "x-amz-security-token",
        "x-amz-write-offset-bytes",
        "x-amz-something-new",
        "if-modified-since",
    ],
)
def test_a_put_with_a_header_that_would_change_its_meaning_is_refused(header: str) -> None:
    assert refused("PUT", "/bucket/key", **{header: "x"}).elements["Header"] == header


@pytest.mark.parametrize(
    ("method", "header", "value"),
    [
        ("PUT", "x-amz-meta-anything", "x"),
        ("PUT", "x-amz-checksum-crc32", "x"),
        ("PUT", "x-amz-acl", "private"),
        ("PUT", "x-amz-storage-class", "STANDARD"),
        ("GET", "if-match", "x"),
        ("GET", "x-amz-checksum-mode", "ENABLED"),
        ("DELETE", "x-amz-expected-bucket-owner", "x"),
    ],
)
def test_a_header_that_is_understood_is_taken(method: str, header: str, value: str) -> None:
    assert found(method, "/bucket/key", **{header: value})


@pytest.mark.parametrize(
    ("header", "value"), [("x-amz-acl", "public-read"), ("x-amz-storage-class", "GLACIER"), ("x-amz-meta-a", "b")]
)
def test_a_header_may_be_understood_for_one_value_or_one_operation_only(header: str, value: str) -> None:
    assert refused("PUT", "/bucket", **{header: value}).code == "NotImplemented"


def test_a_copy_is_called_a_copy() -> None:
    assert found("PUT", "/bucket/key", **{"x-amz-copy-source": "/a/b"}) == "CopyObject"
    assert found("PUT", "/bucket/key", "partNumber=1&uploadId=x", **{"x-amz-copy-source": "/a/b"}) == "UploadPartCopy"
    sealed = {"x-amz-copy-source": "/a/b", "x-amz-server-side-encryption": "AES256"}
    assert refused("PUT", "/bucket/key", **sealed).elements["Operation"].startswith("CopyObject")


def test_a_method_that_s3_does_not_have_is_not_allowed() -> None:
    assert refused("PATCH", "/bucket/key").status == 405
