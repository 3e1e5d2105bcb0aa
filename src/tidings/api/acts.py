"""Which requests the audit log has: those that change a configuration, none that only handles objects or messages."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

from tidings.access.keys import Principal
from tidings.audit import Act, audited
from tidings.db.pool import Pool

S3 = frozenset({"CreateBucket", "DeleteBucket", "PutBucketVersioning", "PutBucketNotificationConfiguration"})
SNS = frozenset(
    {
        *("CreateTopic", "DeleteTopic", "SetTopicAttributes", "TagResource", "UntagResource", "AddPermission"),
        *("RemovePermission", "Subscribe", "ConfirmSubscription", "Unsubscribe", "SetSubscriptionAttributes"),
    }
)
SQS = frozenset(
    {
        *("CreateQueue", "DeleteQueue", "SetQueueAttributes", "PurgeQueue", "TagQueue", "UntagQueue", "AddPermission"),
        *("RemovePermission", "StartMessageMoveTask", "CancelMessageMoveTask"),
    }
)
CATALOG = frozenset({"subscribe", "unsubscribe"})
_ACTS = {"s3": S3, "grpc": S3, "sns": SNS, "sqs": SQS, "catalog": CATALOG}
_TARGETS = ("SubscriptionArn", "TopicArn", "ResourceArn", "Name", "QueueUrl", "QueueName", "SourceArn", "TaskHandle")
_NOTHING = nullcontext()
_SHOWN_OF_NAME = 8
_COLONS_OF_TOPIC = 5
"""What has more may be the name of a subscription, whichever parameter it stands in."""


def act(
    pool: Pool, service: str, operation: str, caller: Principal | str, project: str, address: str, target: str, request_id: str
) -> AbstractAsyncContextManager[None]:
    """Around what serves a verified request. A stranger's are not here: anybody could fill the log."""
    if operation not in _ACTS[service]:
        return _NOTHING
    actor = caller if isinstance(caller, str) else caller.access_key_id
    return audited(pool, Act(f"{service}:{operation}", actor, address, project, target, request_id))


def named(given: Mapping[str, object]) -> str:
    """What a request to SNS or SQS is about. A subscription's whole name would let whoever reads it unsubscribe."""
    name = next((each for each in _TARGETS if given.get(each)), "")
    text = str(given.get(name, ""))
    *topic, rest = text.split(":", _COLONS_OF_TOPIC + 1)
    if len(topic) > _COLONS_OF_TOPIC:
        return f"{':'.join(topic)}:{rest[:_SHOWN_OF_NAME]}"
    return "/".join(text.split("/")[-2:]) if name == "QueueUrl" else text
