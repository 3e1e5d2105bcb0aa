"""Is this message, which came over HTTP, one that SNS sent to us? AWS's own, or that of an installation that we name.

The order is that of cost and of danger: what the message says about itself, whether we want its topic at all, where it says its
certificate is, and only then a call to fetch that, the signature, and whether we have had it before.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.x509.oid import NameOID

from tidings.events import strict_json
from tidings.events.regions import host_of
from tidings.topics.envelope import NOTIFICATION, SIGNED, signed_text

MAX_BYTES = 1024 * 1024
"""256 KiB of text, in which every character may be written as several."""
MAX_CERTIFICATE = 64 * 1024
FETCH_SECONDS = 3.0
_WINDOW = timedelta(hours=1)
_SKEW = timedelta(minutes=15)
_DAY = 86_400.0
_MAX_CERTIFICATES = 64
_MAX_IDS = 1_000_000
_MIN_BITS = 2048
_OF_SIGNATURE = ("Signature", "SignatureVersion", "SigningCertURL")
_HASHES: Mapping[str, hashes.HashAlgorithm] = {"1": hashes.SHA1(), "2": hashes.SHA256()}  # noqa: S303 what SNS's version 1 is
_CERTIFICATE_PATH = re.compile(r"/SimpleNotificationService-[0-9a-f]{16,64}\.pem")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z")
_TOPIC = re.compile(r"arn:aws(?:-cn|-us-gov)?:sns:([a-z0-9-]+):[0-9a-f-]{12,36}:[A-Za-z0-9_-]{1,256}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""The signed text is made of lines. With a line break in another field than `Message`, one signature would fit two messages."""

Fetch = Callable[[str], Awaitable[bytes]]
"""Gets a certificate: no redirects, `MAX_CERTIFICATE` bytes, `FETCH_SECONDS`. `outgoing.connecting.Caller.get` does that."""


class Forged(Exception):
    """Not a message of SNS to us. The words are for our log, not for whoever sent it."""


class Malformed(Forged):
    """It does not even have the form of a message."""


class Unwanted(Forged):
    """Of a topic that is not one of ours. Nothing was asked of anybody."""


class Repeated(Forged):
    """A message that was handled already."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A genuine message. `subscribe_url` may be called; it is there for confirmations only."""

    type: str
    id: str
    topic: str
    message: str
    subject: str | None
    subscribe_url: str | None


class Verifier:
    """`topics` are the ARNs that we want. `own` are the URLs of installations of ours, such as https://events.example."""

    def __init__(
        self,
        topics: Collection[str],
        fetch: Fetch,
        own: Collection[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._topics = frozenset(topics)
        self._fetch = fetch
        self._own = frozenset(url.rstrip("/") for url in own)
        self._clock = clock
        self._certificates: OrderedDict[str, tuple[float, x509.Certificate]] = OrderedDict()
        self._handled: OrderedDict[str, float] = OrderedDict()

    async def verify(self, body: bytes, type_header: str | None = None) -> Verified:
        """The message, or `Forged`. Say `handled` when it was, so that it is not taken again."""
        message = _read(body)
        type_ = message["Type"]
        if type_header is not None and type_header != type_:
            raise Malformed("x-amz-sns-message-type and Type differ")
        topic = message["TopicArn"]
        if topic not in self._topics:
            raise Unwanted(f"the topic {topic[:300]!r} is not one of ours")
        _check_form(message)
        self._check_time(message["Timestamp"])
        base = self._base(message["SigningCertURL"], topic)
        subscribe_url = None if type_ == NOTIFICATION else self._subscribe_url(message, base)
        certificate = await self._certificate(message["SigningCertURL"])
        self._check_certificate(certificate, base)
        _check_signature(certificate, message)
        self._forget_the_old()
        if message["MessageId"] in self._handled:
            raise Repeated(f"the message {message['MessageId']} was handled already")
        return Verified(type_, message["MessageId"], topic, message["Message"], message.get("Subject"), subscribe_url)

    def handled(self, message: Verified) -> None:
        """Remember its id for a day. Not before it was handled: SNS sends again what was not."""
        self._handled[message.id] = self._clock() + _DAY
        self._forget_the_old()

    def _forget_the_old(self) -> None:
        while self._handled and (len(self._handled) > _MAX_IDS or next(iter(self._handled.values())) <= self._clock()):
            self._handled.popitem(last=False)

    def _check_time(self, text: str) -> None:
        try:
            sent = datetime.fromisoformat(text) if _TIMESTAMP.fullmatch(text) else None
        except ValueError:
            sent = None
        if sent is None:
            raise Forged(f"the Timestamp {text[:100]!r} is not one")
        now = datetime.fromtimestamp(self._clock(), UTC)
        if not now - _WINDOW - _SKEW <= sent <= now + _SKEW:
            raise Forged(f"the Timestamp {text} is more than an hour away from {now:%Y-%m-%dT%H:%M:%SZ}")

    def _base(self, url: str, topic: str) -> str:
        """The URL of the service that the certificate is of: ours, or that of AWS in the topic's region."""
        region = _TOPIC.fullmatch(topic)
        host = host_of("sns", region[1]) if region else None
        for base in (*self._own, *([f"https://{host}"] if host else [])):
            if url.startswith(base) and _CERTIFICATE_PATH.fullmatch(url[len(base) :]):
                return base
        raise Forged(f"the SigningCertURL {url[:300]!r} is not where SNS has its certificates for this topic")

    def _subscribe_url(self, message: Mapping[str, str], base: str) -> str:
        url = message["SubscribeURL"]
        start = f"{base}/?"
        try:
            pairs = parse_qsl(url[len(start) :], strict_parsing=True, errors="strict") if url.startswith(start) else []
        except ValueError:
            pairs = []
        wanted = {"Action": "ConfirmSubscription", "TopicArn": message["TopicArn"], "Token": message["Token"]}
        if sorted(pairs) != sorted(wanted.items()) or not url.isascii() or not url.isprintable() or "#" in url:
            raise Forged(f"the SubscribeURL {url[:300]!r} is not a confirmation of this subscription at {base}")
        return url

    async def _certificate(self, url: str) -> x509.Certificate:
        kept = self._certificates.get(url)
        if kept is not None and self._clock() < kept[0]:
            return kept[1]
        pem = await self._fetch(url)
        try:
            if len(pem) > MAX_CERTIFICATE:
                raise ValueError(f"it has {len(pem)} bytes")
            certificate = x509.load_pem_x509_certificate(pem)
        except ValueError as error:
            raise Forged(f"the certificate at {url} cannot be read: {error}") from None
        self._certificates[url] = (self._clock() + _DAY, certificate)
        self._certificates.move_to_end(url)
        while len(self._certificates) > _MAX_CERTIFICATES:
            self._certificates.popitem(last=False)
        return certificate

    def _check_certificate(self, certificate: x509.Certificate, base: str) -> None:
        now = datetime.fromtimestamp(self._clock(), UTC)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise Forged("the certificate is not valid at this time")
        host = base.partition("://")[2].rpartition(":")[0] or base.partition("://")[2]
        allowed = {host.strip("[]"), *(() if base in self._own else ("sns.amazonaws.com",))}
        if not allowed & _names(certificate):
            raise Forged(f"the certificate is not for {host}")


def _names(certificate: x509.Certificate) -> set[str]:
    names = {str(each.value) for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)}
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return names
    return names | set(alternatives.get_values_for_type(x509.DNSName))


def _check_signature(certificate: x509.Certificate, message: Mapping[str, str]) -> None:
    key = certificate.public_key()
    if not isinstance(key, RSAPublicKey) or key.key_size < _MIN_BITS:
        raise Forged(f"the certificate's key is not RSA of {_MIN_BITS} bits or more")
    try:
        signature = base64.b64decode(message["Signature"], validate=True)
        key.verify(signature, signed_text(message).encode(), padding.PKCS1v15(), _HASHES[message["SignatureVersion"]])
    except (InvalidSignature, binascii.Error, ValueError):
        raise Forged("the signature is not that of this message") from None


def _check_form(message: Mapping[str, Any]) -> None:
    """What says how it is signed, and that the signed text can be read in one way only."""
    for name in SIGNED[message["Type"]]:
        if name != "Message" and _CONTROL.search(message.get(name, "")):
            raise Forged(f"{name} has a control character: {message[name][:100]!r}")
    for name in _OF_SIGNATURE:
        if not isinstance(message.get(name), str):
            raise Forged(f"{name} is missing, or is not text")
    if message["SignatureVersion"] not in _HASHES:
        raise Forged(f"the SignatureVersion {message['SignatureVersion'][:100]!r} is neither 1 nor 2")


def _read(body: bytes) -> dict[str, Any]:
    """The message's fields. Those that are signed are text; what else there is counts for nothing."""
    if len(body) > MAX_BYTES:
        raise Malformed(f"the message has more than {MAX_BYTES} bytes")
    try:
        message = strict_json.read(body.decode())
    except ValueError as error:
        raise Malformed(f"the message is not JSON as we take it: {str(error)[:200]}") from None
    if not isinstance(message, dict):
        raise Malformed("the message is not a JSON object")
    type_ = message.get("Type")
    if not isinstance(type_, str) or type_ not in SIGNED:
        raise Malformed(f"the Type {str(type_)[:100]!r} is not one of {', '.join(SIGNED)}")
    for name in SIGNED[type_]:
        if name == "Subject" and name not in message:
            continue
        if not isinstance(message.get(name), str):
            raise Malformed(f"{name} is missing, or is not text")
    if not _UUID.fullmatch(message["MessageId"]):
        raise Malformed("the MessageId is not a UUID")
    return message
