"""The file registry's webhook and AWS's own messages: genuine ones are taken, a corpus of forged ones is refused.

The server is real; certificates of AWS come through a function of the test, for its hosts are not to be had here.
"""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from granian.constants import Interfaces
from granian.log import LogLevels
from granian.server.embed import Server

import sns_messages
from files_registry import BUCKET, Answer, event, everything, post
from tidings.consumers.files import webhook
from tidings.consumers.files.webhook import create_app
from tidings.local.processes import free_port
from tidings.settings import Settings
from tidings.topics.verifying import Forged


class Certificates:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self._pem = sns_messages.certificate("sns.amazonaws.com", sns_messages.key())

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if url != sns_messages.URL:
            raise Forged(f"nothing at {url}")
        return self._pem


class Aws:
    """What answers at AWS, which is not to be reached from here."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status = 200

    async def get(self, url: str, _seconds: float, _most: int) -> SimpleNamespace:
        self.asked.append(url)
        return SimpleNamespace(status=self.status, body=b"")

    async def close(self) -> None: ...


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Aws:
    found = Aws()
    monkeypatch.setattr(webhook, "caller", lambda _settings: found)
    return found


@contextmanager
def served(settings: Settings, certificates: Certificates) -> Iterator[str]:
    """The application in a thread, on a port of its own."""
    port, loop, stop = free_port(), asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        app = create_app(settings, certificates.fetch)
        server = Server(app, port=port, interface=Interfaces.ASGI, log_level=LogLevels.error, websockets=False)
        serving = asyncio.create_task(server.serve())
        await stop.wait()
        server.stop()
        await serving

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
            break
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    try:
        yield f"{url}/api/sns"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)


@pytest.fixture
def certificates() -> Certificates:
    return Certificates()


@pytest.fixture
def url(database_url: str, certificates: Certificates, aws: Aws) -> Iterator[str]:
    assert aws
    settings = Settings(
        database={"url": database_url},
        files={
            "sns_topics": (sns_messages.TOPIC, sns_messages.OWN_TOPIC),
            "s3_buckets": (BUCKET,),
            "trusted": (sns_messages.OWN,),
        },
    )
    with served(settings, certificates) as found:
        yield found


def test_genuine_notifications_of_aws_are_taken_in_both_versions_with_and_without_a_subject(
    url: str, database: psycopg.Connection
) -> None:
    for version in ("1", "2"):
        for subject in ("Amazon S3 Notification", None):
            message = sns_messages.notification(
                SignatureVersion=version, Subject=subject, Message=event(), MessageId=str(uuid.uuid4())
            )
            answer = post(url, message, **{"x-amz-sns-message-type": "Notification"})
            assert (answer.status, answer.body["status"]) == (200, "processed")
    assert len(everything(database)) == 1


def test_genuine_confirmations_of_aws_are_taken_in_both_versions(url: str, aws: Aws) -> None:
    for version in ("1", "2"):
        left = sns_messages.confirmation(SignatureVersion=version, Type="UnsubscribeConfirmation", MessageId=str(uuid.uuid4()))
        assert post(url, left).body == {"status": "unsubscribed"}
        assert aws.asked == []
        message = sns_messages.confirmation(SignatureVersion=version, MessageId=str(uuid.uuid4()))
        answer = post(url, message, **{"x-amz-sns-message-type": "SubscriptionConfirmation"})
        assert (answer.status, answer.body) == (200, {"status": "confirmed"})
        assert [aws.asked.pop()] == [message["SubscribeURL"]]


def test_a_confirmation_that_aws_does_not_take_is_asked_for_again(url: str, aws: Aws) -> None:
    aws.status = 500
    answer = post(url, sns_messages.confirmation(MessageId=str(uuid.uuid4())))
    assert (answer.status, "could not be confirmed" in answer.error) == (500, True)


def expected(name: str) -> int:
    """The status of the seed's table for a message of the corpus."""
    if name.startswith("topic "):
        return 403
    of_signature = ("Signature", "SignatureVersion", "SigningCertURL")
    missing = name.removeprefix("without ").partition(" is ")[0]
    if (name.startswith("without ") or " is " in name) and missing in (
        "Type",
        "MessageId",
        "TopicArn",
        "Message",
        "Timestamp",
        "Subject",
    ):
        return 400
    if missing in of_signature:
        return 401
    if name in FORMLESS or name.startswith(("type ", "confirmation without ")):
        return 400
    return 401


FORMLESS = {
    *("a key twice", "a key twice, deep", "NaN", "two documents", "a list", "text", "null", "nothing", "not UTF-8", "UTF-16"),
    *("a byte order mark", "too deep", "very deep", "too large", "cut off", "MessageId is no UUID"),
}


def test_every_forged_or_altered_message_is_refused_with_its_status_and_stores_nothing(
    url: str, database: psycopg.Connection, certificates: Certificates
) -> None:
    wrong: dict[str, Any] = {}
    for name, make in sns_messages.FORGED.items():
        answer: Answer = post(url, make())
        if answer.status != expected(name) or answer.error.startswith("Records"):
            wrong[name] = answer
    assert wrong == {}
    assert len(sns_messages.FORGED) >= 100
    assert set(certificates.asked) <= {sns_messages.URL}
    assert everything(database) == []
