"""What Pub/Sub takes and what it refuses, as Google documents it: names, sizes, and the features we do not have."""

from __future__ import annotations

import re
from typing import Any

import grpc

from tidings.local.faults import Refused

# https://cloud.google.com/pubsub/quotas#resource_limits
REQUEST_MESSAGES = 1000
REQUEST_BYTES = 10_000_000
ATTRIBUTES = 100
ATTRIBUTE_KEY_BYTES = 256
ATTRIBUTE_VALUE_BYTES = 1024
ORDERING_KEY_BYTES = 1024
DEADLINE_SECONDS = (10, 600)

_NAME = re.compile(r"projects/[a-z][a-z0-9.:-]{0,62}/(topics|subscriptions)/(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")

# Fields that would change what is delivered. Taking them in silence would make a test pass that fails at Google.
_UNSUPPORTED = {
    "bigquery_config", "bigtable_config", "cloud_storage_config", "dead_letter_policy", "enable_exactly_once_delivery",
    "filter", "ingestion_data_source_settings", "message_transforms", "push_config", "retry_policy", "schema_settings",
}  # fmt: skip


def invalid(message: str) -> Refused:
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, message)


def missing(what: str, name: str) -> Refused:
    return Refused(grpc.StatusCode.NOT_FOUND, f"There is no {what} {name}. Create it first.")


def exists(name: str) -> Refused:
    return Refused(grpc.StatusCode.ALREADY_EXISTS, f"{name} exists already. Use it as it is, or delete it first.")


def check_name(name: str, collection: str) -> None:
    match = _NAME.fullmatch(name)
    if match is None or match[1] != collection:
        rule = "the last part starts with a letter, not with goog, and has 3 to 255 of A-Z a-z 0-9 . _ ~ + % -"
        raise invalid(f"The name {name[:300]!r} is not valid. Write projects/PROJECT/{collection}/ID: {rule}.")


def check_supported(resource: Any) -> None:
    for descriptor, value in resource.ListFields():
        # An empty push_config is how Google's API spells "pull".
        if descriptor.name in _UNSUPPORTED and not (descriptor.name == "push_config" and not value.push_endpoint):
            sentence = f"This local server has no {descriptor.name}, which {resource.name} asks for. Leave it out."
            raise Refused(grpc.StatusCode.UNIMPLEMENTED, sentence)


def check_deadline(seconds: int, lowest: int) -> None:
    if not lowest <= seconds <= DEADLINE_SECONDS[1]:
        raise invalid(f"An ack deadline of {seconds} s is not valid. Choose {lowest} to {DEADLINE_SECONDS[1]}.")


def check_publish(request: Any) -> None:
    """A request is taken or refused as a whole, so everything is checked before the first message is queued."""
    count, size = len(request.messages), request.ByteSize()
    if not 1 <= count <= REQUEST_MESSAGES:
        raise invalid(f"The request has {count} messages. Send 1 to {REQUEST_MESSAGES} in one request.")
    if size > REQUEST_BYTES:
        raise invalid(f"The request has {size} bytes. Send at most {REQUEST_BYTES} in one request.")
    for index, message in enumerate(request.messages):
        if not message.data and not message.attributes:
            raise invalid(f"Message {index} is empty. Give it data or at least one attribute.")
        if len(message.attributes) > ATTRIBUTES:
            raise invalid(f"Message {index} has {len(message.attributes)} attributes. Keep to {ATTRIBUTES}.")
        if len(message.ordering_key.encode()) > ORDERING_KEY_BYTES:
            raise invalid(f"The ordering key of message {index} is too long. Keep to {ORDERING_KEY_BYTES} bytes.")
        for key, value in message.attributes.items():
            if not 1 <= len(key.encode()) <= ATTRIBUTE_KEY_BYTES or key.startswith("goog"):
                rule = f"Use 1 to {ATTRIBUTE_KEY_BYTES} bytes that do not start with goog."
                raise invalid(f"Message {index} has the attribute key {key[:300]!r}. {rule}")
            if len(value.encode()) > ATTRIBUTE_VALUE_BYTES:
                rule = f"Keep to {ATTRIBUTE_VALUE_BYTES} bytes."
                raise invalid(f"The value of attribute {key!r} of message {index} is too long. {rule}")
