"""A queue and its attributes. What is read here is within the limits of SQS's own API reference."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from tidings.errors import CallerError
from tidings.events import arn as addresses
from tidings.events.arn import SqsQueue
from tidings.events.formats import CHOOSABLE, FORMAT_TAG
from tidings.queues.errors import QueueError, invalid

MAX_MESSAGE = 262_144
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_PATH = re.compile(r"/([0-9a-f-]{36})/([A-Za-z0-9_-]{1,80})")
_INTEGER = re.compile(r"[0-9]{1,9}")
_MAX_TAGS = 50

NUMBERS = {
    "DelaySeconds": ("delay_seconds", 0, 900),
    "MaximumMessageSize": ("max_bytes", 1024, MAX_MESSAGE),
    "MessageRetentionPeriod": ("retention_seconds", 60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": ("wait_seconds", 0, 20),
    "VisibilityTimeout": ("visibility_seconds", 0, 43_200),
}
"""Attributes that are numbers: the column, the least and the most."""
COUNTED = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
FIXED = ("QueueArn", "CreatedTimestamp", "LastModifiedTimestamp")
REDRIVE = "RedrivePolicy"
POLICY = "Policy"
READABLE = (*NUMBERS, *COUNTED, *FIXED, REDRIVE, POLICY)
_UNSERVED = (
    *("Policy", "FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"),
    *("KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled", "RedriveAllowPolicy"),
)


@dataclass(frozen=True, slots=True)
class Queue:
    id: int
    pile: int
    project: str
    name: str
    visibility_seconds: int
    retention_seconds: int
    delay_seconds: int
    max_bytes: int
    wait_seconds: int
    dead_letter: str | None
    max_receives: int | None
    tags: Mapping[str, str]
    created_at: datetime
    modified_at: datetime

    def arn(self, region: str) -> str:
        return SqsQueue(region, self.project, self.name).arn

    def url(self, endpoint: str) -> str:
        return f"{endpoint}/{self.project}/{self.name}"


def queue_name(name: str) -> str:
    if name.endswith(".fifo"):
        raise QueueError("UnsupportedOperation", f"{name[:100]!r} would be a FIFO queue, which is not served: drop .fifo.")
    if not _NAME.fullmatch(name):
        raise invalid(
            "QueueName", name, "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length."
        )
    return name


def place_of(url: str) -> tuple[str, str]:
    """(project, name) of a queue's URL. Its host may be any by which somebody reaches us."""
    try:
        parts = urlsplit(url)
        match = _PATH.fullmatch(parts.path)
        if match and parts.scheme in ("http", "https") and not parts.query and not parts.fragment:
            return match[1], match[2]
    except ValueError:
        pass  # said below
    raise QueueError(
        "InvalidAddress", f"The address {url[:200]!r} is not valid for this endpoint: write https://HOST/PROJECT/QUEUE."
    )


def place_of_arn(arn: str, parameter: str, region: str) -> tuple[str, str]:
    """(project, name) of a queue's ARN, if it is one of here."""
    try:
        address = addresses.parse(arn)
    except CallerError as error:
        raise invalid(parameter, arn, error.message) from None
    if not isinstance(address, SqsQueue) or address.region != region or address.account.isdigit():
        raise invalid(parameter, arn, f"It must be arn:aws:sqs:{region}:PROJECT:QUEUE.")
    return address.account, address.queue


def columns(attributes: Mapping[str, str], project: str, name: str, region: str) -> dict[str, Any]:
    """The columns that these attributes set. Whether a dead letter queue is there is not yet known."""
    found: dict[str, Any] = {}
    for attribute, value in attributes.items():
        if attribute in NUMBERS:
            column, least, most = NUMBERS[attribute]
            if not _INTEGER.fullmatch(value) or not least <= int(value) <= most:
                raise _wrong(attribute, value, f"send a number from {least} to {most}")
            found[column] = int(value)
        elif attribute == REDRIVE:
            found["dead_letter"], found["max_receives"] = _redrive(value, project, name, region) if value else (None, None)
        elif attribute in _UNSERVED:
            hint = "; use AddPermission" if attribute == POLICY else ""
            raise QueueError("UnsupportedOperation", f"The attribute {attribute} is not served here{hint}: leave it out.")
        else:
            raise QueueError("InvalidAttributeName", f"Unknown Attribute {attribute[:100]!r}: there are {_settable()}.")
    return found


def _settable() -> str:
    return ", ".join([*NUMBERS, REDRIVE])


def _redrive(value: str, project: str, name: str, region: str) -> tuple[str, int]:
    try:
        policy = json.loads(value)
    except (ValueError, RecursionError):
        policy = None
    if not isinstance(policy, dict) or policy.keys() != {"deadLetterTargetArn", "maxReceiveCount"}:
        raise _wrong(REDRIVE, value, 'send {"deadLetterTargetArn": ARN, "maxReceiveCount": NUMBER} as text')
    arn, most = policy["deadLetterTargetArn"], policy["maxReceiveCount"]
    if isinstance(most, bool) or not _INTEGER.fullmatch(str(most)) or not 1 <= int(most) <= 1000:
        raise _wrong(REDRIVE, value, "maxReceiveCount must be a number from 1 to 1000")
    try:
        target = place_of_arn(str(arn), "deadLetterTargetArn", region)
    except QueueError as error:
        raise _wrong(REDRIVE, value, error.message) from None
    if target[0] != project or target[1] == name:
        raise _wrong(REDRIVE, value, "the dead letter queue must be another queue of the same project")
    return target[1], int(most)


def _wrong(attribute: str, value: str, what: str) -> QueueError:
    return QueueError("InvalidAttributeValue", f"Invalid value {value[:200]!r} for the attribute {attribute}: {what}.")


def no_dead_letter_queue(name: str) -> QueueError:
    return _wrong(REDRIVE, name, "the dead letter queue does not exist: create it first")


def tags(given: Mapping[str, str], already: Mapping[str, str] | None = None) -> dict[str, str]:
    """The tags of a queue with these added; the one that chooses the format must name one."""
    for key, value in given.items():
        if not 1 <= len(key) <= 128 or len(value) > 256 or "\0" in key + value or key.lower().startswith("aws:"):
            raise invalid("Tags", f"{key}={value}", "A key has 1 to 128 characters and no aws: in front, a value up to 256.")
        if key == FORMAT_TAG and value not in CHOOSABLE:
            raise invalid("Tags", f"{key}={value}", f"{FORMAT_TAG} is not a format: there is {', '.join(CHOOSABLE)}.")
    together = {**(already or {}), **given}
    if len(together) > _MAX_TAGS:
        raise invalid("Tags", len(together), f"A queue has at most {_MAX_TAGS} tags.")
    return together
