"""The way in for the services beside S3: nothing is served that is not signed, for this service, over this body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tidings.access import sigv4
from tidings.access.keys import AccessKey, Principal
from tidings.access.permissions import ACTIONS, Grant
from tidings.api.aws import MAX_BODY, Aws, Call
from tidings.api.parts import Parts
from tidings.api.response import Response
from tidings.db.pool import make_pool
from tidings.errors import CallerError
from tidings.settings import Settings
from tidings.store.blobs import Blobs

KEY, SECRET, REGION = "AKIAEXAMPLE", "secret/of+the=key", "us-east-1"
URL = "http://store.example:9000/"


class Echo:
    """Answers with what it was asked, or with the code of what went wrong."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    async def serve(self, _: Parts, call: Call) -> Response:
        self.calls.append(call)
        return Response(200, {}, call.body)

    def refused(self, problem: CallerError, _: str) -> Response:
        return Response(problem.status, {}, problem.code.encode())


def headers_of(service: str = "sqs", body: bytes = b"{}", url: str = URL, region: str = REGION, **more: str) -> dict[str, str]:
    """As botocore signs; `_` stands for `-` in the names of further headers."""
    given = {"content-type": "application/x-amz-json-1.0", **{name.replace("_", "-"): value for name, value in more.items()}}
    request = AWSRequest("POST", url, given, body)
    SigV4Auth(Credentials(KEY, SECRET), service, region).add_auth(request)
    return {"host": "store.example:9000", **{name.lower(): value for name, value in request.headers.items()}}


Ask = Callable[..., tuple[int, bytes]]


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def ask(tmp_path: Path, echo: Echo) -> Ask:
    def run(
        headers: dict[str, str], body: bytes = b"{}", path: str = "/", query: str = "", front: str = "sqs"
    ) -> tuple[int, bytes]:
        sent: list[Any] = []
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "method": "POST",
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(b"content-length", str(len(body)).encode()), *raw],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        async def serve() -> None:
            pool = make_pool("postgresql://nobody@127.0.0.1:1/nothing", 1)
            parts = Parts.over(Settings(), pool, Blobs(f"file://{tmp_path}"))
            parts.keys.keep(AccessKey(Principal(KEY, "project", Grant(frozenset(ACTIONS))), SECRET, read_at=float("inf")))
            aws = Aws(parts, {front: echo})
            if not aws.serves(scope):
                sent.extend([{"status": 0}, {"body": b"not for us"}])
                return
            await aws(scope, receive, send)

        asyncio.run(serve())
        return sent[0]["status"], sent[1]["body"]

    return run


def test_a_call_signed_by_botocore_arrives_with_its_body_and_its_project(ask: Ask, echo: Echo) -> None:
    body = b'{"QueueName": "caf\xc3\xa9"}'
    assert ask(headers_of(body=body, x_amz_target="AmazonSQS.CreateQueue"), body) == (200, body)
    (call,) = echo.calls
    assert (call.project, call.url) == ("project", "http://store.example:9000")
    assert call.headers["x-amz-target"] == "AmazonSQS.CreateQueue"


@pytest.mark.parametrize("path", ["/", "/project/queue", "/a%20b/caf%C3%A9", "/a~b"])
def test_paths_are_encoded_twice_as_botocore_does(ask: Ask, path: str) -> None:
    assert ask(headers_of(url=f"http://store.example:9000{path}"), path=path)[0] == 200


@pytest.mark.parametrize("path", ["//", "/../a", "/a/./b", "/a//b", "/%zz"])
def test_paths_that_could_be_read_in_two_ways_are_refused(ask: Ask, echo: Echo, path: str) -> None:
    assert ask(headers_of(url=f"http://store.example:9000{path}"), path=path) == (400, b"InvalidURI")
    assert not echo.calls


def test_a_hash_of_the_body_may_be_sent_and_must_be_true(ask: Ask) -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert ask(headers_of(body=b"", x_amz_content_sha256=empty), b"")[0] == 200
    assert ask(headers_of(x_amz_content_sha256=empty)) == (400, b"XAmzContentSHA256Mismatch")
    assert ask(headers_of(x_amz_content_sha256="UNSIGNED-PAYLOAD")) == (400, b"XAmzContentSHA256Mismatch")


def refused_calls() -> dict[str, tuple[dict[str, str], bytes, str]]:
    good = headers_of(x_amz_target="AmazonSQS.SendMessage")
    unsigned = {**headers_of(), "x-amz-target": "AmazonSQS.DeleteQueue"}
    old = dict(good)
    old["x-amz-date"] = "20200101T000000Z"
    swapped = {**good, "authorization": good["authorization"].replace("/sqs/", "/sns/")}
    return {
        "another body": (good, b"[]", "SignatureDoesNotMatch"),
        "another header": ({**good, "x-amz-target": "AmazonSQS.DeleteQueue"}, b"{}", "SignatureDoesNotMatch"),
        "a header that nobody signed": (unsigned, b"{}", "AccessDenied"),
        "another day": (old, b"{}", "AuthorizationHeaderMalformed"),
        "another region": (headers_of(region="mars"), b"{}", "AuthorizationHeaderMalformed"),
        "another service's signature": (swapped, b"{}", "SignatureDoesNotMatch"),
        "a body that is too long": (headers_of(body=bytes(MAX_BODY + 1)), bytes(MAX_BODY + 1), "EntityTooLarge"),
    }


@pytest.mark.parametrize("what", list(refused_calls()))
def test_what_was_not_signed_is_not_served(ask: Ask, echo: Echo, what: str) -> None:
    headers, body, code = refused_calls()[what]
    front = "sns" if "/sns/" in headers["authorization"] else "sqs"
    status, answer = ask(headers, body, front=front)
    assert (status // 100, answer.decode()) == (4, code)
    assert not echo.calls


def test_a_signature_for_one_service_is_refused_by_the_others() -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers_of("sqs").items()]
    now = datetime.now(UTC)
    for service in ("sns", "s3"):
        with pytest.raises(CallerError, match="the service 'sqs' is wrong"):
            sigv4.parse_call("POST", b"/", b"", raw, now, REGION, service)
    with pytest.raises(CallerError, match="the service 'sqs' is wrong"):
        sigv4.parse("POST", b"/", b"", raw, now, REGION)


def test_a_signature_in_the_query_is_not_served_here(ask: Ask) -> None:
    headers = headers_of()
    assert ask(headers, query="X-Amz-Signature=0")[0] == 400
    assert ask({name: value for name, value in headers.items() if name != "authorization"}) == (0, b"not for us")
