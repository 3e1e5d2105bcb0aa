"""boto3 and the aws command line ask for events, and the events say what happened: every field of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from arrivals import Arrival, Collector
from conftest import Running
from tidings.cli.running import how_to_use
from traffic import PROGRAMS, collecting
from waiting import until

KEY = "a b/ü+.txt"
ENCODED = "a+b/%C3%BC%2B.txt"
BODY = b"hello"
QUIET_SECONDS = 3.0
"""Many times what an event takes: what has not come by then was not sent."""


class Boto3:
    """Puts and deletes return the id that the answer carried."""

    def __init__(self, stack: Running, _folder: Path) -> None:
        self._s3 = stack.s3()

    def create(self, bucket: str) -> None:
        self._s3.create_bucket(Bucket=bucket)

    def configure(self, bucket: str, configuration: dict[str, Any]) -> None:
        self._s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=configuration)

    def configuration(self, bucket: str) -> dict[str, Any]:
        answer = self._s3.get_bucket_notification_configuration(Bucket=bucket)
        return {name: value for name, value in answer.items() if name != "ResponseMetadata"}

    def put(self, bucket: str, key: str, body: bytes) -> str:
        return str(self._s3.put_object(Bucket=bucket, Key=key, Body=body)["ResponseMetadata"]["RequestId"])

    def delete(self, bucket: str, key: str) -> str:
        return str(self._s3.delete_object(Bucket=bucket, Key=key)["ResponseMetadata"]["RequestId"])


class AwsCommand:
    """The same with `aws s3api`."""

    def __init__(self, stack: Running, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": stack.ready["s3"],
            "AWS_DEFAULT_REGION": stack.ready["region"],
            "AWS_ACCESS_KEY_ID": stack.ready["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": stack.ready["secret_access_key"],
        }

    def _run(self, command: str, **options: str) -> tuple[dict[str, Any], str]:
        """What the command printed, and the id of its request, which it tells only with --debug."""
        arguments = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
        done = subprocess.run(
            [PROGRAMS / "aws", "s3api", command, *arguments, "--debug"],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout or "{}"), re.findall(r"'x-amz-request-id': '([0-9A-F]{16})'", done.stderr)[-1]

    def create(self, bucket: str) -> None:
        self._run("create-bucket", bucket=bucket)

    def configure(self, bucket: str, configuration: dict[str, Any]) -> None:
        text = json.dumps(configuration)
        self._run("put-bucket-notification-configuration", bucket=bucket, notification_configuration=text)

    def configuration(self, bucket: str) -> dict[str, Any]:
        return self._run("get-bucket-notification-configuration", bucket=bucket)[0]

    def put(self, bucket: str, key: str, body: bytes) -> str:
        (self._folder / "body").write_bytes(body)
        return self._run("put-object", bucket=bucket, key=key, body=str(self._folder / "body"))[1]

    def delete(self, bucket: str, key: str) -> str:
        return self._run("delete-object", bucket=bucket, key=key)[1]


@pytest.fixture(scope="module")
def collector(stack: Running) -> Iterator[Collector]:
    with collecting(stack) as collector:
        yield collector


@pytest.mark.parametrize("kind", [Boto3, AwsCommand])
def test_a_client_asks_for_events_and_each_says_what_happened(
    stack: Running, collector: Collector, tmp_path: Path, kind: type[Boto3] | type[AwsCommand]
) -> None:
    client, bucket = kind(stack, tmp_path), f"events-by-{kind.__name__.lower()}"
    arn = collector.listen(bucket)
    rule = {
        "Id": 'my "rule"',
        "TopicArn": arn,
        "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:Delete"],
        "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "a b/"}, {"Name": "suffix", "Value": ".txt"}]}},
    }
    configuration = {"TopicConfigurations": [rule]}
    client.create(bucket)
    assert not client.configuration(bucket)
    client.configure(bucket, configuration)
    assert client.configuration(bucket) == configuration
    until(lambda: [test for test in collector.tests if test["Bucket"] == bucket], "the test event")

    put = client.put(bucket, KEY, BODY)
    client.put(bucket, "another/ü.txt", BODY)
    deleted = client.delete(bucket, KEY)
    created, removed = collector.event(put), collector.event(deleted)
    says_what_happened(stack, bucket, created, "ObjectCreated:Put", put)
    says_what_happened(stack, bucket, removed, "ObjectRemoved:Delete", deleted)
    assert created.sequencer < removed.sequencer

    client.configure(bucket, {})
    assert not client.configuration(bucket)
    client.put(bucket, KEY, BODY)
    time.sleep(QUIET_SECONDS)
    assert [arrival.request_id for arrival in collector.of(bucket)] == [put, deleted]


def says_what_happened(stack: Running, bucket: str, arrival: Arrival, event: str, request_id: str) -> None:
    record, stored = arrival.record, arrival.record["s3"]
    contents = {"size": len(BODY), "eTag": md5(BODY).hexdigest()} if event == "ObjectCreated:Put" else {}
    assert record == {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": stack.ready["region"],
        "eventTime": record["eventTime"],
        "eventName": event,
        "userIdentity": {"principalId": stack.ready["access_key_id"]},
        "requestParameters": {"sourceIPAddress": "127.0.0.1"},
        "responseElements": {"x-amz-request-id": request_id, "x-amz-id-2": arrival.id.partition(".")[0]},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": 'my "rule"',
            "bucket": {
                "name": bucket,
                "ownerIdentity": {"principalId": stack.ready["project"]},
                "arn": f"arn:aws:s3:::{bucket}",
            },
            "object": {"key": ENCODED, **contents, "sequencer": stored["object"]["sequencer"]},
        },
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["eventTime"])
    assert 0 <= arrival.at - datetime.fromisoformat(record["eventTime"]).timestamp() < 30
    assert re.fullmatch(r"[0-9A-F]{16}", stored["object"]["sequencer"])


def test_what_tidings_up_prints_can_be_pasted_into_a_shell(stack: Running, tmp_path: Path) -> None:
    """The text is for the project's folder: here it is one that has the virtual environment and nothing else."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    lines = [line[2:] for line in how_to_use(stack.ready).splitlines() if line.startswith("  ")]
    script = "set -e\n" + "\n".join(lines)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(('{"Records"', '{"Service"'))]
    assert events[0]["Event"] == "s3:TestEvent"
    assert [record["s3"]["object"]["key"] for event in events[1:] for record in event["Records"]] == ["hello.txt"]
