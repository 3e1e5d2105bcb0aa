"""Bad input: the right S3 error, and nothing changed."""

from __future__ import annotations

import base64
import hashlib
import http.client
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from s3_server import Answer, Server, Signer, request, s3_server, send

from conftest import fresh_database
from tidings.local.postgres import Postgres
from waiting import PATIENCE_SECONDS

SMALL, LARGE = b"small", bytes(range(256)) * 400
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(fresh_database(postgres, "s3_bad_requests"), tmp_path_factory.mktemp("s3")) as running:
        assert request(running, "PUT", "/bucket").status == 200
        assert request(running, "PUT", "/bucket/there", body=LARGE).status == 200
        yield running
        log = running.log
    assert "ERROR" not in log
    assert running.secret not in log


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


WRONG_SUMS = {
    f"x-amz-checksum-{name}": base64.b64encode(bytes(size)).decode()
    for name, size in {"crc32": 4, "crc32c": 4, "crc64nvme": 8, "sha1": 20, "sha256": 32}.items()
}


def replace(name: str, old: str, new: str) -> Callable[[dict[str, str]], None]:
    def change(headers: dict[str, str]) -> None:
        assert old in headers[name]
        headers[name] = headers[name].replace(old, new)

    return change


def wrong_signature(headers: dict[str, str]) -> None:
    headers["authorization"] = re.sub(r"(?<=Signature=)\w{64}", "0" * 64, headers["authorization"])


def late(minutes: int) -> Callable[[Server], Signer]:
    return lambda server: Signer(server, datetime.now(UTC) + timedelta(minutes=minutes))


def put(body: bytes, **how: object) -> Callable[[Server], Answer]:
    return lambda server: request(server, "PUT", "/bucket/key", body=body, **how)  # type: ignore[arg-type]


BAD_KEYS = {
    "..": "InvalidURI",
    "../up": "InvalidURI",
    "a/../b": "InvalidURI",
    "a//b": "InvalidURI",
    "a%00b": "InvalidArgument",
    "a%0Ab": "InvalidArgument",
    "%1B%5B2J": "InvalidArgument",
    "%7F": "InvalidArgument",
    "k" * 1025: "KeyTooLongError",
    "%C3%BC" * 513: "KeyTooLongError",
    "%FF": "InvalidURI",
    "%ED%A0%80": "InvalidURI",  # a lone surrogate
}
"""As they stand in a path."""


def put_key(key: str) -> Callable[[Server], Answer]:
    return lambda server: request(server, "PUT", f"/bucket/{key}", body=SMALL)


def copy_to(key: str) -> Callable[[Server], Answer]:
    return lambda server: request(server, "PUT", f"/bucket/{key}", headers={"x-amz-copy-source": "/bucket/there"})


def rename_to(key: str) -> Callable[[Server], Answer]:
    headers = {"x-amz-rename-source": "there"}
    return lambda server: request(server, "PUT", f"/bucket/{key}", "renameObject", headers=headers)


def upload_to(key: str) -> Callable[[Server], Answer]:
    return lambda server: request(server, "POST", f"/bucket/{key}", "uploads")


def declared(length: int, body: bytes) -> Callable[[Server], Answer]:
    """A body whose chunks, all signed, hold more or less than the request declares."""

    def attempt(server: Server) -> Answer:
        signer = Signer(server)
        headers = {"content-encoding": "aws-chunked", "x-amz-decoded-content-length": str(length)}
        fields = signer.headers("PUT", "/bucket/key", "", SIGNED_CHUNKS, headers)
        return send(server, "PUT", "/bucket/key", fields, signer.chunked(body))

    return attempt


def chunked(spoil: Callable[[bytes], bytes], body: bytes = LARGE) -> Callable[[Server], Answer]:
    def attempt(server: Server) -> Answer:
        signer = Signer(server)
        headers = {"content-encoding": "aws-chunked", "x-amz-decoded-content-length": str(len(body))}
        fields = signer.headers("PUT", "/bucket/key", "", SIGNED_CHUNKS, headers)
        return send(server, "PUT", "/bucket/key", fields, spoil(signer.chunked(body[:70_000], body[70_000:])))

    return attempt


def trailer(checksum: str, body: bytes = LARGE) -> Callable[[Server], Answer]:
    framed = b"%x\r\n%s\r\n0\r\nx-amz-checksum-crc32:%s\r\n\r\n" % (len(body), body, checksum.encode())
    headers = {"x-amz-trailer": "x-amz-checksum-crc32", "x-amz-decoded-content-length": str(len(body))}
    return put(framed, headers=headers, payload_hash=UNSIGNED_TRAILER)


def get(path: str, query: str = "") -> Callable[[Server], Answer]:
    return lambda server: request(server, "GET", path, query)


def raw_query(server: Server) -> Answer:
    """Signed as %C3%BC, sent as the bytes."""
    fields = Signer(server).headers("GET", "/bucket", "list-type=2&prefix=%C3%BC", hashlib.sha256(b"").hexdigest(), {})
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET /bucket?list-type=2&prefix=\xc3\xbc HTTP/1.1\r\n" + head.encode() + b"\r\n")
        response = http.client.HTTPResponse(connection)
        response.begin()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


PART = b"<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>"
OBJECT = b"<Object><Key>there</Key></Object>"


def over(method: str, path: str, body: bytes, headers: dict[str, str]) -> Callable[[Server], Answer]:
    return lambda server: request(server, method, path, body=body, headers=headers)


def complete(parts: bytes) -> Callable[[Server], Answer]:
    document = b"<CompleteMultipartUpload>" + parts + b"</CompleteMultipartUpload>"
    return lambda server: request(server, "POST", "/bucket/key", "uploadId=x", document)


def versioning(inner: bytes) -> Callable[[Server], Answer]:
    document = b"<VersioningConfiguration>" + inner + b"</VersioningConfiguration>"
    return lambda server: request(server, "PUT", "/bucket", "versioning", document)


def notification(body: bytes) -> Callable[[Server], Answer]:
    return lambda server: request(server, "PUT", "/bucket", "notification", body)


ANSWERS: list[tuple[str, int, Callable[[Server], Answer]]] = [
    ("AccessDenied", 403, lambda server: send(server, "PUT", "/bucket/key", {"host": "x"}, SMALL)),
    ("AccessDenied", 403, lambda server: send(server, "GET", "/", {"host": "x"}, b"")),
    (
        "SignatureDoesNotMatch",
        403,
        put(SMALL, after_signing=wrong_signature),
    ),
    ("SignatureDoesNotMatch", 403, put(SMALL, headers={"x-amz-meta-a": "b"}, after_signing=replace("x-amz-meta-a", "b", "c"))),
    ("RequestTimeTooSkewed", 403, lambda server: put(SMALL, signer=late(-16)(server))(server)),
    ("RequestTimeTooSkewed", 403, lambda server: put(SMALL, signer=late(16)(server))(server)),
    ("InvalidAccessKeyId", 403, put(SMALL, after_signing=replace("authorization", "Credential=AKIA", "Credential=AKIX"))),
    ("AuthorizationHeaderMalformed", 400, lambda server: put(SMALL, signer=Signer(server, region="eu-north-1"))(server)),
    ("AccessDenied", 403, put(SMALL, headers={"x-amz-meta-a": "b"}, unsigned=("x-amz-meta-a",))),
    (
        "AuthorizationQueryParametersError",
        400,
        lambda server: send(server, "GET", "/bucket/there?X-Amz-Signature=0", {"host": "x"}, b""),
    ),
    ("XAmzContentSHA256Mismatch", 400, put(SMALL, payload_hash=hashlib.sha256(b"other").hexdigest())),
    ("XAmzContentSHA256Mismatch", 400, put(LARGE, payload_hash=hashlib.sha256(b"other").hexdigest())),
    ("BadDigest", 400, put(SMALL, headers={"content-md5": md5(b"other")})),
    ("BadDigest", 400, put(LARGE, headers={"content-md5": md5(b"other")})),
    ("InvalidDigest", 400, put(SMALL, headers={"content-md5": "abc"})),
    ("BadDigest", 400, put(LARGE, headers={"x-amz-checksum-crc32": crc32(b"other")})),
    ("InvalidRequest", 400, put(SMALL, headers={"x-amz-checksum-crc32": "?"})),
    ("BadDigest", 400, trailer(crc32(b"other"))),
    ("InvalidRequest", 400, trailer("?")),
    (
        "SignatureDoesNotMatch",
        403,
        chunked(lambda body: re.sub(rb"(?<=signature=)\w{64}", b"0" * 64, body, count=1)),
    ),
    ("SignatureDoesNotMatch", 403, chunked(lambda body: body.replace(b"\x01\x02\x03", b"\x01\x02\x04"))),
    ("IncompleteBody", 400, chunked(lambda body: body[: len(body) // 2])),
    ("IncompleteBody", 400, declared(len(LARGE) + 1, LARGE)),
    ("IncompleteBody", 400, declared(len(LARGE) - 1, LARGE)),
    ("IncompleteBody", 400, chunked(lambda body: body + b"more")),
    *(("BadDigest", 400, put(LARGE, headers={name: wrong})) for name, wrong in WRONG_SUMS.items()),
    ("BadDigest", 400, put(SMALL, headers={"x-amz-checksum-sha256": WRONG_SUMS["x-amz-checksum-sha256"]})),
    ("NoSuchBucket", 404, lambda server: request(server, "PUT", "/missing/key", body=SMALL)),
    ("NoSuchBucket", 404, lambda server: request(server, "PUT", "/missing/key", body=LARGE)),
    ("NoSuchKey", 404, get("/bucket/missing")),
    ("InvalidRange", 416, lambda server: request(server, "GET", "/bucket/there", headers={"range": f"bytes={len(LARGE)}-"})),
    ("InvalidBucketName", 400, lambda server: request(server, "PUT", "/No.Good")),
    ("InvalidBucketName", 400, lambda server: request(server, "PUT", "/192.168.1.1")),
    *((code, 400, put_key(key)) for key, code in BAD_KEYS.items()),
    *((code, 400, copy_to(key)) for key, code in BAD_KEYS.items()),
    *((code, 400, rename_to(key)) for key, code in BAD_KEYS.items()),
    *((code, 400, upload_to(key)) for key, code in BAD_KEYS.items()),
    *((code, 400, get(f"/bucket/{key}")) for key, code in BAD_KEYS.items()),
    ("InvalidURI", 400, lambda server: request(server, "PUT", "//key", body=SMALL)),
    ("MetadataTooLarge", 400, put(SMALL, headers={"x-amz-meta-a": "x" * 2048})),
    ("AccessDenied", 403, put(SMALL, headers={"x-amz-expected-bucket-owner": "somebody"})),
    ("MissingContentLength", 411, lambda server: put(b"0\r\n\r\n", headers={"transfer-encoding": "chunked"})(server)),
    ("EntityTooLarge", 400, put(SMALL, headers={"x-amz-decoded-content-length": str(6 * 1024**3)}, payload_hash=SIGNED_CHUNKS)),
    ("BucketAlreadyOwnedByYou", 409, lambda server: request(server, "PUT", "/bucket")),
    ("BucketNotEmpty", 409, lambda server: request(server, "DELETE", "/bucket")),
    ("NoSuchBucket", 404, lambda server: request(server, "DELETE", "/missing")),
    ("MalformedXML", 400, lambda server: request(server, "PUT", "/new-bucket", body=b"<Create")),
    (
        "IllegalLocationConstraintException",
        400,
        lambda server: request(
            server,
            "PUT",
            "/new-bucket",
            body=b"<CreateBucketConfiguration><LocationConstraint>mars</LocationConstraint></CreateBucketConfiguration>",
        ),
    ),
    ("MalformedXML", 400, notification(b"not xml")),
    (
        "MalformedXML",
        400,
        notification(b'<!DOCTYPE a [<!ENTITY b "c">]><NotificationConfiguration>&b;</NotificationConfiguration>'),
    ),
    ("EntityTooLarge", 400, notification(b"<NotificationConfiguration>" + b" " * 256 * 1024)),
    ("InvalidArgument", 400, get("/bucket", "list-type=2&max-keys=-1")),
    ("InvalidArgument", 400, get("/bucket", "list-type=2&max-keys=x")),
    ("InvalidArgument", 400, get("/bucket", "list-type=2&continuation-token=x")),
    ("InvalidArgument", 400, get("/bucket", "encoding-type=base64&list-type=2")),
    ("InvalidArgument", 400, get("/bucket", "list-type=3")),
    ("InvalidArgument", 400, get("/bucket", "list-type=2&prefix=a%00")),
    ("NotImplemented", 501, get("/bucket", "policy")),
    ("NotImplemented", 501, put(SMALL, headers={"x-amz-server-side-encryption": "AES256"})),
    ("NotImplemented", 501, put(SMALL, headers={"if-none-match": '"abc"'})),
    ("PreconditionFailed", 412, over("PUT", "/bucket/there", SMALL, {"if-none-match": "*"})),
    ("PreconditionFailed", 412, over("PUT", "/bucket/there", SMALL, {"if-match": '"abc"'})),
    ("NoSuchKey", 404, put(SMALL, headers={"if-match": '"abc"'})),
    ("InvalidArgument", 400, put(b"", headers={"x-amz-copy-source": "nothing"})),
    ("NoSuchKey", 404, put(b"", headers={"x-amz-copy-source": "/bucket/missing"})),
    ("NoSuchBucket", 404, put(b"", headers={"x-amz-copy-source": "/no-such-bucket/there"})),
    ("InvalidArgument", 400, put(b"", headers={"x-amz-copy-source": "/bucket/there", "x-amz-metadata-directive": "X"})),
    ("InvalidRequest", 400, over("PUT", "/bucket/there", b"", {"x-amz-copy-source": "/bucket/there"})),
    ("PreconditionFailed", 412, put(b"", headers={"x-amz-copy-source": "/bucket/there", "x-amz-copy-source-if-match": "x"})),
    ("InvalidArgument", 400, put(SMALL, headers={"x-amz-tagging": "a=b&=c&d"})),
    ("InvalidTag", 400, put(SMALL, headers={"x-amz-tagging": "a=b&a=c"})),
    ("InvalidArgument", 400, lambda server: request(server, "PUT", "/bucket/key", "renameObject")),
    ("InvalidArgument", 400, lambda server: request(server, "PUT", "/bucket/key", "partNumber=0&uploadId=x", SMALL)),
    ("InvalidArgument", 400, lambda server: request(server, "PUT", "/bucket/key", "partNumber=10001&uploadId=x", SMALL)),
    ("NoSuchUpload", 404, lambda server: request(server, "PUT", "/bucket/key", "partNumber=1&uploadId=x", SMALL)),
    ("NoSuchUpload", 404, lambda server: request(server, "DELETE", "/bucket/key", "uploadId=x")),
    ("NoSuchUpload", 404, lambda server: request(server, "GET", "/bucket/key", "uploadId=x")),
    ("NoSuchUpload", 404, complete(PART % (1, b"0" * 32))),
    ("MalformedXML", 400, complete(b"")),
    ("MalformedXML", 400, complete(PART % (0, b"0" * 32))),
    ("MalformedXML", 400, complete(PART % (1, b"0" * 32) * 10_001)),
    ("NoSuchVersion", 404, get("/bucket/there", "versionId=x")),
    ("InvalidArgument", 400, get("/bucket/there", "versionId=")),
    ("IllegalVersioningConfigurationException", 400, versioning(b"<Status>On</Status>")),
    ("MalformedXML", 400, versioning(b"<Status>Enabled</Status><Status>Suspended</Status>")),
    ("MalformedXML", 400, lambda server: request(server, "POST", "/bucket", "delete", b"<Delete></Delete>")),
    (
        "MalformedXML",
        400,
        lambda server: request(server, "POST", "/bucket", "delete", b"<Delete>" + OBJECT * 1001 + b"</Delete>"),
    ),
    (
        "NoSuchBucket",
        404,
        lambda server: request(server, "POST", "/no-such-bucket", "delete", b"<Delete>" + OBJECT + b"</Delete>"),
    ),
    ("InvalidArgument", 400, get("/bucket", "versions&version-id-marker=x")),
    ("InvalidURI", 400, raw_query),
    (
        "InvalidRequest",
        400,
        lambda server: request(server, "GET", "/bucket/there", "partNumber=1", headers={"range": "bytes=0-1"}),
    ),
    ("InvalidArgument", 400, put(b"", headers={"x-amz-copy-source": "/bucket/there?versionId=%00"})),
    (
        "InvalidTag",
        400,
        put(
            b"", headers={"x-amz-copy-source": "bucket%2Fthere", "x-amz-tagging-directive": "REPLACE", "x-amz-tagging": "a=%00"}
        ),
    ),
    ("MalformedXML", 400, complete(b"<a/>" * 1_000_000)),
    ("MalformedXML", 400, complete(b"<Part>" * 1000)),
    ("MalformedXML", 400, lambda server: request(server, "PUT", "/bucket", "versioning", b"<a/>" * 60_000)),
    ("MethodNotAllowed", 405, lambda server: request(server, "PATCH", "/bucket/key")),
]


@pytest.mark.parametrize(("code", "status", "attempt"), ANSWERS, ids=[f"{n}-{row[0]}" for n, row in enumerate(ANSWERS)])
def test_a_bad_request_gets_its_error_and_changes_nothing(
    server: Server, code: str, status: int, attempt: Callable[[Server], Answer]
) -> None:
    before = server.everything()
    answer = attempt(server)
    assert (answer.error["Code"], answer.status) == (code, status)
    assert answer.headers["content-type"] == "application/xml"
    assert answer.error["RequestId"] == answer.headers["x-amz-request-id"]
    assert answer.error["HostId"] == answer.headers["x-amz-id-2"]
    assert answer.error["Message"]
    assert answer.error["Resource"].startswith("/")
    assert server.secret.encode() not in answer.body
    wait_until_unchanged(server, before)


def wait_until_unchanged(server: Server, before: tuple[object, ...]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS  # a blob may go a moment after the answer
    while server.everything() != before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.everything() == before


def test_an_error_of_a_head_request_has_no_body(server: Server) -> None:
    for path in ("/missing", "/bucket/missing"):
        answer = request(server, "HEAD", path)
        assert (answer.status, answer.body) == (404, b"")
        assert answer.headers["x-amz-request-id"]


def test_an_upload_that_is_cut_off_leaves_nothing(server: Server) -> None:
    before = server.everything()
    fields = Signer(server).headers("PUT", "/bucket/key", "", hashlib.sha256(LARGE).hexdigest(), {})
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    for sent in (10, 50_000, len(LARGE) - 1):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(f"PUT /bucket/key HTTP/1.1\r\n{head}content-length: {len(LARGE)}\r\n\r\n".encode())
            connection.sendall(LARGE[:sent])
            time.sleep(0.05)
    time.sleep(0.2)
    wait_until_unchanged(server, before)


def test_a_chunked_body_whose_promises_are_kept_is_stored(server: Server) -> None:
    for attempt in (chunked(lambda body: body), trailer(crc32(LARGE))):
        assert attempt(server).status == 200
        answer = request(server, "GET", "/bucket/key")
        assert answer.body == LARGE
        assert "content-encoding" not in answer.headers
    assert answer.headers["etag"] == f'"{hashlib.md5(LARGE).hexdigest()}"'
    assert request(server, "DELETE", "/bucket/key").status == 204


def test_the_answer_to_a_put_and_its_change_carry_the_same_request_id(server: Server) -> None:
    answer = request(server, "PUT", "/bucket/traced", body=SMALL)
    ((principal, source_ip),) = server.query(
        "select principal, source_ip from changes where request_id = %s", answer.headers["x-amz-request-id"]
    )
    assert (principal, source_ip) == (server.access_key_id, "127.0.0.1")
    assert request(server, "DELETE", "/bucket/traced").status == 204


def test_a_path_is_not_normalised_and_is_decoded_once(server: Server) -> None:
    empty = hashlib.sha256(b"").hexdigest()
    for path, key in [("/bucket/a/./b", "a/./b"), ("/bucket/%2525", "%25"), ("/bucket/%2E", "."), ("/bucket//a/", "/a/")]:
        canonical = path.replace("%2E", ".")
        fields = Signer(server).headers("PUT", canonical, "", hashlib.sha256(SMALL).hexdigest(), {})
        assert send(server, "PUT", path, fields, SMALL).status == 200
        assert server.query("select from heads where key = %s", key)
        assert send(server, "DELETE", path, Signer(server).headers("DELETE", canonical, "", empty, {}), b"").status == 204


def test_who_waits_for_100_continue_with_a_lot_to_send_is_answered_first(server: Server) -> None:
    for path, expected in [("/bucket/key", b"100"), ("/missing/key", b"404")]:
        fields = Signer(server).headers("PUT", path, "", hashlib.sha256(LARGE).hexdigest(), {})
        fields |= {"content-length": str(50 << 20), "expect": "100-continue"}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(f"PUT {path} HTTP/1.1\r\n{head}\r\n".encode())
            assert connection.recv(100).split()[1] == expected


@pytest.mark.parametrize("expect", [{}, {"expect": "100-continue"}])
def test_who_goes_on_sending_gets_the_answer_and_not_a_reset(server: Server, expect: dict[str, str]) -> None:
    body = bytes(4 << 20)
    fields = Signer(server).headers("PUT", "/missing/key", "", hashlib.sha256(body).hexdigest(), {})
    fields |= {"content-length": str(len(body)), **expect}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"PUT /missing/key HTTP/1.1\r\n{head}\r\n".encode())
        for at in range(0, len(body), 1 << 20):
            time.sleep(0.05)
            connection.sendall(body[at : at + (1 << 20)])
        answer = b""
        while b"</Error>" not in answer:
            answer += connection.recv(4096)
    assert b"404 Not Found" in answer
