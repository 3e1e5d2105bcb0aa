"""Changes whose rules could not be read when they were written, through the whole stack: the stream decides."""

from __future__ import annotations

import asyncio
import uuid

from arrivals import Collector
from conftest import Running
from tidings.db.pool import make_pool
from tidings.rules.model import Eventing
from tidings.store import objects
from tidings.store.model import Content, Origin, Place
from traffic import collecting
from waiting import until

SMALL = Content(1, "e", "text/plain", {}, b"x")


def put_unread(stack: Running, bucket: str, *keys: str) -> list[str]:
    """Put without having read the rules, as the store does when it may not; returns the ids of the requests."""
    requests = [uuid.uuid4().hex[:16].upper() for _ in keys]

    async def work() -> None:
        async with make_pool(stack.ready["database"], 1) as pool:
            for key, request_id in zip(keys, requests, strict=True):
                origin = Origin("KEY", "", request_id, None, Eventing(source="unread"))
                await objects.commit_inline_object(pool, Place(stack.ready["project"], bucket, key), SMALL, origin)

    asyncio.run(work())
    return requests


def configure(stack: Running, collector: Collector, bucket: str, *prefixes: str) -> None:
    rules = [
        {
            "Id": prefix,
            "TopicArn": collector.listen(f"{bucket}-{prefix}"),
            "Events": ["s3:ObjectCreated:*"],
            "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": prefix}]}},
        }
        for prefix in prefixes
    ]
    stack.s3().put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={"TopicConfigurations": rules})


def test_the_stream_decides_by_the_rules_that_are_not_younger_than_the_change(stack: Running) -> None:
    bucket = "unread-rules"
    stack.s3().create_bucket(Bucket=bucket)
    with collecting(stack) as collector:
        configure(stack, collector, bucket, "a")
        wanted, _, _ = put_unread(stack, bucket, "a1", "b1", "c1")
        configure(stack, collector, bucket, "a", "b")
        also = put_unread(stack, bucket, "a2", "b2", "c2")
        for request_id in (wanted, *also[:2]):
            collector.event(request_id)
        arrived = {topic: [arrival.key for arrival in collector.of(f"{bucket}-{topic}")] for topic in "ab"}
    assert arrived == {"a": ["a1", "a2"], "b": ["b2"]}


def test_a_change_for_which_there_is_no_rule_is_discarded_with_a_warning(stack: Running) -> None:
    bucket = "without-rules"
    stack.s3().create_bucket(Bucket=bucket)
    put_unread(stack, bucket, "a", "b")
    log = stack.data / "logs" / "stream.log"
    until(lambda: [line for line in log.read_text().splitlines() if _warns(line, bucket)], "the warning")


def _warns(line: str, bucket: str) -> bool:
    return "no configuration exists any more" in line and bucket in line and "WARNING" in line
