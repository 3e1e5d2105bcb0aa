"""Our own verifier: genuine messages are taken, and every forged or altered one of a corpus is refused, none by accident.

All certificates are fetched through a function of the test, which notes what was asked for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from sns_messages import (
    BEFORE_ANY_CALL,
    FORGED,
    HEX,
    HOST,
    OWN,
    OWN_TOPIC,
    TOPIC,
    URL,
    certificate,
    confirmation,
    key,
    notification,
    signed,
    stamp,
)
from tidings.topics import envelope
from tidings.topics.signing import Signer
from tidings.topics.verifying import Forged, Repeated, Verified, Verifier


@dataclass
class Site:
    """Where certificates are. What is not there cannot be fetched."""

    pages: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if url not in self.pages:
            raise Forged(f"nothing at {url}")
        return self.pages[url]


def site() -> Site:
    return Site({URL: certificate("sns.amazonaws.com", key())})


def verify(message: dict[str, Any] | bytes, at: Site | None = None, header: str | None = None) -> Verified:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return asyncio.run(Verifier([TOPIC, OWN_TOPIC], (at or site()).fetch, [OWN]).verify(body, header))


def test_genuine_messages_of_all_types_and_both_versions_are_taken() -> None:
    for version in ("1", "2"):
        for subject in ("Amazon S3 Notification", None):
            taken = verify(notification(SignatureVersion=version, Subject=subject), header="Notification")
            assert (taken.type, taken.topic, taken.subject, taken.subscribe_url) == ("Notification", TOPIC, subject, None)
        for type_ in ("SubscriptionConfirmation", "UnsubscribeConfirmation"):
            taken = verify(confirmation(SignatureVersion=version, Type=type_))
            assert taken.subscribe_url is not None
            assert taken.subscribe_url.startswith(f"https://{HOST}/?Action=ConfirmSubscription&")


def test_what_we_sign_ourselves_is_taken_where_we_are_trusted_and_nowhere_else() -> None:
    pem = certificate("127.0.0.1", key())
    signer = Signer(key(), pem, f"{OWN}/SimpleNotificationService-{HEX}.pem")
    at = Site({signer.url: pem})
    for version in (1, 2):
        body = envelope.notification(signer, version, OWN_TOPIC, "id", "höhe\n", {"id": "id"}, "http://x")
        assert verify(body, at).message == "höhe\n"
        for type_ in (envelope.CONFIRMATION, envelope.FAREWELL):
            _, body = envelope.confirmation(signer, version, type_, OWN_TOPIC, "t0ken", OWN)
            assert str(verify(body, at).subscribe_url).startswith(f"{OWN}/?Action=ConfirmSubscription")
        with pytest.raises(Forged, match="SigningCertURL"):
            asyncio.run(Verifier([OWN_TOPIC], at.fetch).verify(body))


def is_taken(message: dict[str, Any] | bytes, at: Site) -> bool:
    try:
        verify(message, at)
    except Forged:
        return False
    return True


def test_every_forged_or_altered_message_is_refused_and_most_before_any_call() -> None:
    refused = 0
    for name, make in FORGED.items():
        at = site()
        assert not is_taken(make(), at), f"{name} was taken"
        assert (at.asked == []) == (name in BEFORE_ANY_CALL), f"{name}: asked for {at.asked}"
        refused += 1
    assert refused == len(FORGED) >= 100


def certificates() -> Iterator[tuple[str, Any, bytes]]:
    good = key()
    yield "of another name", good, certificate("evil.example", good)
    yield "of another region", good, certificate("sns.us-east-1.amazonaws.com", good)
    yield "of a name that ends in it", good, certificate("xsns.amazonaws.com", good)
    yield "expired", good, certificate("sns.amazonaws.com", good, timedelta(days=-9), timedelta(days=-1))
    yield "not yet valid", good, certificate("sns.amazonaws.com", good, timedelta(days=1), timedelta(days=9))
    yield "of a small key", key(1024), certificate("sns.amazonaws.com", key(1024))
    yield "of another kind of key", good, certificate("sns.amazonaws.com", ec.generate_private_key(ec.SECP256R1()))
    yield "that is none", good, b"<html>not found</html>"
    encoding, form, secret = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    yield "that is a private key", good, good.private_bytes(encoding, form, secret)
    yield "that is empty", good, b""
    yield "that is too large", good, certificate("sns.amazonaws.com", good) + b"\n" * 70_000


@pytest.mark.parametrize(("by", "pem"), [pytest.param(by, pem, id=name) for name, by, pem in certificates()])
def test_a_wrong_certificate_is_refused(by: rsa.RSAPrivateKey, pem: bytes) -> None:
    with pytest.raises(Forged):
        verify(signed(notification(), by), Site({URL: pem}))


def test_the_header_must_agree_with_the_type() -> None:
    with pytest.raises(Forged, match="differ"):
        verify(notification(), header="SubscriptionConfirmation")


def test_a_message_that_was_handled_is_refused_for_a_day_and_one_that_was_not_may_come_again() -> None:
    now = [datetime.now(UTC).timestamp()]
    at = site()
    verifier = Verifier([TOPIC], at.fetch, clock=lambda: now[0])
    body = json.dumps(notification()).encode()
    asyncio.run(verifier.verify(body))
    verifier.handled(asyncio.run(verifier.verify(body)))
    with pytest.raises(Repeated):
        asyncio.run(verifier.verify(body))
    now[0] += 23 * 3600
    later = stamp(timedelta(hours=23))
    with pytest.raises(Repeated):
        asyncio.run(verifier.verify(json.dumps(notification(Timestamp=later)).encode()))
    assert at.asked == [URL], "the certificate is kept"


def test_a_certificate_is_fetched_again_after_a_day_and_the_cache_is_bounded() -> None:
    now = [datetime.now(UTC).timestamp()]
    names = [f"https://{HOST}/SimpleNotificationService-{i:032x}.pem" for i in range(70)]
    pem = certificate("sns.amazonaws.com", key(), ends=timedelta(days=9))
    at = Site(dict.fromkeys(names, pem))
    verifier = Verifier([TOPIC], at.fetch, clock=lambda: now[0])

    def ask(url: str, timestamp: str) -> None:
        asyncio.run(verifier.verify(json.dumps(notification(SigningCertURL=url, Timestamp=timestamp)).encode()))

    for url in names:
        ask(url, stamp())
    ask(names[-1], stamp())
    assert len(at.asked) == 70
    ask(names[0], stamp())
    assert len(at.asked) == 71, "the oldest was dropped"
    now[0] += 86_401
    ask(names[-1], stamp(timedelta(days=1)))
    assert len(at.asked) == 72


def test_china_has_its_own_domain() -> None:
    topic = "arn:aws-cn:sns:cn-north-1:123456789012:changes"
    url = f"https://sns.cn-north-1.amazonaws.com.cn/SimpleNotificationService-{HEX}.pem"
    at = Site({url: certificate("sns.cn-north-1.amazonaws.com.cn", key())})
    body = json.dumps(notification(TopicArn=topic, SigningCertURL=url)).encode()
    assert asyncio.run(Verifier([topic], at.fetch).verify(body)).topic == topic
