"""One destination of each kind in one stack, each with a bucket of its own, and five ways to trouble each of them.

down        nobody is there: connections are refused, or every call is
hang        connections are taken, and nothing is ever answered
refuse      an answer at once: no permission
slow        an answer after thirty seconds
flap        down and up again, in turns of a second
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import boto3
import psycopg
from confluent_kafka import KafkaError

import relay
from arrivals import PROJECT, Collector
from conftest import Running, running_stack
from sqs_elsewhere import Elsewhere, sqs_elsewhere
from tidings.local import kafka, pubsub
from waiting import until
from webhooks import Answer, Webhook, webhook

Trouble = Literal["down", "hang", "refuse", "slow", "flap"]
KINDS = ("pubsub", "kafka", "webhook", "queue")
TROUBLES: tuple[Trouble, ...] = ("down", "hang", "refuse", "slow", "flap")

SLOW_SECONDS = 30.0
FLAP_SECONDS = 1.0
_ACCOUNT = "123456789012"
_EVENTS = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]


@dataclass
class Place:
    """A destination: its bucket has the same name. `begin` is told what trouble it has, `end` that it is over."""

    name: str
    lane: str
    begin: Callable[[Trouble], None]
    end: Callable[[], None]

    @contextmanager
    def troubled(self, trouble: Trouble) -> Iterator[None]:
        over = threading.Event()
        flapping = threading.Thread(target=self._flap, args=(over,))
        if trouble == "flap":
            flapping.start()
        else:
            self.begin(trouble)
        try:
            yield
        finally:
            over.set()
            if trouble == "flap":
                flapping.join()
            self.end()

    def _flap(self, over: threading.Event) -> None:
        while not over.is_set():
            self.begin("down")
            over.wait(FLAP_SECONDS)
            self.end()
            over.wait(FLAP_SECONDS)


@dataclass
class Outside:
    """What is not ours: a subscriber's endpoint and another's queue, each behind a relay."""

    hook: Webhook
    hook_way: relay.Relay
    queue: Elsewhere
    queue_way: relay.Relay


@contextmanager
def outside() -> Iterator[Outside]:
    with webhook() as hook, sqs_elsewhere() as queue:
        port = int(queue.endpoint.rpartition(":")[2])
        with relay.running(("127.0.0.1", hook.port)) as hook_way, relay.running(("127.0.0.1", port)) as queue_way:
            yield Outside(hook, hook_way, queue, queue_way)


@contextmanager
def stack_with(there: Outside, folder: Path, **environment: str) -> Iterator[Running]:
    """A stack whose tenants may send everywhere."""
    account = {"endpoint": f"http://{there.queue_way.address}", "access_key_id": "key", "secret": "hush", "projects": "*"}
    settings = {
        "TIDINGS_BUCKET_EVENTING__DESTINATIONS": '["pubsub", "kafka", "sns", "queue"]',
        "TIDINGS_OUTGOING__ALLOW_HTTP": "true",
        "TIDINGS_OUTGOING__ALLOW": '["127.0.0.0/8"]',
        "TIDINGS_EXTERNAL__ACCOUNTS": json.dumps({_ACCOUNT: account}),
    }
    with running_stack(folder, **settings, **environment) as running:
        yield running


def places(stack: Running, there: Outside, collector: Collector, prefix: str, kinds: Sequence[str] = KINDS) -> dict[str, Place]:
    """One of each kind, by its name. Their buckets are new, so each `prefix` is used once."""
    ways = {
        "pubsub": _pubsub,
        "kafka": _kafka,
        "webhook": partial(_webhook, there=there),
        "queue": partial(_queue, there=there),
    }
    made = {kind: ways[kind](stack, collector, f"{prefix}-{kind}") for kind in kinds}
    with psycopg.connect(stack.ready["database"], autocommit=True) as database:
        lanes = [place.lane for place in made.values()]
        live = "select from lanes where destination = any(%s) and state = 'live'"
        until(lambda: database.execute(live, [lanes]).rowcount == len(lanes), "every lane runs with the stream")
    return made


def _rule(stack: Running, bucket: str, arn: str) -> None:
    s3 = stack.s3()
    s3.create_bucket(Bucket=bucket)
    kind = "Queue" if ":sqs:" in arn else "Topic"
    rule = {"Id": bucket, f"{kind}Arn": arn, "Events": _EVENTS}
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={f"{kind}Configurations": [rule]})


def _pubsub(stack: Running, collector: Collector, name: str) -> Place:
    arn = collector.listen(name)
    _rule(stack, name, arn)
    faults = {"down": "unavailable", "hang": "hang", "refuse": "permission_denied", "slow": "delay"}
    server, topic = stack.ready["pubsub"], f"projects/{PROJECT}/topics/{name}"

    def begin(trouble: Trouble) -> None:
        pubsub.set_fault(server, topic, faults[trouble], seconds=SLOW_SECONDS if trouble == "slow" else 0.0)

    return Place(name, arn, begin, lambda: pubsub.set_fault(server, topic, None))


def _kafka(stack: Running, collector: Collector, name: str) -> Place:
    arn = collector.consume(stack.ready, name)
    _rule(stack, name, arn)
    faults, brokers = stack.ready["kafka_faults"], stack.pid("kafka")

    def begin(trouble: Trouble) -> None:
        if trouble == "hang":
            os.kill(brokers, signal.SIGSTOP)
        elif trouble == "refuse":
            kafka.set_fault(faults, "error", error=KafkaError.TOPIC_AUTHORIZATION_FAILED, times=10_000)
        elif trouble == "slow":
            kafka.set_fault(faults, "delay", seconds=SLOW_SECONDS)
        else:
            kafka.set_fault(faults, "down")

    def end() -> None:
        os.kill(brokers, signal.SIGCONT)
        kafka.set_fault(faults, None)

    return Place(name, arn, begin, end)


def _webhook(stack: Running, collector: Collector, name: str, there: Outside) -> Place:
    answer = [Answer()]
    collector.answer_for(name, there.hook, lambda: answer[0])
    sns = _client(stack, "sns")
    topic = sns.create_topic(Name=name)["TopicArn"]
    url = f"http://{there.hook_way.address}/{name}"
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=url)
    token = there.hook.confirmation(f"/{name}").envelope["Token"]
    lane = sns.confirm_subscription(TopicArn=topic, Token=token)["SubscriptionArn"]
    _rule(stack, name, topic)

    def begin(trouble: Trouble) -> None:
        if trouble in ("refuse", "slow"):
            answer[0] = Answer(403) if trouble == "refuse" else Answer(delay=SLOW_SECONDS)
        else:
            _cut(there.hook_way, trouble)

    def end() -> None:
        answer[0] = Answer()
        there.hook_way.mend()

    return Place(name, lane, begin, end)


def _queue(stack: Running, collector: Collector, name: str, there: Outside) -> Place:
    collector.receive(name, there.queue)
    arn = f"arn:aws:sqs:us-east-1:{_ACCOUNT}:{name}"
    _rule(stack, name, arn)

    def begin(trouble: Trouble) -> None:
        if trouble == "refuse":
            there.queue.refusal = (403, "AccessDenied", {})
        elif trouble == "slow":
            there.queue_way.delay(SLOW_SECONDS)
        else:
            _cut(there.queue_way, trouble)

    def end() -> None:
        there.queue.refusal = None
        there.queue_way.mend()

    return Place(name, arn, begin, end)


def _cut(way: relay.Relay, trouble: Trouble) -> None:
    (way.hang if trouble == "hang" else way.refuse)()


def _client(stack: Running, service: str) -> Any:
    ready = stack.ready
    return boto3.client(
        service,
        endpoint_url=ready["s3"],
        region_name=ready["region"],
        aws_access_key_id=ready["access_key_id"],
        aws_secret_access_key=ready["secret_access_key"],
    )
