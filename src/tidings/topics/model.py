"""What a topic and a subscription are. Values that come from callers are checked here, and nowhere else."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidings.errors import CallerError
from tidings.events import arn as arns
from tidings.events.arn import SnsTopic
from tidings.events.formats import CHOOSABLE, FORMAT_TAG

MAX_TAGS = 50
MAX_SECRETS = 2
PROTOCOLS = ("http", "https", "sqs")
PUBLISH, SUBSCRIBE = "Publish", "Subscribe"
GRANTS = (PUBLISH, SUBSCRIBE)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,256}")
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_TAG = re.compile(r"[\w\s.:/=+@-]*")
_SUBSCRIPTION = re.compile(r"(arn:aws:sns:[^:]+:[^:]+:[^:]+):([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_SECRET = re.compile(r"whsec_[A-Za-z0-9+/]+={0,2}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def invalid(problem: str) -> CallerError:
    return CallerError("InvalidParameter", f"Invalid parameter: {problem}")


@dataclass(frozen=True, slots=True)
class Topic:
    arn: str
    project: str
    display_name: str = ""
    signature_version: int = 1
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subscription:
    arn: str
    topic: str
    project: str
    protocol: str
    endpoint: str
    raw: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)
    authenticated: bool = False
    confirmed: bool = False
    signature_version: int = 1
    """That of its topic."""


def topic_name(name: str) -> str:
    if name.endswith(".fifo"):
        raise invalid(f"Name: {name[:300]!r} is for a FIFO topic, which is not served")
    if not _NAME.fullmatch(name):
        raise invalid("Name: write 1 to 256 letters, digits, hyphens and underscores")
    return name


def topic_arn(text: str, parameter: str = "TopicArn") -> SnsTopic:
    """The topic that an ARN names, if it is one of ours: its account is a project's public id."""
    try:
        address = arns.parse(text)
    except CallerError:
        address = None
    if not isinstance(address, SnsTopic):
        raise invalid(f"{parameter}: {text[:300]!r} is not arn:aws:sns:REGION:PROJECT:NAME")
    return address


def subscription_arn(text: str) -> str:
    match = _SUBSCRIPTION.fullmatch(text)
    if match is None:
        # The last part is what an UnsubscribeURL proves itself by, so it does not come back in an answer.
        raise invalid(
            "SubscriptionArn: it is not arn:aws:sns:REGION:PROJECT:NAME:UUID, as Subscribe or an UnsubscribeURL has it"
        )
    topic_arn(match[1], "SubscriptionArn")
    return text


def topic_of(subscription: str) -> str:
    return subscription.rpartition(":")[0]


def is_subscription(arn: str) -> bool:
    return _SUBSCRIPTION.fullmatch(arn) is not None


def label(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise invalid("Label: write 1 to 80 letters, digits, hyphens and underscores")
    return text


def project_id(text: str) -> str:
    if not _UUID.fullmatch(text):
        raise invalid(f"AWSAccountId: {text[:100]!r} is not a project's public id")
    return text


def display_name(text: str) -> str:
    if len(text) > 100 or not text.isprintable():
        raise invalid("DisplayName: write at most 100 printable characters")
    return text


def signature_version(text: str) -> int:
    if text not in ("1", "2"):
        raise invalid(f"SignatureVersion: {text[:100]!r} is neither 1 nor 2")
    return int(text)


def boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise invalid(f"{name}: {text[:100]!r} is neither true nor false")
    return text.lower() == "true"


def tags(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Tags as SNS has them; the one that chooses the format must name one."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if not 1 <= len(key) <= 128 or len(value) > 256 or not _TAG.fullmatch(key) or not _TAG.fullmatch(value):
            raise invalid(f"Tags: {key[:200]!r} is not a tag: at most 128 and 256 letters, digits, spaces, _.:/=+-@")
        if key in found:
            raise invalid(f"Tags: {key[:200]!r} comes twice")
        if key == FORMAT_TAG:
            _check_format(value)
        found[key] = value
    return found


def _check_format(value: str) -> None:
    if value not in CHOOSABLE:
        raise invalid(f"Tags: {FORMAT_TAG} {value[:100]!r} is not a format: there is {', '.join(CHOOSABLE)}")


def webhook_secrets(text: str) -> tuple[str, ...]:
    """One secret, or two while they are rotated, separated by a space; none where the text is empty."""
    secrets = tuple(text.split())
    if len(secrets) > MAX_SECRETS or len(set(secrets)) != len(secrets):
        raise invalid("WebhookSecrets: send one secret, or two different ones, separated by a space")
    for secret in secrets:
        if not _SECRET.fullmatch(secret) or not 24 <= len(secret_bytes(secret)) <= 64:
            raise invalid("WebhookSecrets: a secret is whsec_ and the base64 of 24 to 64 bytes")
    return secrets


def secret_bytes(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        return b""
