"""Topics of the embedded Pub/Sub, through Google's own client: enough to see what arrives."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from google.api_core.exceptions import AlreadyExists, DeadlineExceeded, NotFound
from google.cloud import pubsub_v1

from tidings.errors import CallerError, OperatorError
from tidings.events.arn import PubSubTopic


def _topic(name: str) -> PubSubTopic:
    if not os.environ.get("PUBSUB_EMULATOR_HOST"):
        raise OperatorError("Set PUBSUB_EMULATOR_HOST to the address that `tidings up` printed.")
    try:
        return PubSubTopic.from_name(name)
    except CallerError:
        raise OperatorError(f"{name!r} is not the name of a topic: write projects/PROJECT/topics/TOPIC.") from None


def subscription_of(topic: PubSubTopic) -> str:
    return f"projects/{topic.project}/subscriptions/{topic.topic}-reader"


def create(name: str) -> str:
    """The topic and its reader's subscription; both may exist already."""
    topic = _topic(name)
    for make, wanted in (
        (pubsub_v1.PublisherClient().create_topic, {"name": topic.name}),
        (pubsub_v1.SubscriberClient().create_subscription, {"name": subscription_of(topic), "topic": topic.name}),
    ):
        try:
            make(request=wanted)
        except AlreadyExists:
            continue
    return topic.name


def read(name: str, seconds: float) -> Iterator[str]:
    """Messages as they come, until none has come for `seconds`."""
    topic = _topic(name)
    client = pubsub_v1.SubscriberClient()
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            got = client.pull(subscription=subscription_of(topic), max_messages=100, timeout=max(left, 0.1), retry=None)
        except DeadlineExceeded:
            return
        except NotFound:
            raise OperatorError(f"There is nothing to read: create it first with `tidings topic create {name}`.") from None
        for received in got.received_messages:
            yield received.message.data.decode()
            deadline = time.monotonic() + seconds
        if got.received_messages:
            ids = [received.ack_id for received in got.received_messages]
            client.acknowledge(subscription=subscription_of(topic), ack_ids=ids)
