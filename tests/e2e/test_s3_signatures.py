"""Presigned URLs, forms, hosts, browsers and TLS, against the real server."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import httpx
import pytest
from botocore.config import Config
from s3_server import REGION, Answer, Server, Signer, request, s3_server, send, start

from conftest import fresh_database
from tidings.local.postgres import Postgres
from tidings.local.processes import free_port
from waiting import PATIENCE_SECONDS

SMALL, LARGE = b"small", os.urandom(3 << 20)
ORIGIN = {"origin": "https://app.example"}


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(
        fresh_database(postgres, "s3_signatures"),
        tmp_path_factory.mktemp("s3"),
        TIDINGS_API__DOMAINS='["s3.localhost", "localhost"]',
        TIDINGS_API__CORS_ORIGINS='["*"]',
    ) as running:
        assert request(running, "PUT", "/bucket").status == 200
        yield running
        log = running.log
    assert "ERROR" not in log
    assert running.secret not in log


def presigned(server: Server, operation: str, seconds: int = 60, virtual: bool = False, **parameters: Any) -> str:
    """What `aws s3 presign` gives."""
    client = boto3.client(
        "s3",
        endpoint_url=f"http://s3.localhost:{server.port}" if virtual else server.endpoint,
        region_name=REGION,
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret,
        config=Config(signature_version="s3v4", s3={"addressing_style": "virtual" if virtual else "path"}),
    )
    url: str = client.generate_presigned_url(operation, Params={"Bucket": "bucket", **parameters}, ExpiresIn=seconds)
    return url


def open_url(server: Server, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    """As a program does that knows nothing of S3. The name is not looked up: it goes into the Host header alone."""
    parts = urlsplit(url)
    return send(server, method, f"{parts.path}?{parts.query}", {"host": parts.netloc, **(headers or {})}, body)


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("key", ["plain", "a b/ü%+&=?~*", "-/healthy", "./up/..here/"])
@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
def test_an_object_lives_by_presigned_urls_alone(server: Server, key: str, body: bytes, virtual: bool) -> None:
    def at(method: str, operation: str, data: bytes = b"", **more: Any) -> Answer:
        return open_url(server, method, presigned(server, operation, virtual=virtual, Key=key, **more), data)

    put = at("PUT", "put_object", body)
    assert (put.status, put.headers["etag"]) == (200, f'"{hashlib.md5(body).hexdigest()}"')
    assert at("HEAD", "head_object").headers["content-length"] == str(len(body))
    got = at("GET", "get_object", ResponseContentType="text/x-test")
    assert (got.status, got.body, got.headers["content-type"]) == (200, body, "text/x-test")
    assert at("DELETE", "delete_object").status == 204
    assert at("GET", "get_object").status == 404


def test_a_presigned_url_expires(server: Server) -> None:
    url = presigned(server, "get_object", seconds=1, Key="key")
    time.sleep(2.1)
    answer = open_url(server, "GET", url)
    assert (answer.status, answer.error["Code"], answer.error["Message"]) == (403, "AccessDenied", "Request has expired")
    assert answer.error["X-Amz-Expires"] == "1"
    assert answer.error["Expires"] < answer.error["ServerTime"]


def test_nothing_can_be_added_to_a_presigned_url(server: Server) -> None:
    assert request(server, "PUT", "/bucket/secret", body=SMALL).status == 200
    before = server.everything()
    url = presigned(server, "put_object", Key="key")
    for target, headers, code in [
        (url, {"x-amz-copy-source": "/bucket/secret"}, "AccessDenied"),
        (url, {"content-type": "text/html"}, "AccessDenied"),
        (url + "&x-amz-copy-source=%2Fbucket%2Fsecret", {}, "SignatureDoesNotMatch"),
        (url + "&tagging", {}, "SignatureDoesNotMatch"),
        (url.replace("/key?", "/other?"), {}, "SignatureDoesNotMatch"),
        (url.replace("Expires=60", "Expires=600"), {}, "SignatureDoesNotMatch"),
        (url.replace("X-Amz-Signature", "X-Amz-Signatur"), {}, "AuthorizationQueryParametersError"),
        (url, {"authorization": "AWS4-HMAC-SHA256 x"}, "InvalidArgument"),
        (url, {"host": "bucket.s3.localhost"}, "SignatureDoesNotMatch"),
    ]:
        answer = open_url(server, "PUT", target, SMALL, headers)
        assert (answer.error["Code"], answer.status >= 400) == (code, True)
    assert server.everything() == before


def form(server: Server, key: str, fields: Mapping[str, str] | None = None, *conditions: Any) -> tuple[str, dict[str, str]]:
    given = dict(fields or {})
    covered = [*({name: value} for name, value in given.items()), *conditions]
    made = server.client(signature_version="s3v4").generate_presigned_post("bucket", key, given, covered, ExpiresIn=60)
    return made["url"], made["fields"]


@pytest.mark.parametrize("body", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
def test_a_form_uploads_a_file(server: Server, body: bytes) -> None:
    stated = {"Content-Type": "text/x-test", "x-amz-meta-a": "b", "success_action_status": "201", "Cache-Control": "no-store"}
    url, fields = form(server, "up/${filename}", stated, ["content-length-range", 0, len(LARGE)])
    answer = httpx.post(url, data=fields, files={"file": ("photo ü.png", body)})
    etag = f'"{hashlib.md5(body).hexdigest()}"'
    assert (answer.status_code, answer.headers["etag"]) == (201, etag)
    assert f"<Bucket>bucket</Bucket><Key>up/photo ü.png</Key><ETag>{etag.replace(chr(34), '&quot;')}</ETag>" in answer.text
    got = server.client().get_object(Bucket="bucket", Key="up/photo ü.png")
    assert (got["Body"].read(), got["ContentType"], got["Metadata"], got["CacheControl"]) == (
        body,
        "text/x-test",
        {"a": "b"},
        "no-store",
    )
    principal = server.query("select principal from changes where request_id = %s", answer.headers["x-amz-request-id"])
    assert principal == [(server.access_key_id,)]


def test_a_form_can_send_the_browser_on(server: Server) -> None:
    url, fields = form(server, "sent-on", {"success_action_redirect": "https://app.example/done"})
    answer = httpx.post(url, data=fields, files={"file": SMALL})
    assert answer.status_code == 303
    assert re.fullmatch(
        r"https://app\.example/done\?bucket=bucket&key=sent-on&etag=%22[0-9a-f]{32}%22", answer.headers["location"]
    )


def test_a_form_that_breaks_its_policy_changes_nothing(server: Server) -> None:
    url, fields = form(server, "key", None, ["content-length-range", 2, 1 << 20])
    before = server.everything()
    for changed, body, code in [
        ({}, LARGE, "EntityTooLarge"),
        ({}, b"x", "EntityTooSmall"),
        ({"key": "other"}, SMALL, "AccessDenied"),
        ({"x-amz-meta-a": "b"}, SMALL, "AccessDenied"),
        ({"x-amz-signature": "0" * 64}, SMALL, "SignatureDoesNotMatch"),
        ({"x-amz-credential": fields["x-amz-credential"].replace("AKIA", "AKIX")}, SMALL, "InvalidAccessKeyId"),
        ({"policy": fields["policy"][:-4]}, SMALL, "SignatureDoesNotMatch"),
        ({"x-ignore-a": "a" * 21_000}, SMALL, "MaxPostPreDataLengthExceededError"),
    ]:
        answer = httpx.post(url, data={**fields, **changed}, files={"file": body})
        assert (f"<Code>{code}</Code>" in answer.text, answer.status_code // 100) == (True, 4), answer.text
    assert "<Code>AccessDenied</Code>" in httpx.post(url, files={"file": SMALL}).text
    assert "<Code>IncorrectNumberOfFilesInPostRequest</Code>" in httpx.post(url, files={"a": (None, "b")}).text
    assert "<Code>NoSuchBucket</Code>" in no_such_bucket(server)
    deadline = time.monotonic() + PATIENCE_SECONDS  # a blob may go a moment after the answer
    while server.everything() != before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.everything() == before


def no_such_bucket(server: Server) -> str:
    made = server.client(signature_version="s3v4").generate_presigned_post("missing", "key", ExpiresIn=60)
    return httpx.post(made["url"], data=made["fields"], files={"file": LARGE}).text


def test_a_form_that_is_cut_off_changes_nothing(server: Server) -> None:
    url, fields = form(server, "key")
    whole = httpx.Request("POST", url, data=fields, files={"file": LARGE}).read()
    content_type = httpx.Request("POST", url, data=fields, files={"file": b""}).headers["content-type"]
    boundary = content_type.rpartition("=")[2].encode()
    whole = whole.replace(whole[2 : whole.index(b"\r\n")], boundary)
    before = server.everything()
    for sent in (500, 100_000, len(whole) - 1):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.putrequest("POST", "/bucket")
        connection.putheader("content-type", content_type)
        connection.putheader("content-length", str(len(whole)))
        connection.endheaders(whole[:sent])
        connection.close()
    answer = send(server, "POST", "/bucket", {"host": "x", "content-type": content_type}, whole[:-10])
    assert answer.error["Code"] == "MalformedPOSTRequest"
    time.sleep(0.3)
    assert server.everything() == before


def test_a_name_that_is_not_ours_is_no_bucket(server: Server) -> None:
    signer = Signer(server)
    for host in ("bucket.evil.example", f"127.0.0.1:{server.port}", "bucket"):
        fields = signer.headers("GET", "/", "", hashlib.sha256(b"").hexdigest(), {})
        answer = send(server, "GET", "/", {**fields, "host": host}, b"")
        listed = b"<ListAllMyBucketsResult" in answer.body
        assert listed or answer.error["Code"] == "SignatureDoesNotMatch"
    health = send(server, "GET", "/-/healthy", {"host": "bucket.s3.localhost"}, b"")
    assert (health.status, health.error["Code"]) == (403, "AccessDenied")


def test_a_browser_asks_first_and_sees_the_answer(server: Server) -> None:
    asks = {"access-control-request-method": "PUT", "access-control-request-headers": "content-type"}
    answer = send(server, "OPTIONS", "/bucket/key", {"host": "x", **ORIGIN, **asks}, b"")
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
    assert answer.headers["access-control-allow-headers"] == "content-type"
    put = open_url(server, "PUT", presigned(server, "put_object", Key="browser"), SMALL, ORIGIN)
    assert (put.status, put.headers["access-control-allow-origin"]) == (200, "*")
    assert {"etag", "x-amz-request-id"} <= set(put.headers["access-control-expose-headers"].split(", "))
    refused = send(server, "GET", "/bucket/browser", {"host": "x", **ORIGIN}, b"")
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (403, "*")
    assert "access-control-allow-origin" not in request(server, "GET", "/bucket/browser").headers
    assert send(server, "OPTIONS", "/bucket/key", {"host": "x"}, b"").error["Code"] == "AccessDenied"


def certificate(folder: Path) -> tuple[Path, Path]:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    return folder / "certificate.pem", folder / "key.pem"


def test_with_a_certificate_the_server_speaks_tls_alone(server: Server, tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    port = free_port()
    settings = {
        "TIDINGS_DATABASE__URL": server.database_url,
        "TIDINGS_STORE__BLOBS": f"file://{server.folder}/blobs",
        "TIDINGS_API__PORT": str(port),
        "TIDINGS_API__TLS_CERTIFICATE": str(chain),
        "TIDINGS_API__TLS_KEY": str(key),
    }
    with (tmp_path / "tls.log").open("wb") as log:
        process = start(settings, log)
    try:
        context, deadline = ssl.create_default_context(cafile=str(chain)), time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"https://127.0.0.1:{port}/-/ready", timeout=5, context=context).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (tmp_path / "tls.log").read_text()
                time.sleep(0.05)
        client = boto3.client(
            "s3",
            endpoint_url=f"https://127.0.0.1:{port}",
            region_name=REGION,
            aws_access_key_id=server.access_key_id,
            aws_secret_access_key=server.secret,
            verify=str(chain),
        )
        client.put_object(Bucket="bucket", Key="tls", Body=LARGE)  # over TLS boto3 sends an unsigned trailer
        assert client.get_object(Bucket="bucket", Key="tls")["Body"].read() == LARGE
        with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5)
    finally:
        process.terminate()
        process.wait(120)


def test_a_certificate_that_is_not_there_is_one_sentence(server: Server, tmp_path: Path) -> None:
    settings = {
        "TIDINGS_DATABASE__URL": server.database_url,
        "TIDINGS_STORE__BLOBS": f"file://{server.folder}/blobs",
        "TIDINGS_API__PORT": str(free_port()),
        "TIDINGS_API__TLS_CERTIFICATE": str(tmp_path / "missing.pem"),
        "TIDINGS_API__TLS_KEY": str(tmp_path / "missing.key"),
    }
    with (tmp_path / "tls.log").open("wb") as log:
        assert start(settings, log).wait(120) != 0
    said = (tmp_path / "tls.log").read_text()
    assert "TIDINGS_API__TLS_CERTIFICATE names" in said
    assert "Traceback" not in said
