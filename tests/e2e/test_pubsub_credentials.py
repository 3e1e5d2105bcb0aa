"""Publishing as in production: over TLS, with tokens from Google's endpoints, and what happens if they give none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from google_cloud import OURS, TENANTS_KNOW, Google, google_cloud
from s3_server import request, s3_server

from waiting import PATIENCE_SECONDS

PUBLISHER = """
import asyncio, json, sys, time
from tidings import destinations, settings
from tidings.events.messages import Message

async def publish(destination, timeout):
    longest = 0.0
    async def beat():
        nonlocal longest
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - began)
    beating, began = asyncio.create_task(beat()), time.monotonic()
    (outcome,) = await destination.send([Message("id", b"{}")], timeout)
    seconds = time.monotonic() - began
    beating.cancel()
    print(json.dumps([outcome.verdict, outcome.reason, seconds, longest]), flush=True)

loop, topics = asyncio.new_event_loop(), {}
for line in sys.stdin:
    topic, timeout = json.loads(line)
    if topic not in topics:
        topics[topic] = destinations.connect(f"arn:gcp:pubsub::tenant-project:{topic}", settings.load())
    loop.run_until_complete(publish(topics[topic], timeout))
"""


class Publisher:
    """A process that publishes when it is told to: its own, because what gRPC trusts is read once in a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.seconds = self.stuck = 0.0

    def send(self, topic: str = "one", timeout: float = 30.0) -> tuple[str, str]:
        """The verdict and the reason. `seconds` is how long it took, `stuck` how long the event loop stood still."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([topic, timeout]) + "\n")
        self._process.stdin.flush()
        verdict, reason, self.seconds, self.stuck = json.loads(self._process.stdout.readline())
        return verdict, reason


@contextmanager
def publishing(settings: dict[str, str]) -> Iterator[Publisher]:
    environment = {**os.environ, **settings}
    with subprocess.Popen(
        [sys.executable, "-c", PUBLISHER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Publisher(process)


@pytest.fixture
def google(tmp_path: Path) -> Iterator[Google]:
    with google_cloud(tmp_path) as running:
        yield running


SENT = ("sent", "")
PAUSE = 1.2
"""A token endpoint that has just answered is not asked again for a second."""


@pytest.mark.parametrize("default", [False, True])
def test_the_account_that_tenants_know_is_impersonated(google: Google, default: bool) -> None:
    settings = google.settings()
    if default:
        settings["GOOGLE_APPLICATION_CREDENTIALS"] = settings.pop("TIDINGS_PUBSUB__CREDENTIALS_FILE")
    with publishing(settings) as publisher:
        assert [publisher.send("one"), publisher.send("two"), publisher.send("one")] == [SENT, SENT, SENT]
    assert google.signed_by == [OURS]
    [(account, authorization, body)] = google.impersonations  # all topics of a process have one token
    assert (account, authorization) == (TENANTS_KNOW, "Bearer base-1")
    assert "https://www.googleapis.com/auth/pubsub" in body["scope"]
    assert google.published == ["Bearer impersonated-1"] * 3


def test_without_such_an_account_the_given_credentials_publish(google: Google) -> None:
    with publishing(google.settings(impersonating=False)) as publisher:
        assert publisher.send() == SENT
    assert (google.published, google.impersonations) == (["Bearer base-1"], [])


def test_a_token_that_has_expired_is_renewed_before_the_next_call(google: Google) -> None:
    google.lifetime = 2.0
    with publishing(google.settings()) as publisher:
        assert publisher.send() == SENT
        google.lifetime = 3600.0
        time.sleep(2.5)
        assert publisher.send() == SENT
        assert publisher.send() == SENT
    assert google.published == ["Bearer impersonated-1", "Bearer impersonated-2", "Bearer impersonated-2"]
    assert google.signed_by == [OURS], "the token that asks for the other is still good"


def test_a_token_that_will_soon_expire_is_used_while_another_is_asked_for(google: Google) -> None:
    google.lifetime = 120.0
    with publishing(google.settings()) as publisher:
        assert publisher.send() == SENT
        google.answers.clear()
        time.sleep(PAUSE)
        assert publisher.send() == SENT, "nobody waits for the token endpoint"
        google.answers.set()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while google.published[-1] != "Bearer impersonated-2":
            assert time.monotonic() < deadline
            time.sleep(0.1)
            assert publisher.send() == SENT


def test_a_token_that_pubsub_no_longer_knows_is_replaced(google: Google) -> None:
    with publishing(google.settings()) as publisher:
        assert publisher.send() == SENT
        google.unknown_tokens.add("Bearer impersonated-1")
        verdict, reason = publisher.send()
        assert (verdict, reason) == ("retry", "UNAUTHENTICATED: Request had invalid authentication credentials.")
        time.sleep(PAUSE)
        assert publisher.send() == SENT
    assert google.published[-1] == "Bearer impersonated-2"


FORBIDDEN = {
    "error": {
        "code": 403,
        "message": "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).",
        "status": "PERMISSION_DENIED",
    }
}


@pytest.mark.parametrize(
    ("endpoint", "status", "answer", "words"),
    [
        ("iam", 403, FORBIDDEN, "PERMISSION_DENIED: Permission 'iam.serviceAccounts.getAccessToken' denied on resource"),
        ("iam", 503, {"error": "come back"}, '503: { "error": "come back" }'),
        ("token", 400, {"error": "invalid_grant", "error_description": "Invalid JWT."}, "invalid_grant: Invalid JWT."),
        ("token", 503, {"error": "come back"}, '/token answered 503: { "error": "come back" }'),
    ],
)
def test_a_refusal_is_quoted_and_passes(google: Google, endpoint: str, status: int, answer: dict[str, Any], words: str) -> None:
    google.refusals[endpoint] = (status, answer)
    with publishing(google.settings()) as publisher:
        verdict, reason = publisher.send(timeout=10.0)
        assert verdict == "retry"
        assert reason.startswith(f"no access token for {TENANTS_KNOW}: ")
        assert words in reason
        assert "base-1" not in reason
        google.refusals.clear()
        time.sleep(PAUSE)
        assert publisher.send() == SENT


def test_a_token_endpoint_that_hangs_holds_nobody_longer_than_the_timeout(google: Google) -> None:
    google.answers.clear()
    with publishing(google.settings()) as publisher:
        assert publisher.send(timeout=3.0) == ("retry", "no access token from Google within 3 s")
        assert publisher.stuck < publisher.seconds / 2, "the event loop goes on"
        google.answers.set()
        time.sleep(PAUSE)
        assert publisher.send() == SENT


def test_a_credentials_file_that_is_missing_is_the_operator_s_and_no_tenant_s_affair(google: Google) -> None:
    with publishing({**google.settings(), "TIDINGS_PUBSUB__CREDENTIALS_FILE": "/nowhere/key.json"}) as publisher:
        verdict, reason = publisher.send()
    assert (verdict, "/nowhere" in reason) == ("retry", False), reason
    assert "its operator finds in the log" in reason


def test_a_server_that_is_not_trusted_gets_no_token(google: Google, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with (
        google_cloud(tmp_path / "other", key=2) as other,
        publishing({**google.settings(), "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(other.certificate)}) as publisher,
    ):
        assert publisher.send(timeout=5.0)[0] == "retry"
    assert len(google.impersonations) == 1
    assert google.published == []


CONFIGURATION = b"""<NotificationConfiguration><TopicConfiguration><Topic>arn:gcp:pubsub::tenant-project:one</Topic>
<Event>s3:ObjectCreated:*</Event></TopicConfiguration></NotificationConfiguration>"""


def test_a_test_event_is_published_as_that_account_too(google: Google, database_url: str, tmp_path: Path) -> None:
    with s3_server(database_url, tmp_path, TIDINGS_API__WORKERS="1", **google.settings()) as server:
        assert request(server, "PUT", "/bucket").status == 200
        google.refusals["iam"] = (403, FORBIDDEN)
        answer = request(server, "PUT", "/bucket", "notification", CONFIGURATION)
        assert (answer.status, "iam.serviceAccounts.getAccessToken" in answer.error["Message"]) == (400, True), answer
        google.refusals.clear()
        time.sleep(PAUSE)
        assert request(server, "PUT", "/bucket", "notification", CONFIGURATION).status == 200
        assert google.published == ["Bearer impersonated-2"]
        assert not [token for token in ("base-1", "impersonated-") if token in server.log]
