"""Nothing is served that is not signed: the front itself, with parts that would fail if anything reached them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from signed_requests import Boto3, presigned_by_hand, signed_by_hand
from tidings.api import operations
from tidings.api.parts import Parts
from tidings.api.s3 import S3
from tidings.db.pool import make_pool
from tidings.settings import Settings
from tidings.store.blobs import Blobs

PATHS = {"service": "/", "bucket": "/bucket", "object": "/bucket/key"}
BODY = b"5\r\nhello\r\n0\r\n\r\n"


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    """One request to the front, over a pool that is never opened: (status, S3 code)."""

    def run(
        method: str, path: str, query: str = "", headers: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, str]:
        sent: list[Any] = []
        raw = {"host": "store.example", "content-length": str(len(body)), **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in raw.items()],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        async def serve() -> None:
            pool = make_pool("postgresql://nobody@127.0.0.1:1/nothing", 1)
            parts = Parts.over(Settings(api={"cors_origins": ["*"]}), pool, Blobs(f"file://{tmp_path}"))
            await S3(parts)(scope, receive, send)

        asyncio.run(serve())
        document = sent[1]["body"]
        code = ElementTree.fromstring(document).findtext("Code") if document else ""
        return sent[0]["status"], code or ""

    return run


@pytest.mark.parametrize("signature", ["none", "trailer", "query", "token"])
def test_no_operation_is_served_without_a_signature(ask: Any, signature: str) -> None:
    # CVE-2026-40344: one way in once skipped the check. CVE-2025-31489: so did an upload with an unsigned trailer.
    extra = {
        "none": {},
        "trailer": {"x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "x-amz-decoded-content-length": "5"},
        "query": {},
        "token": {"x-amz-security-token": "token", "cookie": "a=b", "x-forwarded-for": "127.0.0.1"},
    }[signature]
    credential = "X-Amz-Credential=KEY%2F20260101%2Fus-east-1%2Fs3%2Faws4_request" if signature == "query" else ""
    tried = 0
    for method, level, marker in operations._OPERATIONS:
        for query in {marker, ""}:
            status, code = ask(method, PATHS[level], "&".join(filter(None, [query, credential])), extra, BODY)
            expected = "AuthorizationQueryParametersError" if credential else "AccessDenied"
            assert (code == expected or method == "HEAD", status) == (True, 400 if credential else 403)
            tried += 1
    assert tried >= 12


def test_a_form_is_not_served_without_its_policy(ask: Any) -> None:
    form = b'--a\r\nContent-Disposition: form-data; name="key"\r\n\r\nk\r\n'
    file = b'--a\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nhello\r\n--a--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=a"}
    assert ask("POST", "/bucket", headers=headers, body=form + file) == (403, "AccessDenied")
    both = {**headers, "authorization": "AWS4-HMAC-SHA256 x"}
    assert ask("POST", "/bucket", headers=both, body=form + file) == (400, "InvalidArgument")
    assert ask("POST", "/bucket", "policy", headers, form + file) == (403, "AccessDenied")


def test_a_browser_s_question_is_the_only_request_that_needs_no_signature(ask: Any) -> None:
    question = {"origin": "https://app.example", "access-control-request-method": "PUT"}
    assert ask("OPTIONS", "/bucket/key", headers=question) == (200, "")
    assert ask("OPTIONS", "/bucket/key") == (403, "AccessDenied")
    for method in ("GET", "PUT", "POST", "DELETE", "PATCH"):
        assert ask(method, "/bucket/key", headers=question) == (403, "AccessDenied")


def test_an_operation_that_is_unknown_is_not_told_from_one_that_is_not_signed(ask: Any) -> None:
    for method, path, query in [
        ("BREW", "/bucket", ""),
        ("GET", "/bucket", "policy"),
        ("PUT", "/No.Good", ""),
        ("GET", "//", ""),
    ]:
        assert ask(method, path, query) == (403, "AccessDenied")


def test_signatures_for_another_region_do_not_get_to_the_keys(ask: Any) -> None:
    # These are genuine, but for a region that is not this server's.
    header = signed_by_hand("GET", "http://store.example/bucket/key")
    given = {name.decode().lower(): value.decode() for name, value in header.headers}
    assert ask("GET", "/bucket/key", headers=given) == (400, "AuthorizationHeaderMalformed")
    query = presigned_by_hand("GET", "http://store.example/bucket/key").query.decode()
    assert ask("GET", "/bucket/key", query) == (400, "AuthorizationQueryParametersError")
    client = Boto3("http://store.example", signature_version="s3v4").client
    fields = client.generate_presigned_post("bucket", "key")["fields"]
    parts = [f'--a\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    body = "".join([*parts, '--a\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--a--\r\n']).encode()
    assert ask("POST", "/bucket", headers={"content-type": "multipart/form-data; boundary=a"}, body=body) == (
        400,
        "InvalidArgument",
    )
