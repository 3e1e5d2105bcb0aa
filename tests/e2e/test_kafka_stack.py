"""`tidings up` with Kafka: from an S3 call to a record, also after the brokers died and came back elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kafka_reader
from conftest import Running, running_stack
from waiting import until

ARN = "arn:tidings:kafka::local:my-events"


@pytest.mark.chaos
def test_changes_arrive_as_records_and_still_do_when_the_brokers_were_killed(tmp_path: Path) -> None:
    with running_stack(tmp_path, TIDINGS_BUCKET_EVENTING__DESTINATIONS='["pubsub", "kafka"]') as stack:
        s3 = stack.s3()
        s3.create_bucket(Bucket="my-bucket")
        wanted = [{"TopicArn": ARN, "Events": ["s3:ObjectCreated:*"]}]
        s3.put_bucket_notification_configuration(Bucket="my-bucket", NotificationConfiguration={"TopicConfigurations": wanted})
        for i in range(20):
            s3.put_object(Bucket="my-bucket", Key=f"before-{i}", Body=b"x")
        records = events(stack, 20)
        assert all({"id", "sequencer"} <= set(headers) for headers, _ in records)
        assert len({headers["id"] for headers, _ in records}) == 20

        brokers = stack.ready["kafka"]
        stack.kill("kafka")
        until(lambda: stack.ready["kafka"] != brokers, "other brokers")
        until(lambda: answers(s3), "the API answers")
        s3.put_object(Bucket="my-bucket", Key="after", Body=b"x")
        assert "after" in events(stack, 1)[-1][1]


def answers(s3: Any) -> bool:
    try:
        s3.list_buckets()
    except Exception:
        return False
    return True


def events(stack: Running, count: int) -> list[tuple[dict[str, str], str]]:
    """Headers and bodies of the records, without the test event, when there are so many."""
    found: list[tuple[dict[str, str], str]] = []

    def there() -> bool:
        records = kafka_reader.read(stack.ready["kafka"], "my-events")
        found[:] = [(kafka_reader.headers(each), each.value().decode()) for each in records]
        found[:] = [each for each in found if "Event" not in json.loads(each[1])]
        return len(found) >= count

    until(there, f"{count} messages")
    return found
