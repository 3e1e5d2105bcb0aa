"""Bad input to a running stack: the right S3 error, and neither configuration nor objects nor destinations notice it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import psycopg
import pytest

from arrivals import PROJECT, Collector
from conftest import Running
from traffic import Answer, Caller, collecting, send_events
from waiting import until

BUCKET = "bad-input"
TARGET = f"/{BUCKET}?notification="
KEY = f"/{BUCKET}/kept"
KEPT = b"as it was"
TOPIC = f"arn:gcp:pubsub::{PROJECT}:{BUCKET}"

Attempt = Callable[[Running], Answer]


@pytest.fixture(scope="module")
def collector(stack: Running) -> Iterator[Collector]:
    with collecting(stack) as collector:
        send_events(stack, collector, BUCKET)
        put = Caller(stack.ready).call("PUT", KEY, KEPT)
        assert put.status == 200
        collector.event(put.request_id)
        until(lambda: collector.tests, "the test event")
        yield collector


def document(topic: str = TOPIC, event: str = "s3:ObjectRemoved:*", **filters: str) -> bytes:
    """A configuration that would be taken, and would replace the one that is there, but for what is wrong with it."""
    rules = "".join(
        f"<FilterRule><Name>{name.rstrip('_')}</Name><Value>{value}</Value></FilterRule>" for name, value in filters.items()
    )
    return (
        "<NotificationConfiguration><TopicConfiguration><Id>new</Id>"
        f"<Topic>{topic}</Topic><Event>{event}</Event><Filter><S3Key>{rules}</S3Key></Filter>"
        "</TopicConfiguration></NotificationConfiguration>"
    ).encode()


def configure(body: bytes, target: str = TARGET, **how: Any) -> Attempt:
    return lambda stack: Caller(stack.ready).call("PUT", target, body, **how)


def ago(minutes: int, method: str, target: str, body: bytes) -> Attempt:
    return lambda stack: Caller(stack.ready).call(method, target, body, at=datetime.now(UTC) - timedelta(minutes=minutes))


def unsigned(stack: Running) -> Answer:
    return Caller(stack.ready).send("PUT", TARGET, document(), {})


def unknown_key(stack: Running) -> Answer:
    return Caller({**stack.ready, "access_key_id": "AKIA" + "X" * 16}).call("PUT", TARGET, document())


DOCTYPE = b'<!DOCTYPE NotificationConfiguration [<!ENTITY e "s3:ObjectRemoved:*">]>' + document(event="&e;")

ATTEMPTS: dict[str, tuple[Attempt, int, str, str]] = {
    "malformed XML": (configure(b"<NotificationConfiguration><Topic"), 400, "MalformedXML", "not well-formed"),
    "another document": (configure(b"<Delete/>"), 400, "MalformedXML", "NotificationConfiguration"),
    "DOCTYPE": (configure(DOCTYPE), 400, "MalformedXML", "DOCTYPE"),
    "no topic": (configure(document().replace(b"Topic>", b"Tropic>")), 400, "MalformedXML", "Tropic"),
    "unknown event": (configure(document(event="s3:ObjectLost:*")), 400, "InvalidArgument", "s3:ObjectLost:*"),
    "bad ARN": (configure(document(topic="arn:aws:sns:us-east-1:1:t")), 400, "InvalidArgument", "arn:aws:sns:us-east-1:1:t"),
    "two prefixes": (configure(document(prefix="a/", prefix_="b/")), 400, "InvalidArgument", "2 prefix rules"),
    "1,025 characters": (configure(document(suffix="x" * 1025)), 400, "InvalidArgument", "1025 characters"),
    "unknown filter": (configure(document(infix="x")), 400, "InvalidArgument", "prefix or suffix"),
    "unknown topic": (configure(document(topic=f"{TOPIC}-not-there")), 400, "InvalidArgument", f"{TOPIC}-not-there"),
    "missing bucket": (configure(document(), "/not-there?notification="), 404, "NoSuchBucket", "does not exist"),
    "expired": (ago(16, "PUT", TARGET, document()), 403, "RequestTimeTooSkewed", "15 minutes"),
    "from the future": (ago(-16, "PUT", TARGET, document()), 403, "RequestTimeTooSkewed", "15 minutes"),
    "wrong signature": (configure(document(), secret="x" * 40), 403, "SignatureDoesNotMatch", "secret"),
    "unsigned": (unsigned, 403, "AccessDenied", "not signed"),
    "unknown key": (unknown_key, 403, "InvalidAccessKeyId", "does not exist"),
    "object, expired": (ago(16, "PUT", KEY, b"new"), 403, "RequestTimeTooSkewed", "15 minutes"),
    "object, wrong signature": (configure(b"new", KEY, secret="x" * 40), 403, "SignatureDoesNotMatch", "secret"),
    "delete, expired": (ago(16, "DELETE", KEY, b""), 403, "RequestTimeTooSkewed", "15 minutes"),
    "object, missing bucket": (configure(b"new", "/not-there/kept"), 404, "NoSuchBucket", "does not exist"),
}


def kept(stack: Running) -> tuple[Any, ...]:
    """All that must not change: the configuration, the object, the log of changes."""
    caller = Caller(stack.ready)
    configuration, stored = caller.call("GET", TARGET), caller.call("GET", KEY)
    with psycopg.connect(stack.ready["database"]) as connection:
        logged = connection.execute("select count(*) from changes where bucket in (%s, 'not-there')", [BUCKET]).fetchone()
    return tuple(replace(answer, headers={}) for answer in (configuration, stored)), logged


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_bad_input_gets_its_error_and_changes_nothing(stack: Running, collector: Collector, attempt: str) -> None:
    send, status, code, words = ATTEMPTS[attempt]
    before, tests = kept(stack), len(collector.tests)
    answer = send(stack)
    error = {element.tag: element.text or "" for element in ElementTree.fromstring(answer.body)}
    assert (answer.status, error["Code"]) == (status, code)
    assert words in error["Message"]
    assert error["RequestId"] == answer.request_id
    assert stack.ready["secret_access_key"] not in answer.body.decode()
    assert kept(stack) == before
    assert len(collector.tests) == tests, "a refused configuration sent a test event"
