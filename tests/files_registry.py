"""The file registry for tests: its webhook as a process, a topic that signs messages for it, and S3 events to send."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import psycopg

import sns_messages
from tidings.local.processes import free_port
from waiting import answers, until_started

BUCKET = "atlas-files"
SHA256 = "ab" * 32
KEY = "gut/gut-v1/source-datasets/cells.h5ad"
INTEGRATED = "gut/gut-v1/integrated-objects/all.h5ad"
TOPIC = "arn:aws:sns:us-east-1:11111111-2222-3333-4444-555555555555:files"
OTHER_TOPIC = "arn:aws:sns:us-east-1:11111111-2222-3333-4444-555555555555:elsewhere"


def record(
    key: str = KEY,
    sequencer: int = 1,
    *,
    event: str = "ObjectCreated:Put",
    bucket: str = BUCKET,
    version: str | None = None,
    etag: str = "0" * 32,
    sha256: str | None = SHA256,
    **changes: Any,
) -> dict[str, Any]:
    """One record as S3 writes it, with the metadata that some stores add."""
    created = event.startswith("ObjectCreated")
    of_object: dict[str, Any] = {"key": quote_plus(key, safe="/"), "sequencer": f"{sequencer:016X}"}
    if created:
        of_object |= {"size": 1000, "eTag": etag}
        if sha256 is not None:
            of_object["userMetadata"] = {"source-sha256": sha256}
    if version is not None:
        of_object["versionId"] = version
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "us-east-1",
        "eventTime": "2026-11-16T01:02:03.456Z",
        "eventName": event,
        "userIdentity": {"principalId": "AWS:AIDAEXAMPLE"},
        "requestParameters": {"sourceIPAddress": "192.0.2.7"},
        "responseElements": {"x-amz-request-id": "C3D13FE58DE4C810", "x-amz-id-2": "FMyUVURIY8"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "files",
            "bucket": {"name": bucket, "ownerIdentity": {"principalId": "A3NL1KOZZKExample"}, "arn": f"arn:aws:s3:::{bucket}"},
            "object": of_object,
        },
        **changes,
    }


def event(*records: dict[str, Any]) -> str:
    return json.dumps({"Records": records or [record()]})


TEST_EVENT = json.dumps(
    {
        "Service": "Amazon S3",
        "Event": "s3:TestEvent",
        "Time": "2026-11-16T01:02:03.456Z",
        "Bucket": BUCKET,
        "RequestId": "5582815E1AEA5ADF",
        "HostId": "8cLeGAmw098X5cv4Zkwcmo8vvZa3eH3e",
    }
)


@dataclass
class Topic:
    """An installation that the registry trusts: its certificate, its signature, and the page that confirms subscriptions."""

    url: str
    asked: list[str] = field(default_factory=list)
    status: int = 200
    """Of every answer."""

    @property
    def certificate_url(self) -> str:
        return f"{self.url}/SimpleNotificationService-{sns_messages.HEX}.pem"

    def message(self, text: str, **changes: Any) -> dict[str, Any]:
        """A notification, with an id of its own, signed."""
        said = {"Message": text, "TopicArn": TOPIC, "MessageId": str(uuid.uuid4()), "SigningCertURL": self.certificate_url}
        return sns_messages.notification(**{**said, **changes})

    def confirmation(self, **changes: Any) -> dict[str, Any]:
        token = "ab" * 64
        said = {
            "TopicArn": TOPIC,
            "MessageId": str(uuid.uuid4()),
            "SigningCertURL": self.certificate_url,
            "Token": token,
            "SubscribeURL": f"{self.url}/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token={token}",
        }
        return sns_messages.confirmation(**{**said, **changes})


@contextmanager
def trusted_topic() -> Iterator[Topic]:
    pem = sns_messages.certificate("127.0.0.1", sns_messages.key())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            topic.asked.append(self.path)
            body = pem if self.path.endswith(".pem") else b"<ConfirmSubscriptionResponse/>"
            self.send_response_only(topic.status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    topic = Topic(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield topic
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Answer:
    status: int
    body: dict[str, Any]

    @property
    def error(self) -> str:
        return str(self.body.get("error", ""))


def post(url: str, message: dict[str, Any] | bytes, **headers: str) -> Answer:
    """As SNS posts: JSON that says it is text."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    request = urllib.request.Request(url, body, {"content-type": "text/plain; charset=UTF-8", **headers}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Answer(answer.status, json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, json.loads(error.read() or b"{}"))


@dataclass
class Webhook:
    url: str
    log_file: Path
    process: subprocess.Popen[bytes]

    def post(self, message: dict[str, Any] | bytes, **headers: str) -> Answer:
        return post(f"{self.url}/api/sns", message, **headers)

    @property
    def log(self) -> str:
        return self.log_file.read_text()


def allowlist(topics: tuple[str, ...] = (TOPIC,), buckets: tuple[str, ...] = (BUCKET,)) -> str:
    return json.dumps({"sns_topics": topics, "s3_buckets": buckets})


@contextmanager
def files_webhook(database_url: str, folder: Path, trusted: str, **environment: str) -> Iterator[Webhook]:
    """`tidings consume files`, as an operator starts it."""
    port = free_port()
    settings = {
        "TIDINGS_DATABASE__URL": database_url,
        "TIDINGS_FILES__PORT": str(port),
        "TIDINGS_API__METRICS": "loopback",
        "TIDINGS_FILES__TRUSTED": json.dumps([trusted]),
        "AWS_RESOURCE_CONFIG": allowlist(),
        **environment,
    }
    log_file = folder / f"files-{port}.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidings", "consume", "files"], env={**os.environ, **settings}, stdout=log, stderr=log
        )
    webhook = Webhook(f"http://127.0.0.1:{port}", log_file, process)
    try:
        wait_until_ready(webhook)
        yield webhook
    finally:
        process.terminate()
        process.wait(120)


def wait_until_ready(webhook: Webhook) -> None:
    until_started(webhook.process, lambda: answers(f"{webhook.url}/-/ready"), lambda: webhook.log)


def add_atlas(database: psycopg.Connection, network: str = "gut", short_name: str = "Gut", version: str = "1.0") -> Any:
    overview = json.dumps({"network": network, "shortName": short_name, "version": version})
    [(found,)] = database.execute("insert into hat.atlases (overview) values (%s) returning id", [overview])
    return found


def rows(database: psycopg.Connection, *columns: str) -> list[tuple[Any, ...]]:
    """Of the registry, ordered by key, sequencer and version."""
    named = ", ".join(columns)
    return database.execute(f"select {named} from hat.files order by key, sequencer, version_id".encode()).fetchall()


def everything(database: psycopg.Connection) -> list[tuple[Any, ...]]:
    """What a test compares to see that nothing has changed, or that two registries are the same."""
    columns = (
        "bucket, key, version_id, etag, size_bytes, sequencer, event_name, event_time, file_type, atlas_id, source_study_id, "
        "is_latest, sha256_client, sha256_server, integrity_status"
    )
    return [
        *database.execute(f"select {columns} from hat.files order by bucket, key, version_id".encode()),
        *database.execute("select bucket, key, version_id, sequencer, is_marker from hat.removals order by 1, 2, 3"),
    ]
