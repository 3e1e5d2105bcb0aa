"""`make demo`: a fresh stack in a temporary folder, a few changes, and every event shown as it arrives.

Then the circle (`circle.py`): what three registries know of what is put, from events alone.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from tidings.events.arn import PubSubTopic
from tidings.local import circle
from tidings.local.stack import Stack

_TOPIC = PubSubTopic("demo-project", "demo-events")
_WAIT_SECONDS = 300.0


def run(err: Console, out: Console) -> int:
    """0 only if every change arrived exactly where it should, none was lost and none invented, and all rows are there."""
    began = time.monotonic()
    # Three JVMs, each for less than a minute: the second compiler would cost more than it ever gains.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
    with tempfile.TemporaryDirectory(prefix="tidings-demo-") as folder:
        with err.status("starting") as status:
            stack = Stack(Path(folder), 0, lambda part: status.update(f"starting {part}"), consumers=True)
            stack.start()
        try:
            out.print(f"started in {time.monotonic() - began:.0f} s: S3 at {stack.s3}, Pub/Sub at {stack.pubsub}")
            return max(_show(stack, out), circle.show(stack, err, out))
        finally:
            with err.status("stopping"):
                stack.stop()


def _show(stack: Stack, out: Console) -> int:
    os.environ["PUBSUB_EMULATOR_HOST"] = stack.pubsub
    arrivals = _Arrivals(out)
    subscriber = arrivals.listen()
    try:
        s3 = _client(stack, out)
        written = _changes(s3, out, arrivals)
        arrivals.wait_for(len(written), _WAIT_SECONDS)
    finally:
        subscriber.cancel()
        subscriber.result(timeout=10)
    return _conclude(written, arrivals, out)


def _client(stack: Stack, out: Console) -> Any:
    """A bucket and its notification configuration, with the project and the key that the stack has made."""
    import boto3  # a client, not a part of Tidings

    ready = stack.ready()
    out.print(f"project {ready['project']}, access key {ready['access_key_id']}")
    s3 = boto3.client(
        "s3",
        endpoint_url=ready["s3"],
        region_name=ready["region"],
        aws_access_key_id=ready["access_key_id"],
        aws_secret_access_key=ready["secret_access_key"],
    )
    s3.create_bucket(Bucket="demo-bucket")
    rule = {
        "Id": "demo",
        "TopicArn": _TOPIC.arn,
        "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"],
        "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "photos/"}]}},
    }
    s3.put_bucket_notification_configuration(Bucket="demo-bucket", NotificationConfiguration={"TopicConfigurations": [rule]})
    out.print(f"bucket demo-bucket sends changes under photos/ to {_TOPIC.arn} (test event accepted)")
    return s3


def _changes(s3: Any, out: Console, arrivals: _Arrivals) -> list[tuple[str, str]]:
    """Write, overwrite and delete; returns (event name, key) of every change that the rule wants, in order."""
    keys = [f"photos/{name}" for name in ("lake.jpg", "mount ain.jpg", "straße/ö.jpg", "big.bin")]
    wanted: list[tuple[str, str]] = []

    def change(event: str, key: str, **body: bytes) -> None:
        arrivals.sent_at[event, key, sum(w == (event, key) for w in wanted)] = time.time()
        (s3.put_object if body else s3.delete_object)(Bucket="demo-bucket", Key=key, **body)
        out.print(f"  → {'PUT   ' if body else 'DELETE'} {key}", markup=False)
        if key.startswith("photos/"):
            wanted.append((event, key))
        time.sleep(0.1)  # people work slower than that

    for round_ in (b"first", b"second"):
        for key in keys:
            change("ObjectCreated:Put", key, Body=round_ * (20_000 if key.endswith(".bin") else 1))
    change("ObjectCreated:Put", "notes/unwanted.txt", Body=b"no rule wants this")
    for key in keys:
        change("ObjectRemoved:Delete", key)
    return wanted


class _Arrivals:
    """Everything that Pub/Sub has given us, with the time that each event took from its call to us."""

    def __init__(self, out: Console) -> None:
        self.sent_at: dict[tuple[str, str, int], float] = {}
        self.seen: list[tuple[str, str]] = []
        self.seconds: list[float] = []
        self._ids: set[str] = set()
        self._out = out
        self._changed = threading.Condition()

    def listen(self) -> Any:
        from google.cloud import pubsub_v1

        from tidings.local import topics

        topics.create(_TOPIC.name)
        return pubsub_v1.SubscriberClient().subscribe(topics.subscription_of(_TOPIC), callback=self._receive)

    def _receive(self, message: Any) -> None:
        from urllib.parse import unquote_plus

        now = time.time()
        body = json.loads(message.data)
        message.ack()
        with self._changed:
            if "Records" not in body or message.attributes["id"] in self._ids:
                return  # the test event, or a duplicate that at-least-once allows
            self._ids.add(message.attributes["id"])
            record = body["Records"][0]
            event = record["eventName"], unquote_plus(record["s3"]["object"]["key"])
            took = now - self.sent_at.get((*event, self.seen.count(event)), now)
            self.seen.append(event)
            self.seconds.append(took)
            sequencer = record["s3"]["object"]["sequencer"].lstrip("0")
            self._out.print(f"  ← {event[0]:<20} {event[1]}  (sequencer {sequencer}, {took:.2f} s)", markup=False)
            self._changed.notify_all()

    def wait_for(self, count: int, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self.seen) >= count, seconds)


def _conclude(written: list[tuple[str, str]], arrivals: _Arrivals, out: Console) -> int:
    lost = [change for change in written if written.count(change) > arrivals.seen.count(change)]
    invented = [event for event in arrivals.seen if arrivals.seen.count(event) > written.count(event)]
    disordered = [
        key
        for key in {key for _, key in written}
        if [c for c in written if c[1] == key] != [c for c in arrivals.seen if c[1] == key]
    ]
    median = statistics.median(arrivals.seconds) if arrivals.seconds else 0.0
    out.print(f"demo: {len(written)} changes, {len(arrivals.seen)} events delivered, {len(set(lost))} lost, p50 {median:.1f} s")
    for problem, what in (("lost", lost), ("invented", invented), ("out of order", disordered)):
        if what:
            out.print(f"demo: {problem}: {what}", markup=False)
    return 1 if lost or invented or disordered else 0
