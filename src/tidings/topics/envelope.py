"""SNS's messages over HTTP: what is signed of each type, and the JSON around it.

The time and the signature are made anew for each attempt; the MessageId stays, so that a receiver can tell a duplicate.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode

from tidings.topics.signing import Signer

NOTIFICATION = "Notification"
CONFIRMATION = "SubscriptionConfirmation"
FAREWELL = "UnsubscribeConfirmation"
SUBJECT = "Amazon S3 Notification"

SIGNED: Mapping[str, tuple[str, ...]] = {
    NOTIFICATION: ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    CONFIRMATION: ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
    FAREWELL: ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
}
"""The fields that the signature of each type covers, in order; a Subject only where there is one."""

_IDS = uuid.UUID("6f2f2f0e-0f5a-5d0b-9a58-7c8a7f0d9b11")
"""The name space of our message ids. Any would do, as long as it stays."""


def signed_text(message: Mapping[str, object]) -> str:
    names = SIGNED[str(message["Type"])]
    return "".join(f"{name}\n{message[name]}\n" for name in names if name in message)


def message_id(id_: str) -> str:
    """A UUID that is always the same for a message's id."""
    return str(uuid.uuid5(_IDS, id_))


def notification(
    signer: Signer, version: int, topic: str, id_: str, body: str, attributes: Mapping[str, str], unsubscribe_url: str
) -> bytes:
    message = {
        "Type": NOTIFICATION,
        "MessageId": message_id(id_),
        "TopicArn": topic,
        "Subject": SUBJECT,
        "Message": body,
        "Timestamp": _now(),
    }
    more: dict[str, object] = {"UnsubscribeURL": unsubscribe_url}
    if attributes:
        more["MessageAttributes"] = {name: {"Type": "String", "Value": value} for name, value in attributes.items()}
    return _signed(signer, version, message, more)


def confirmation(signer: Signer, version: int, type_: str, topic: str, token: str, api_url: str) -> tuple[str, bytes]:
    """A SubscriptionConfirmation or an UnsubscribeConfirmation: its MessageId, and itself."""
    subscribe_url = confirm_url(api_url, topic, token)
    if type_ == CONFIRMATION:
        words = f"You have chosen to subscribe to the topic {topic}.\nTo confirm the subscription, visit the SubscribeURL "
    else:
        words = (
            f"You have chosen to deactivate a subscription of the topic {topic}.\n"
            "To cancel this operation and restore the subscription, visit the SubscribeURL "
        )
    id_ = str(uuid.uuid4())
    message = {
        "Type": type_,
        "MessageId": id_,
        "Token": token,
        "TopicArn": topic,
        "Message": f"{words}included in this message.",
        "SubscribeURL": subscribe_url,
        "Timestamp": _now(),
    }
    return id_, _signed(signer, version, message, {})


def confirm_url(api_url: str, topic: str, token: str) -> str:
    return f"{api_url}/?{urlencode({'Action': 'ConfirmSubscription', 'TopicArn': topic, 'Token': token}, safe=':')}"


def unsubscribe_url(api_url: str, subscription: str) -> str:
    return f"{api_url}/?{urlencode({'Action': 'Unsubscribe', 'SubscriptionArn': subscription}, safe=':')}"


def _signed(signer: Signer, version: int, message: dict[str, str], more: dict[str, object]) -> bytes:
    signature = {
        "SignatureVersion": str(version),
        "Signature": signer.sign(signed_text(message), version),
        "SigningCertURL": signer.url,
    }
    return json.dumps({**message, **signature, **more}, ensure_ascii=False).encode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
