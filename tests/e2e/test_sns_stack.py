"""From an S3 call through Spark to webhooks: each subscription is a lane of its own."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import boto3
import pytest

import canary
from conftest import Running
from tidings.topics.verifying import Verifier
from waiting import PATIENCE_SECONDS
from webhooks import Answer, Received, webhook

pytestmark = pytest.mark.chaos  # a stack of its own, for which make test has no time

KEYS, VERSIONS = 5, 4


def client(stack: Running) -> Any:
    ready = stack.ready
    return boto3.client(
        "sns",
        endpoint_url=ready["s3"],
        region_name=ready["region"],
        aws_access_key_id=ready["access_key_id"],
        aws_secret_access_key=ready["secret_access_key"],
    )


def until(true: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        pem: bytes = answer.read()
        return pem


def test_a_dead_subscriber_hurts_nobody_and_gets_everything_when_it_is_back(stack: Running) -> None:
    sns, s3 = client(stack), stack.s3()
    with webhook() as hook:
        alive: dict[str, bool] = {"/good": True, "/dead": True, "/raw": True}
        taken: list[Received] = []

        def answer(got: Received) -> Answer:
            if alive[got.path]:
                taken.append(got)
            return Answer(200 if alive[got.path] else 503)

        hook.answer = answer
        topic = sns.create_topic(Name="stack", Attributes={"SignatureVersion": "2"})["TopicArn"]
        for path in alive:
            raw = {"RawMessageDelivery": "true" if path == "/raw" else "false"}
            sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=f"http://127.0.0.1:{hook.port}{path}", Attributes=raw)
            fetch(hook.confirmation(path).envelope["SubscribeURL"])
        s3.create_bucket(Bucket="sns-stack")
        configuration = {"Id": "all", "TopicArn": topic, "Events": ["s3:ObjectCreated:*"]}
        s3.put_bucket_notification_configuration(
            Bucket="sns-stack", NotificationConfiguration={"TopicConfigurations": [configuration]}
        )
        for path in alive:
            hook.wait(lambda got, path=path: got.path == path and b"s3:TestEvent" in got.body)  # type: ignore[misc]
        alive["/dead"] = False
        for version in range(VERSIONS):
            for key in range(KEYS):
                s3.put_object(Bucket="sns-stack", Key=f"k{key}", Body=b"x" * version)

        until(lambda: all(len(set(sizes(taken, path))) == KEYS * VERSIONS for path in ("/good", "/raw")), "the others wait")
        assert sizes(taken, "/dead") == []
        alive["/dead"] = True
        until(lambda: len(set(sizes(taken, "/dead"))) == KEYS * VERSIONS, "the lane does not catch up")
        for path in alive:
            for key in range(KEYS):
                found = [size for name, size in sizes(taken, path) if name == f"k{key}"]
                assert list(dict.fromkeys(found)) == list(range(VERSIONS)), f"{path}: the first of each in order"
        for got in hook.received:
            canary.seen(str(got.headers), got.body)
        verify_all(stack, topic, [got for got in hook.received if got.path == "/good"])
        sns.delete_topic(TopicArn=topic)
        s3.put_bucket_notification_configuration(Bucket="sns-stack", NotificationConfiguration={})


def verify_all(stack: Running, topic: str, received: list[Received]) -> None:
    """By our own verifier, which is told to trust this installation."""

    async def from_the_api(url: str) -> bytes:
        return await asyncio.to_thread(fetch, url)

    async def go() -> None:
        verifier = Verifier([topic], from_the_api, own=[stack.ready["s3"]])
        for got in received:
            await verifier.verify(got.body, got.headers["x-amz-sns-message-type"])

    assert len(received) >= KEYS * VERSIONS + 2  # a confirmation and a test event
    asyncio.run(go())


def sizes(received: list[Received], path: str) -> list[tuple[str, int]]:
    """Key and size of every record that came to a path, in the order in which they came."""
    found = []
    for got in list(received):
        if got.path == path and got.headers.get("x-amz-sns-message-type") == "Notification":
            said = json.loads(got.body)
            said = json.loads(said["Message"]) if "Message" in said else said
            for record in said.get("Records", []):
                found.append((record["s3"]["object"]["key"], record["s3"]["object"].get("size", 0)))
    return found
