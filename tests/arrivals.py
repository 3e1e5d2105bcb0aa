"""What has arrived at destinations: one collector for Pub/Sub, Kafka, webhooks and queues elsewhere, each under a name."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import grpc
from confluent_kafka import Consumer, TopicPartition
from google.api_core.exceptions import AlreadyExists
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.scheduler import ThreadScheduler
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

import canary
import kafka_reader
from sqs_elsewhere import Elsewhere
from tidings.local import kafka
from waiting import until
from webhooks import Answer, Received, Webhook

PROJECT = "tidings-test"
_PUBLIC_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message as its receiver has it. `topic` is the name of the place, `publish` what that place calls the message."""

    topic: str
    publish: str
    id: str
    at: float
    bucket: str
    key: str
    event: str
    size: int | None
    etag: str | None
    sequencer: str
    request_id: str
    record: dict[str, Any]
    attributes: dict[str, str]


class Collector:
    """Whoever receives does so in one thread for each place, or before it answers: so the order is that of the sender."""

    def __init__(self, address: str) -> None:
        """`address` is Pub/Sub's."""
        self.arrivals: list[Arrival] = []
        self.tests: list[dict[str, Any]] = []
        self.unordered: set[str] = set()
        """Places in which the order of arrival tells nothing: Kafka has the messages of a key in several partitions."""
        self.unnamed: list[tuple[str, bytes]] = []
        """Messages, test events among them, that did not name a project: none may be left when the collector closes."""
        self._ids: set[str] = set()
        self._publications: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._channel = grpc.insecure_channel(address)
        self._subscriber = pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=self._channel))
        self._publisher = pubsub_v1.PublisherClient(transport=PublisherGrpcTransport(channel=self._channel))
        self._pulls: list[Any] = []
        self._over = threading.Event()
        self._readers: list[threading.Thread] = []

    def listen(self, topic: str) -> str:
        """Make the topic and a subscription, and collect what arrives; returns the topic's ARN."""
        name = f"projects/{PROJECT}/topics/{topic}"
        subscription = f"projects/{PROJECT}/subscriptions/{topic}-collector"
        for make, wanted in (
            (self._publisher.create_topic, {"name": name}),
            (self._subscriber.create_subscription, {"name": subscription, "topic": name}),
        ):
            try:
                make(request=wanted)
            except AlreadyExists:
                continue

        def pulled(message: Any) -> None:
            self._take(topic, message.message_id, message.data, dict(message.attributes))
            message.ack()

        scheduler = ThreadScheduler(ThreadPoolExecutor(max_workers=1))
        self._pulls.append(self._subscriber.subscribe(subscription, pulled, scheduler=scheduler))
        return f"arn:gcp:pubsub::{PROJECT}:{topic}"

    def consume(self, brokers: Mapping[str, str], topic: str) -> str:
        """Make a topic on the stack's Kafka, and collect while it is filled: the brokers keep little. Returns its ARN."""
        kafka.create_topic(brokers["kafka_faults"], topic)
        self.unordered.add(topic)
        reader = threading.Thread(target=self._consume, args=(brokers["kafka"], topic), daemon=True)
        self._readers.append(reader)
        reader.start()
        return f"arn:tidings:kafka::local:{topic}"

    def _consume(self, bootstrap: str, topic: str) -> None:
        patience = {"socket.timeout.ms": 60_000, "reconnect.backoff.max.ms": 500, "log_level": 0}
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "collector", "enable.auto.commit": False, **patience})
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        while not self._over.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                place = f"{message.partition()}/{message.offset()}"
                self._take(topic, place, message.value(), kafka_reader.headers(message))
        consumer.close()

    def answer_for(self, name: str, hook: Webhook, answer: Callable[[], Answer]) -> None:
        """Collect what a subscriber is sent at the path of this name, and takes; `answer` says how it answers now."""
        others = hook.answer

        def take(received: Received) -> Answer:
            if received.path != f"/{name}":
                return others(received)
            said = answer()
            envelope = received.envelope
            if said.status == 200 and envelope["Type"] == "Notification":
                attributes = {key: each["Value"] for key, each in envelope.get("MessageAttributes", {}).items()}
                self._take(name, None, envelope["Message"].encode(), attributes)
            return said

        hook.answer = take

    def receive(self, name: str, queue: Elsewhere) -> None:
        """Collect what a queue of this name elsewhere has accepted."""
        others = queue.taken

        def take(url: str, entry: dict[str, Any]) -> None:
            if not url.endswith(f"/{name}"):
                return others(url, entry)
            attributes = {key: each["StringValue"] for key, each in entry["MessageAttributes"].items()}
            self._take(name, None, entry["MessageBody"].encode(), attributes)

        queue.taken = take

    def _take(self, place: str, publish: str | None, data: bytes, attributes: dict[str, str]) -> None:
        """`publish` is None where each delivery is one of ours; otherwise the place itself may give a message twice."""
        now = time.time()
        canary.seen(data, str(attributes))
        body = json.loads(data)
        with self._lock:
            if not _PUBLIC_ID.fullmatch(attributes.get("tidings-project", "")):
                self.unnamed.append((place, data))
            if publish is not None and (place, publish) in self._publications:
                return
            if publish is not None:
                self._publications.add((place, publish))
            if "Records" not in body and "event_type" not in body:
                self.tests.append(body)
                return
            arrival = (_s3 if "Records" in body else _cos)(place, publish or "", now, body, attributes)
            self.arrivals.append(arrival)
            self._ids.add(arrival.id)

    def close(self) -> None:
        self._over.set()
        for pull in self._pulls:
            pull.cancel()
            pull.result(timeout=60)
        for reader in self._readers:
            reader.join(30)
        self._channel.close()
        assert not self.unnamed, f"messages that do not name their project: {self.unnamed[:3]}"

    def of(self, topic: str) -> list[Arrival]:
        return [arrival for arrival in list(self.arrivals) if arrival.topic == topic]

    def event(self, request_id: str) -> Arrival:
        """The event of one request, waited for."""
        found: Arrival = until(
            lambda: next((arrival for arrival in list(self.arrivals) if arrival.request_id == request_id), None),
            f"the event of request {request_id}",
        )
        return found

    def ids(self) -> set[str]:
        with self._lock:
            return set(self._ids)


def _s3(place: str, publish: str, now: float, body: dict[str, Any], attributes: dict[str, str]) -> Arrival:
    (record,) = body["Records"]
    s3 = record["s3"]
    return Arrival(
        place,
        publish,
        attributes["id"],
        now,
        s3["bucket"]["name"],
        unquote_plus(s3["object"]["key"]),
        record["eventName"],
        s3["object"].get("size"),
        s3["object"].get("eTag"),
        s3["object"]["sequencer"],
        record["responseElements"]["x-amz-request-id"],
        record,
        attributes,
    )


def _cos(place: str, publish: str, now: float, body: dict[str, Any], headers: dict[str, str]) -> Arrival:
    """IBM's names for the two things that the writers do."""
    written = body["event_type"] == "Object:Write"
    return Arrival(
        place,
        publish,
        headers["id"],
        now,
        body["bucket_name"],
        body["object_name"],
        "ObjectCreated:Put" if written else "ObjectRemoved:Delete",
        int(body["object_length"]) if written else None,
        body.get("object_etag"),
        headers["sequencer"],
        body["request_id"],
        body,
        headers,
    )
