"""How a subscription's messages travel: SNS's envelope and its signatures, raw delivery, and what each answer means."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import subprocess
import sys
import time
import urllib.request
import urllib.response
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.message import Message as Headers
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from aws_sns_verifier import validate_sns_signature
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from standardwebhooks import Webhook as StandardWebhook
from standardwebhooks import WebhookVerificationError

import canary
import waiting
from conftest import Say
from tidings import destinations
from tidings.delivery.lanes import close_unused
from tidings.destinations import Destination
from tidings.destinations.sns import Subscriber
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.local.processes import free_port
from tidings.secrets import keyring
from tidings.settings import Settings
from tidings.topics import envelope
from tidings.topics.delivering import MAX_BYTES, attribute_headers
from tidings.topics.signing import SIGNING_KEY
from tidings.topics.subscribing import WEBHOOK_SECRETS
from webhooks import Answer, Webhook, webhook

PROJECT = "11111111-2222-3333-4444-555555555555"
TOPIC = f"arn:aws:sns:us-east-1:{PROJECT}:changes"
SUBSCRIPTION = f"{TOPIC}:00000000-0000-4000-8000-000000000001"
OLD, NEW = (f"whsec_{base64.b64encode(text * 4).decode()}" for text in (b"old-key-", b"new-key-"))


@pytest.fixture(scope="module")
def hook() -> Iterator[Webhook]:
    with webhook() as running:
        yield running


@pytest.fixture
def subscribed(database: psycopg.Connection, hook: Webhook) -> psycopg.Connection:
    """One confirmed subscription to the webhook."""
    hook.received.clear()
    hook.answer = lambda _: Answer()
    subscribe(database, SUBSCRIPTION, hook.url)
    return database


def subscribe(database: psycopg.Connection, arn: str, url: str) -> None:
    database.execute("insert into topics (arn, project) values (%s, %s) on conflict do nothing", [TOPIC, PROJECT])
    row = database.execute(
        "insert into lanes (project, destination, state, win, seq) values (%s, %s, 'behind', 0, 0) returning id", [PROJECT, arn]
    ).fetchone()
    assert row is not None
    database.execute(
        "insert into subscriptions (arn, topic, project, protocol, endpoint, lane) values (%s, %s, %s, 'http', %s, %s)",
        [arn, TOPIC, PROJECT, url, row[0]],
    )


def set_secrets(database: psycopg.Connection, raw: bool, secrets: list[str]) -> None:
    with database.transaction():
        for (arn,) in database.execute("select arn from subscriptions").fetchall():
            sealed = keyring.of_process().seal(database, WEBHOOK_SECRETS, arn, " ".join(secrets).encode())
            database.execute("update subscriptions set raw = %s, sealed_secrets = %s where arn = %s", [raw, sealed, arn])


def settings(database_url: str, **more: Any) -> Settings:
    return Settings(database={"url": database_url}, **{"outgoing": {"allow_http": True, "allow": ("127.0.0.0/8",)}, **more})


def message(id_: str = "m1", body: bytes = b'{"Records": []}', **attributes: str) -> Message:
    return Message(id_, body, {"id": id_, "sequencer": "0A", **attributes})


async def exchange(destination: Destination, *messages: Message, timeout: float = 10.0) -> list[Outcome]:
    try:
        return await destination.send(messages, timeout)
    finally:
        await destination.close()


def send(database_url: str, *messages: Message, timeout: float = 10.0, **more: Any) -> list[Outcome]:
    destination = destinations.connect(SUBSCRIPTION, settings(database_url, **more))
    return asyncio.run(exchange(destination, *messages, timeout=timeout))


@pytest.mark.usefixtures("subscribed")
def test_a_message_comes_in_sns_s_envelope(database_url: str, hook: Webhook) -> None:
    assert send(database_url, message(body='{"key": "höhe/\u2603"}'.encode(), traceparent="00-1-2-01")) == [SENT]
    (got,) = hook.received
    said = got.envelope
    assert list(said) == [
        *("Type", "MessageId", "TopicArn", "Subject", "Message", "Timestamp", "SignatureVersion", "Signature"),
        *("SigningCertURL", "UnsubscribeURL", "MessageAttributes"),
    ]  # fmt: skip
    assert said["Type"] == "Notification"
    assert said["TopicArn"] == TOPIC
    assert said["Subject"] == "Amazon S3 Notification"
    assert said["Message"] == '{"key": "höhe/\u2603"}'
    assert said["UnsubscribeURL"] == f"http://127.0.0.1:9000/?Action=Unsubscribe&SubscriptionArn={SUBSCRIPTION}"
    attributes = {"id": "m1", "sequencer": "0A", "traceparent": "00-1-2-01"}
    assert said["MessageAttributes"] == {name: {"Type": "String", "Value": value} for name, value in attributes.items()}
    assert {name: value for name, value in got.headers.items() if name.startswith(("x-amz", "content-type"))} == {
        "content-type": "text/plain; charset=UTF-8",
        "x-amz-sns-message-type": "Notification",
        "x-amz-sns-message-id": said["MessageId"],
        "x-amz-sns-topic-arn": TOPIC,
        "x-amz-sns-subscription-arn": SUBSCRIPTION,
    }
    assert abs(datetime.fromisoformat(said["Timestamp"]) - datetime.now(UTC)) < timedelta(minutes=5)


@pytest.mark.usefixtures("subscribed")
def test_time_and_signature_are_made_at_each_attempt_and_the_message_id_stays(database_url: str, hook: Webhook) -> None:
    hook.answer = lambda _: Answer(503)
    for _ in range(2):
        send(database_url, message())
        time.sleep(0.01)
    first, second = (each.envelope for each in hook.received)
    assert first["MessageId"] == second["MessageId"] == envelope.message_id("m1")
    assert first["Timestamp"] != second["Timestamp"]
    assert first["Signature"] != second["Signature"]
    assert envelope.message_id("m2") != envelope.message_id("m1")


class AtAws(urllib.request.BaseHandler):
    """What is asked for at AWS's host is answered with our certificate: the library insists on that host."""

    handler_order = 100  # before the one that would connect

    def __init__(self, pem: bytes) -> None:
        self._pem = pem
        self.asked: list[str] = []

    def https_open(self, request: urllib.request.Request) -> Any:
        self.asked.append(request.full_url)
        answer: Any = urllib.response.addinfourl(io.BytesIO(self._pem), Headers(), request.full_url, 200)
        answer.msg = "OK"
        return answer


@dataclass
class Files:
    signing: dict[str, Path]
    pem: bytes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A key and a certificate from files, issued as the library expects it."""
    folder = tmp_path_factory.mktemp("signing")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    issuer = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Amazon")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sns.amazonaws.com")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / "certificate.pem").write_bytes(pem)
    return Files({"signing_key": folder / "key.pem", "signing_certificate": folder / "certificate.pem"}, pem)


@pytest.fixture
def at_aws(files: Files, monkeypatch: pytest.MonkeyPatch) -> AtAws:
    from aws_sns_verifier import validator

    handler = AtAws(files.pem)
    validator._get_certificate.cache_clear()
    # AWS's verifier asks AWS for the certificate through urllib, and AWS cannot be had here: this answers in its place.
    monkeypatch.setattr(urllib.request, "_opener", urllib.request.build_opener(handler), raising=False)
    return handler


@pytest.mark.parametrize("version", [1, 2])
def test_an_independent_library_verifies_our_signatures_and_notices_a_changed_word(
    subscribed: psycopg.Connection, database_url: str, hook: Webhook, version: int, files: Files, at_aws: AtAws
) -> None:
    subscribed.execute("update topics set signature_version = %s", [version])
    at = {"api": {"public_url": "https://sns.us-east-1.amazonaws.com"}, "topics": files.signing}
    assert send(database_url, message(), message("m2", "ä\n{}".encode()), **at) == [SENT] * 2
    for got in hook.received:
        said = got.envelope
        assert said["SignatureVersion"] == str(version)
        assert validate_sns_signature(got.body, TOPIC).Message == said["Message"]
        for name in ("Message", "MessageId", "Subject", "Timestamp", "TopicArn"):
            with pytest.raises(Exception, match="Invalid signature"):
                validate_sns_signature({**said, name: said[name] + " "})
    assert len(at_aws.asked) == 1


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("type_", [envelope.CONFIRMATION, envelope.FAREWELL])
def test_an_independent_library_verifies_our_confirmations(
    database_url: str, version: int, type_: str, files: Files, at_aws: AtAws
) -> None:
    from tidings.topics import signing

    at = settings(database_url, api={"public_url": "https://sns.us-east-1.amazonaws.com"}, topics=files.signing)

    async def signer() -> signing.Signer:
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            return await signing.load(connection, at)

    _, body = envelope.confirmation(asyncio.run(signer()), version, type_, TOPIC, "t0ken", at.api.url)
    assert validate_sns_signature(body, TOPIC, auto_confirm_subscription=False).Type == type_
    said = json.loads(body)
    for name in ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn"):
        with pytest.raises(Exception, match="Invalid signature"):
            validate_sns_signature({**said, name: said[name] + "x"}, auto_confirm_subscription=False)
    assert len(at_aws.asked) == 1


def test_the_key_is_made_once_and_kept_and_is_in_no_log(
    subscribed: psycopg.Connection, database_url: str, hook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    send(database_url, message())
    send(database_url, message("m2"))
    [private] = canary.unsealed(subscribed, SIGNING_KEY)
    secret = private.decode().splitlines()[5]
    assert secret not in caplog.text
    assert len({each.envelope["SigningCertURL"] for each in hook.received}) == 1


def test_raw_delivery_sends_the_body_as_it_is_with_attributes_as_headers(
    subscribed: psycopg.Connection, database_url: str, hook: Webhook
) -> None:
    subscribed.execute("update subscriptions set raw = true")
    body = b'\xff\x00{"not": "text"}'
    attributes = {"ce-type": "a.b", "ce-subject": 'h\u00f6he "1" 100%', "content-type": "application/json; charset=utf-8"}
    attributes |= {"host": "evil", "x-amz-sns-topic-arn": "evil", "bad\r\nname": "x", "note": "a\r\nb: c"}
    assert send(database_url, message(body=body, **attributes)) == [SENT]
    (got,) = hook.received
    assert got.body == body
    assert got.headers["x-amz-sns-rawdelivery"] == "true"
    assert got.headers["x-amz-sns-topic-arn"] == TOPIC
    assert got.headers["host"] == f"127.0.0.1:{hook.port}"
    assert (got.headers["id"], got.headers["sequencer"]) == ("m1", "0A")
    assert got.headers["ce-subject"] == "h%C3%B6he%20%221%22%20100%25"
    assert got.headers["content-type"] == "application/json; charset=utf-8"
    assert got.headers["note"] == "a%0D%0Ab: c"
    assert "webhook-signature" not in got.headers, "there is no secret"
    assert attribute_headers({"Transfer-Encoding": "chunked", "webhook-id": "x", "": "x"}) == {}


def test_raw_messages_are_signed_as_standard_webhooks_with_one_secret_or_two(
    subscribed: psycopg.Connection, database_url: str, hook: Webhook
) -> None:
    for secrets in ([OLD], [NEW, OLD], [NEW]):
        hook.received.clear()
        set_secrets(subscribed, True, secrets)
        assert send(database_url, message()) == [SENT]
        (got,) = hook.received
        assert len(got.headers["webhook-signature"].split()) == len(secrets)
        assert got.headers["webhook-id"] == envelope.message_id("m1")
        for secret in (OLD, NEW):
            if secret in secrets:
                StandardWebhook(secret).verify(got.body, got.headers)
                with pytest.raises(WebhookVerificationError):
                    StandardWebhook(secret).verify(got.body + b" ", got.headers)
            else:
                with pytest.raises(WebhookVerificationError):
                    StandardWebhook(secret).verify(got.body, got.headers)


RETRIED = (408, 425, 429, *range(500, 512), 599)
REFUSED = (400, 413, 415, 422)
WAITING = (300, 301, 302, 303, 304, 305, 307, 308, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 414, 416, 417, 418)
WAITING = (*WAITING, 421, 423, 424, 426, 428, 431, 451, 499)
TABLE = {
    **dict.fromkeys((200, 201, 202, 203, 204, 205, 206, 226, 299), Verdict.SENT),
    **dict.fromkeys(RETRIED, Verdict.RETRY),
    **dict.fromkeys(REFUSED, Verdict.REJECTED),
    **dict.fromkeys(WAITING, Verdict.WAIT),
}


@pytest.mark.usefixtures("subscribed")
def test_the_table_of_http_cell_by_cell(database_url: str, hook: Webhook) -> None:
    async def go() -> dict[int, Verdict]:
        destination = destinations.connect(SUBSCRIPTION, settings(database_url))
        found = {}
        for status in TABLE:
            headers = {"location": f"{hook.url}/elsewhere"} if 300 <= status < 400 else {}
            hook.answer = lambda _, status=status, headers=headers: Answer(status, headers=headers)  # type: ignore[misc]
            (outcome,) = await destination.send([message(str(status))], 10.0)
            assert outcome.verdict is Verdict.SENT or str(status) in outcome.reason
            found[status] = outcome.verdict
        await destination.close()
        return found

    assert asyncio.run(go()) == TABLE
    assert {each.path for each in hook.received} == {"/hook"}, "no redirect was followed"


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.usefixtures("subscribed")
def test_retry_after_is_honoured_in_seconds_and_as_a_date(database_url: str, hook: Webhook, status: int) -> None:
    def after(value: str) -> float | None:
        hook.answer = lambda _: Answer(status, headers={"retry-after": value})
        (outcome,) = send(database_url, message())
        return outcome.after

    assert after("7") == 7.0
    soon = after(format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True))
    assert soon is not None
    assert 30 < soon <= 100
    assert after(format_datetime(datetime.now(UTC) - timedelta(seconds=100), usegmt=True)) == 0.0
    assert after("999999999") == 3600.0
    assert after("soon") is None


@pytest.mark.usefixtures("subscribed")
def test_the_reason_quotes_the_peer_in_one_short_line(database_url: str, hook: Webhook) -> None:
    hook.answer = lambda _: Answer(503, b"first\r\nsecond\x1b[31m" + b"x" * 100_000)
    (outcome,) = send(database_url, message())
    assert outcome.reason.startswith("503 Service Unavailable: first second")
    assert len(outcome.reason) <= 300
    assert outcome.reason.isprintable()


@pytest.mark.usefixtures("subscribed")
def test_a_peer_that_hangs_hurts_its_own_message_only(database_url: str, hook: Webhook) -> None:
    assert send(database_url, message()) == [SENT]  # so that the signing key is there
    hook.answer = lambda got: Answer(delay=30.0 if b"m2-id" in got.body else 0.0)
    messages = [message(f"m{i}-id") for i in range(4)]
    outcomes = send(database_url, *messages, timeout=4.0)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.SENT, Verdict.SENT, Verdict.RETRY, Verdict.SENT]


def test_nobody_there_and_a_connection_that_breaks_are_tried_again(subscribed: psycopg.Connection, database_url: str) -> None:
    subscribed.execute("update subscriptions set endpoint = %s", [f"http://127.0.0.1:{free_port()}/"])
    (outcome,) = send(database_url, message())
    assert outcome.verdict is Verdict.RETRY

    async def go() -> Outcome:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        subscribed.execute("update subscriptions set endpoint = %s", [f"http://127.0.0.1:{port}/"])
        (outcome,) = await exchange(destinations.connect(SUBSCRIPTION, settings(database_url)), message())
        server.close()
        return outcome

    assert asyncio.run(go()).verdict is Verdict.RETRY


@pytest.mark.usefixtures("subscribed")
def test_what_the_guard_refuses_waits_and_says_why(database_url: str, hook: Webhook) -> None:
    (outcome,) = send(database_url, message(), outgoing={"allow_http": True})
    assert outcome.verdict is Verdict.WAIT
    assert "127.0.0.1 is not called: loopback" in outcome.reason
    assert hook.received == []


def test_a_message_that_is_too_large_is_refused_with_its_size_and_the_others_go(
    subscribed: psycopg.Connection, database_url: str, hook: Webhook
) -> None:
    overhead = len(b"id" + b"m1" + b"sequencer" + b"0A")
    just, over = message(body=b"x" * (MAX_BYTES - overhead)), message(body=b"x" * (MAX_BYTES - overhead + 1))
    for raw in (False, True):
        hook.received.clear()
        subscribed.execute("update subscriptions set raw = %s", [raw])
        first, second, third = send(database_url, just, over, message("m3"))
        assert (first, third) == (SENT, SENT)
        assert second.verdict is Verdict.REJECTED
        assert "262145" in second.reason
        assert "262144" in second.reason
        assert len(hook.received) == 2


@pytest.mark.usefixtures("subscribed")
def test_text_that_is_not_utf_8_has_no_place_in_an_envelope(database_url: str, hook: Webhook) -> None:
    (outcome,) = send(database_url, message(body=b"\xff"))
    assert outcome.verdict is Verdict.REJECTED
    assert hook.received == []


@pytest.mark.usefixtures("hook")
def test_a_subscription_is_read_again_within_seconds_and_the_database_may_be_away(
    subscribed: psycopg.Connection, database_url: str
) -> None:
    async def go() -> None:
        destination = destinations.connect(SUBSCRIPTION, settings(database_url))
        assert await destination.send([message()], 10.0) == [SENT]
        subscribed.execute("delete from subscriptions")
        deadline = time.monotonic() + waiting.PATIENCE_SECONDS
        while (await destination.send([message()], 10.0))[0].verdict is Verdict.SENT:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        (outcome,) = await destination.send([message()], 10.0)
        assert outcome.verdict is Verdict.WAIT
        await destination.close()

    asyncio.run(go())
    nowhere = settings(f"postgresql://127.0.0.1:{free_port()}/x")
    (outcome,) = asyncio.run(exchange(destinations.connect(SUBSCRIPTION, nowhere), message()))
    assert outcome.verdict is Verdict.RETRY
    assert "cannot be read" in outcome.reason


def test_connections_are_kept_and_shared(subscribed: psycopg.Connection, database_url: str, hook: Webhook) -> None:
    before = hook.connections
    other = f"{TOPIC}:00000000-0000-4000-8000-000000000002"
    subscribe(subscribed, other, f"{hook.url}/other")

    async def go() -> None:
        both = [destinations.connect(arn, settings(database_url)) for arn in (SUBSCRIPTION, other)]
        for i in range(20):
            for destination in both:
                assert await destination.send([message(str(i))], 10.0) == [SENT]
        for destination in both:
            await destination.close()

    asyncio.run(go())
    assert hook.connections - before == 1


SLOW = """
import asyncio, pathlib, sys
at_once = peak = 0
async def serve(reader, writer):
    global at_once, peak
    try:
        while head := await reader.readuntil(b"\\r\\n\\r\\n"):
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\\r\\n")[0])
            await reader.readexactly(length)
            at_once += 1
            if at_once > peak:
                peak = at_once
                pathlib.Path(sys.argv[2]).write_text(str(peak))
            await asyncio.sleep(0.02)
            at_once -= 1
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=256)
    print("ready", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def test_a_webhook_that_takes_20_ms_gets_many_messages_side_by_side(
    subscribed: psycopg.Connection, database_url: str, say: Say, tmp_path: Path
) -> None:
    """How fast that is depends on who else uses the machine, so it is printed, and what counts is how many are under way."""
    port, count, peak = free_port(), 1000, tmp_path / "peak"
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(port), str(peak)], stdout=subprocess.PIPE, env=os.environ)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        subscribed.execute("update subscriptions set endpoint = %s", [f"http://127.0.0.1:{port}/"])

        async def rate() -> tuple[float, float]:
            destination = destinations.connect(SUBSCRIPTION, settings(database_url))
            await destination.send([message()], 60.0)
            began, busy = time.monotonic(), time.process_time()
            for start in range(0, count, destination.ahead):
                batch = [message(str(i)) for i in range(start, min(count, start + destination.ahead))]
                assert await destination.send(batch, 60.0) == [SENT] * len(batch)
            seconds, busy = time.monotonic() - began, time.process_time() - busy
            await destination.close()
            return count / seconds, busy / count * 1000

        for raw in (False, True):
            set_secrets(subscribed, raw, [NEW] if raw else [])
            per_second, cost = asyncio.run(rate())
            how = "raw" if raw else "in the envelope"
            say(f"{how}: {per_second:.0f} messages a second to one webhook that takes 20 ms, {cost:.2f} ms of CPU each")
        assert int(peak.read_text()) >= 32
    finally:
        process.terminate()
        process.wait(120)


def test_a_subscriber_may_have_many_messages_under_way() -> None:
    assert Subscriber.ahead >= 32


def test_the_lane_of_a_subscription_stays_open_without_a_rule_and_is_closed_when_it_has_ended(
    subscribed: psycopg.Connection,
) -> None:
    assert close_unused(subscribed, 0) == []
    subscribed.execute("delete from topics")
    (lane,) = close_unused(subscribed, 0)
    assert subscribed.execute("select id, state from lanes").fetchall() == [(lane, "closed")]
    assert subscribed.execute("select lane, what from lane_log").fetchall() == [(lane, "closed")]
