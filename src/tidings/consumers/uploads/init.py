"""What the registry needs (seed 004, "Imperative Setup"): queues, a bucket, a rule. It can be made any number of times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tidings.consumers.uploads import places
from tidings.errors import OperatorError
from tidings.events.formats import FORMAT_TAG
from tidings.settings import Settings

RULE = "upload-registry"
EVENTS = ["s3:ObjectCreated:*"]
MAX_RECEIVES = 4
"""One, and seed 004's three retries."""
RETENTION_SECONDS = 4 * 86_400
"""How long dead letters are there, as in seed 004."""
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Made:
    """What is there now, and what of it was not before."""

    bucket: str
    queue: str
    queue_url: str
    dead_letters: str
    dead_letters_url: str
    rule: str
    changed: tuple[str, ...]


def init(settings: Settings) -> Made:
    """Make what is missing and mend what is otherwise; leave the bucket's other rules as they are."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return _made(settings)
    except (ClientError, BotoCoreError) as error:
        where = settings.uploads.endpoint or settings.api.url
        raise OperatorError(f"{where} did not take it: {error}. Check TIDINGS_UPLOADS__ENDPOINT and its key.") from None


def _made(settings: Settings) -> Made:
    uploads, changed = settings.uploads, list[str]()
    sqs, s3 = places.sqs(settings, _SECONDS), places.s3(settings, _SECONDS)
    letters, letters_arn = _queue(sqs, uploads.dead_letters, {"MessageRetentionPeriod": str(RETENTION_SECONDS)}, {}, changed)
    policy = json.dumps({"deadLetterTargetArn": letters_arn, "maxReceiveCount": MAX_RECEIVES})
    attributes = {"VisibilityTimeout": str(uploads.visibility_seconds), "RedrivePolicy": policy}
    queue, arn = _queue(sqs, uploads.queue, attributes, {FORMAT_TAG: "r2"}, changed)
    _bucket(s3, uploads.bucket, settings.uploads.region or settings.api.region, changed)
    _rule(s3, uploads.bucket, {"Id": RULE, "QueueArn": arn, "Events": EVENTS}, changed)
    return Made(uploads.bucket, uploads.queue, queue, uploads.dead_letters, letters, RULE, tuple(changed))


def _queue(sqs: Any, name: str, attributes: dict[str, str], tags: dict[str, str], changed: list[str]) -> tuple[str, str]:
    """A queue as it must be: its URL and its ARN."""
    try:
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    except Exception as error:
        if "QueueDoesNotExist" not in places.code_of(error) and "NonExistentQueue" not in places.code_of(error):
            raise
        url = sqs.create_queue(QueueName=name, Attributes=attributes, tags=tags)["QueueUrl"]
        changed.append(f"queue {name}")
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn", *attributes])["Attributes"]
    if any(_differs(found.get(attribute, ""), value) for attribute, value in attributes.items()):
        sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)
        changed.append(f"attributes of {name}")
    known = sqs.list_queue_tags(QueueUrl=url).get("Tags", {}) if tags else {}
    if any(known.get(tag) != value for tag, value in tags.items()):
        sqs.tag_queue(QueueUrl=url, Tags=tags)
        changed.append(f"tags of {name}")
    return url, found["QueueArn"]


def _differs(found: str, wanted: str) -> bool:
    """Numbers and policies, both of which are JSON."""
    try:
        return bool(json.loads(found) != json.loads(wanted))
    except ValueError:
        return True


def _bucket(s3: Any, bucket: str, region: str, changed: list[str]) -> None:
    try:
        s3.head_bucket(Bucket=bucket)
    except Exception as error:
        if places.status_of(error) != 404:
            raise
        place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        s3.create_bucket(Bucket=bucket, **place)
        changed.append(f"bucket {bucket}")


def _rule(s3: Any, bucket: str, wanted: dict[str, Any], changed: list[str]) -> None:
    """Set only where it is not so already: every rule that is set gets a test event."""
    found = s3.get_bucket_notification_configuration(Bucket=bucket)
    found.pop("ResponseMetadata", None)
    others = [each for each in found.get("QueueConfigurations", []) if each.get("Id") != wanted["Id"]]
    if wanted in found.get("QueueConfigurations", []):
        return
    s3.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={**found, "QueueConfigurations": [*others, wanted]}
    )
    changed.append(f"rule {wanted['Id']}")
