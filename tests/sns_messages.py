"""Messages of SNS for tests: genuine ones of every type, signed with a key of the test's own, and a corpus of forged ones."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from tidings.topics import envelope

REGION = "eu-west-1"
HOST = f"sns.{REGION}.amazonaws.com"
TOPIC = f"arn:aws:sns:{REGION}:123456789012:changes"
OWN = "http://127.0.0.1:9000"
OWN_TOPIC = "arn:aws:sns:us-east-1:11111111-2222-3333-4444-555555555555:changes"
HEX = "0123456789abcdef0123456789abcdef"
URL = f"https://{HOST}/SimpleNotificationService-{HEX}.pem"


@cache
def key(bits: int = 2048, number: int = 0) -> rsa.RSAPrivateKey:
    assert number >= 0
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def certificate(name: str, of: Any, begins: timedelta = timedelta(days=-1), ends: timedelta = timedelta(days=1)) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(of.public_key())
        .serial_number(7)
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .sign(of, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def signed(message: dict[str, Any], by: rsa.RSAPrivateKey | None = None) -> dict[str, Any]:
    """The same, with a signature that fits what it says."""
    algorithm = hashes.SHA256() if message["SignatureVersion"] == "2" else hashes.SHA1()
    text = envelope.signed_text(message).encode()
    signature = (by or key()).sign(text, padding.PKCS1v15(), algorithm)
    return {**message, "Signature": base64.b64encode(signature).decode()}


def stamp(after: timedelta = timedelta()) -> str:
    return (datetime.now(UTC) + after).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def notification(**changes: Any) -> dict[str, Any]:
    message = {
        "Type": "Notification",
        "MessageId": "11111111-2222-5333-8444-555555555555",
        "TopicArn": TOPIC,
        "Subject": "Amazon S3 Notification",
        "Message": '{"Records": [{"s3": {"object": {"key": "a"}}}]}',
        "Timestamp": stamp(),
        "SignatureVersion": "2",
        "SigningCertURL": URL,
        "UnsubscribeURL": f"https://{HOST}/?Action=Unsubscribe",
        **changes,
    }
    return signed({name: value for name, value in message.items() if value is not None})


def confirmation(**changes: Any) -> dict[str, Any]:
    message = {
        "Type": "SubscriptionConfirmation",
        "MessageId": "11111111-2222-5333-8444-555555555555",
        "Token": "ab" * 64,
        "TopicArn": TOPIC,
        "Message": "You have chosen to subscribe.",
        "SubscribeURL": f"https://{HOST}/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token={'ab' * 64}",
        "Timestamp": stamp(),
        "SignatureVersion": "1",
        "SigningCertURL": URL,
        **changes,
    }
    return signed(message)


FORGED: dict[str, Callable[[], dict[str, Any] | bytes]] = {}
BEFORE_ANY_CALL: set[str] = set()
"""Those that are refused by what they say, before anything is fetched."""


def add(name: str, make: Callable[[], dict[str, Any] | bytes], called: bool = False) -> None:
    assert name not in FORGED
    FORGED[name] = make
    if not called:
        BEFORE_ANY_CALL.add(name)


def altered(make: Callable[[], dict[str, Any]], **changes: Any) -> Callable[[], dict[str, Any]]:
    """Changed after it was signed."""
    return lambda: {**make(), **changes}


def changed(name: str, how: Callable[[str], str]) -> Callable[[], dict[str, Any]]:
    """One field of a notification, changed after it was signed."""

    def make() -> dict[str, Any]:
        message = notification()
        return {**message, name: how(message[name])}

    return make


def without(make: Callable[[], dict[str, Any]], name: str) -> Callable[[], dict[str, Any]]:
    return lambda: {key_: value for key_, value in make().items() if key_ != name}


def of(make: Callable[..., dict[str, Any]], **changes: Any) -> Callable[[], dict[str, Any]]:
    """Signed as it is, with these values."""
    return lambda: make(**changes)


def split_elsewhere(subject: str | None) -> dict[str, Any]:
    """Another message with the same signed text: what a genuine one said becomes an id and a subject."""
    said, id_ = "hello", "99999999-2222-5333-8444-555555555555"
    genuine = notification(Message=f"{said}\nMessageId\n{id_}\nSubject\nworld", Subject=subject)
    rest = f"world\nMessageId\n{genuine['MessageId']}" + (f"\nSubject\n{subject}" if subject else "")
    forged = {**genuine, "Message": said, "MessageId": id_, "Subject": rest}
    assert envelope.signed_text(forged) == envelope.signed_text(genuine)
    return forged


def corpus() -> None:
    # altered after signing: each field, in several ways
    for name in ("Message", "Subject", "Timestamp"):
        for how in (lambda text: text + " ", lambda text: text[:-1], lambda _: ""):
            add(f"{name} as {how('text')!r}", changed(name, how), name != "Timestamp")
    add("Message replaced", altered(notification, Message='{"Records": []}'), True)
    add("MessageId replaced", altered(notification, MessageId="99999999-2222-5333-8444-555555555555"), True)
    add("Subject added", lambda: {**notification(Subject=None), "Subject": "x"}, True)
    add("Subject removed", without(notification, "Subject"), True)
    add("line break moved", lambda: {**notification(Subject=None), "Message": "a\nSubject\nb"}, True)
    add("split elsewhere, without a subject", lambda: split_elsewhere(None))
    add("split elsewhere, with a subject", lambda: split_elsewhere("Amazon S3 Notification"))
    for name, character in {"a line break": "\n", "a return": "\r", "a tab": "\t", "a NUL": "\0", "U+2028": "\u2028"}.items():
        add(f"Subject with {name}", of(notification, Subject=f"a{character}b"))
    add("Token replaced", altered(confirmation, Token="cd" * 64))
    add("Message of a confirmation replaced", altered(confirmation, Message="Hello"), True)
    add("Type exchanged", lambda: {**confirmation(), "Type": "UnsubscribeConfirmation"}, True)
    add("confirmation as notification", lambda: {**confirmation(), "Type": "Notification"}, True)
    add("other topic of ours", altered(notification, TopicArn=OWN_TOPIC))
    add("version 1 said to be 2", lambda: {**notification(SignatureVersion="1"), "SignatureVersion": "2"}, True)
    add("version 2 said to be 1", lambda: {**notification(SignatureVersion="2"), "SignatureVersion": "1"}, True)
    # signatures
    for name, signature in {
        "empty": "", "not base64": "!!!!", "of zeros": base64.b64encode(bytes(256)).decode(), "short": "AAAA",
        "with white space": " ", "of ones": base64.b64encode(b"\xff" * 256).decode(),
    }.items():  # fmt: skip
        add(f"signature {name}", altered(notification, Signature=signature), True)
    add("signature twice", changed("Signature", lambda text: text * 2), True)
    add("signature with a line break", changed("Signature", lambda text: text[:76] + "\n" + text[76:]), True)
    add("signature of another message", lambda: {**notification(), "Signature": notification(Message="x")["Signature"]}, True)
    add("signed by another key", lambda: signed(notification(), key(2048, 1)), True)
    for version in ("", "0", "3", "1 ", "01", "one", "2\n"):
        add(f"version {version!r}", altered(notification, SignatureVersion=version))
    # where the certificate is said to be
    for url in [
        f"http://{HOST}/SimpleNotificationService-{HEX}.pem",
        f"https://evil.example/SimpleNotificationService-{HEX}.pem",
        f"https://{HOST}.evil.example/SimpleNotificationService-{HEX}.pem",
        f"https://evil.example/{HOST}/SimpleNotificationService-{HEX}.pem",
        f"https://sns.s3-us-west-2.amazonaws.com/SimpleNotificationService-{HEX}.pem",
        f"https://sns.s3.amazonaws.com/SimpleNotificationService-{HEX}.pem",
        f"https://sns.us-west-2.amazonaws.com/SimpleNotificationService-{HEX}.pem",
        f"https://sns.mars-north-1.amazonaws.com/SimpleNotificationService-{HEX}.pem",
        f"https://sns.{REGION}.amazonaws.com.cn/SimpleNotificationService-{HEX}.pem",
        f"https://s3.{REGION}.amazonaws.com/SimpleNotificationService-{HEX}.pem",
        f"https://bucket.s3.{REGION}.amazonaws.com/SimpleNotificationService-{HEX}.pem",
        f"https://user@{HOST}/SimpleNotificationService-{HEX}.pem",
        f"https://{HOST}@evil.example/SimpleNotificationService-{HEX}.pem",
        f"https://{HOST}:443/SimpleNotificationService-{HEX}.pem",
        f"https://{HOST}:8443/SimpleNotificationService-{HEX}.pem",
        f"https://{HOST}/SimpleNotificationService-{HEX}.pem?x=y",
        f"https://{HOST}/SimpleNotificationService-{HEX}.pem#x",
        f"https://{HOST}/SimpleNotificationService-{HEX}.pem/",
        f"https://{HOST}/SimpleNotificationService-{HEX}.pem\n",
        f"https://{HOST}//SimpleNotificationService-{HEX}.pem",
        f"https://{HOST}/x/../SimpleNotificationService-{HEX}.pem",
        f"https://{HOST}/SimpleNotificationService-..%2f{HEX}.pem",
        f"https://{HOST}/SimpleNotificationService-.pem",
        f"https://{HOST}/SimpleNotificationService-zz{HEX}.pem",
        f"https://{HOST}/SimpleNotificationService-{HEX}.crt",
        f"https://{HOST}/?Action=ConfirmSubscription&Token=x.pem",
        f"https://{HOST}/",
        f"https://{HOST.upper()}/SimpleNotificationService-{HEX}.pem",
        f"HTTPS://{HOST}/SimpleNotificationService-{HEX}.pem",
        f"https://{HOST}./SimpleNotificationService-{HEX}.pem",
        f"https://{HOST}\\@evil.example/SimpleNotificationService-{HEX}.pem",
        f" https://{HOST}/SimpleNotificationService-{HEX}.pem",
        f"https:/{HOST}/SimpleNotificationService-{HEX}.pem",
        f"//{HOST}/SimpleNotificationService-{HEX}.pem",
        f"file:///SimpleNotificationService-{HEX}.pem",
        f"http://127.0.0.1:9000.evil.example/SimpleNotificationService-{HEX}.pem",
        f"http://127.0.0.1:90001/SimpleNotificationService-{HEX}.pem",
        f"http://127.0.0.1/SimpleNotificationService-{HEX}.pem",
        "https://169.254.169.254/latest/meta-data/",
        "",
    ]:
        add(f"certificate at {url!r}", of(notification, SigningCertURL=url))
    # topics
    for topic in [
        f"arn:aws:sns:{REGION}:999999999999:changes", f"{TOPIC}x", TOPIC[:-1], "", "changes", f" {TOPIC}", f"{TOPIC}\n",
        "arn:aws:sns:us-east-1:123456789012:changes", f"{TOPIC}:11111111-2222-3333-4444-555555555555", TOPIC.upper(),
    ]:  # fmt: skip
        add(f"topic {topic!r}", of(notification, TopicArn=topic))
    # time
    for name, text in {
        "two hours old": stamp(timedelta(hours=-2)),
        "of yesterday": stamp(timedelta(days=-1)),
        "of tomorrow": stamp(timedelta(days=1)),
        "an hour ahead": stamp(timedelta(hours=1)),
        "a word": "now",
        "a number": "1700000000",
        "a day": "2026-01-01",
        "of another zone": stamp().replace("Z", "+00:00"),
        "of no zone": stamp().removesuffix("Z"),
        "the 31st of February": "2026-02-31T00:00:00Z",
    }.items():
        add(f"time {name}", of(notification, Timestamp=text))
    # the link of a confirmation
    query = f"Action=ConfirmSubscription&TopicArn={TOPIC}&Token={'ab' * 64}"
    for url in [
        f"https://evil.example/?{query}",
        f"http://{HOST}/?{query}",
        f"https://{HOST}.evil.example/?{query}",
        f"https://{HOST}:8443/?{query}",
        f"https://user@{HOST}/?{query}",
        f"https://{HOST}/elsewhere?{query}",
        f"https://{HOST}/?{query}#x",
        f"https://{HOST}/?{query}&Action=DeleteTopic",
        f"https://{HOST}/?{query.replace('ConfirmSubscription', 'DeleteTopic')}",
        f"https://{HOST}/?{query.replace(':changes', ':other')}",
        f"https://{HOST}/?{query.replace('abab', 'cdcd')}",
        f"https://{HOST}/",
        "http://169.254.169.254/latest/meta-data/",
        "",
    ]:
        add(f"link {url!r}", of(confirmation, SubscribeURL=url))
    # what is missing, or is something else than text
    for name in ("Type", "MessageId", "TopicArn", "Message", "Timestamp", "SignatureVersion", "Signature", "SigningCertURL"):
        add(f"without {name}", without(notification, name))
        for value in (None, 1, ["x"], {"x": "y"}):
            add(f"{name} is {value!r}", altered(notification, **{name: value}))
    for name in ("Token", "SubscribeURL"):
        add(f"confirmation without {name}", without(confirmation, name))
    add("Subject is null", altered(notification, Subject=None))
    for type_ in ("", "notification", "Notification ", "Publish", "SubscriptionConfirmation\n"):
        add(f"type {type_!r}", altered(notification, Type=type_))
    add("MessageId is no UUID", lambda: signed({**notification(), "MessageId": "../../x"}))
    # JSON
    text = json.dumps(notification())
    add("a key twice", lambda: (text[:-1] + ', "Message": "other"}').encode())
    add("a key twice, deep", lambda: (text[:-1] + ', "MessageAttributes": {"a": 1, "a": 2}}').encode())
    add("NaN", lambda: (text[:-1] + ', "x": NaN}').encode())
    add("two documents", lambda: (text + text).encode())
    add("a list", lambda: f"[{text}]".encode())
    add("text", lambda: json.dumps(text).encode())
    add("null", lambda: b"null")
    add("nothing", lambda: b"")
    add("not UTF-8", lambda: text.encode()[:-1] + b', "x": "\xff"}')
    add("UTF-16", lambda: text.encode("utf-16"))
    add("a byte order mark", lambda: b"\xef\xbb\xbf" + text.encode())
    add("too deep", lambda: (text[:-1] + ', "x": ' + "[" * 40 + "]" * 40 + "}").encode())
    add("very deep", lambda: (text[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}").encode())
    add("too large", lambda: json.dumps(notification(Message="x" * 1_100_000)).encode())
    add("half a character", lambda: text.replace("Records", "\\ud800").encode(), True)
    add("cut off", lambda: text.encode()[:-10])


corpus()
