"""The file registry's webhook and AWS's own messages: genuine ones are taken, a corpus of forged ones is refused.

The server is real; what it would ask AWS's hosts, which are not to be had here, it asks a caller of the test.
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
from typing import Any

import psycopg
import pytest
from granian.constants import Interfaces
from granian.log import LogLevels
from granian.server.embed import Server

import sns_messages
from files_registry import BUCKET, Answer, event, everything, post
from tidings.consumers.files.webhook import create_app
from tidings.local.processes import free_port
from tidings.outgoing.connecting import Answer as Answered
from tidings.outgoing.connecting import Caller
from tidings.outgoing.settings import OutgoingSettings
from tidings.settings import Settings
from waiting import PATIENCE_SECONDS


class Aws(Caller):
    """What answers at AWS's hosts: a certificate, and to every confirmation the same."""

    def __init__(self) -> None:
        super().__init__(OutgoingSettings())
        self.certificates: list[str] = []
        self.confirmations: list[str] = []
        self.status = 200
        self._pem = sns_messages.certificate("sns.amazonaws.com", sns_messages.key())

    async def get(self, url: str, timeout: float, most: int) -> Answered:  # noqa: ARG002
        if "Action=ConfirmSubscription" in url:
            self.confirmations.append(url)
            return Answered(self.status, {}, b"")
        self.certificates.append(url)
        return Answered(200, {}, self._pem) if url == sns_messages.URL else Answered(404, {}, b"")


@contextmanager
def served(settings: Settings, aws: Aws) -> Iterator[str]:
    """The application in a thread, on a port of its own."""
    port, loop, stop = free_port(), asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        app = create_app(settings, aws)
        server = Server(app, port=port, interface=Interfaces.ASGI, log_level=LogLevels.error, websockets=False)
        serving = asyncio.create_task(server.serve())
        await stop.wait()
        server.stop()
        await serving

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    try:
        yield f"{url}/api/sns"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(120)


@pytest.fixture
def aws() -> Aws:
    return Aws()


@pytest.fixture
def url(database_url: str, aws: Aws) -> Iterator[str]:
    settings = Settings(
        database={"url": database_url},
        files={
            "sns_topics": (sns_messages.TOPIC, sns_messages.OWN_TOPIC),
            "s3_buckets": (BUCKET,),
            "trusted": (sns_messages.OWN,),
        },
    )
    with served(settings, aws) as found:
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
        assert aws.confirmations == []
        message = sns_messages.confirmation(SignatureVersion=version, MessageId=str(uuid.uuid4()))
        answer = post(url, message, **{"x-amz-sns-message-type": "SubscriptionConfirmation"})
        assert (answer.status, answer.body) == (200, {"status": "confirmed"})
        assert [aws.confirmations.pop()] == [message["SubscribeURL"]]


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
    url: str, database: psycopg.Connection, aws: Aws
) -> None:
    wrong: dict[str, Any] = {}
    for name, make in sns_messages.FORGED.items():
        answer: Answer = post(url, make())
        if answer.status != expected(name) or answer.error.startswith("Records"):
            wrong[name] = answer
    assert wrong == {}
    assert len(sns_messages.FORGED) >= 100
    assert set(aws.certificates) <= {sns_messages.URL}
    assert aws.confirmations == []
    assert everything(database) == []
