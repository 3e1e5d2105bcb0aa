"""What the tests of the upload registry have in common: an API, the bucket and the queue, and who stands for the stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import psycopg
from s3_server import Server
from sqs_clients import sqs

import canary
from tidings.access import api_keys
from tidings.access.macaroons import Caveat
from tidings.access.permissions import ACTIONS
from tidings.access.projects import create_project
from tidings.consumers.uploads.consuming import Consumer, Tally
from tidings.consumers.uploads.init import init
from tidings.local.processes import free_port
from tidings.settings import Settings
from waiting import until

GOLDEN = Path(__file__).parent.parent / "golden" / "r2"


@dataclass
class Place:
    """One server, with a bucket and queues of the test's own."""

    server: Server
    bucket: str
    environment: dict[str, str]
    api_key: str = field(repr=False)
    _consumer: Consumer | None = field(default=None, repr=False)

    def settings(self, **uploads: Any) -> Settings:
        own = {
            "endpoint": self.server.endpoint,
            "access_key_id": self.server.access_key_id,
            "secret": self.server.secret,
            "bucket": self.bucket,
            "queue": self.queue,
            "batch_seconds": 0,
        }
        return Settings(database={"url": self.server.database_url}, uploads={**own, **uploads})

    @property
    def queue(self) -> str:
        return f"{self.bucket}-notifications"

    @cached_property
    def sqs(self) -> Any:
        return sqs(self.server)

    @cached_property
    def s3(self) -> Any:
        return self.server.client()

    def url(self, queue: str = "") -> str:
        return f"{self.server.endpoint}/{self.server.project}/{queue or self.queue}"

    @property
    def letters(self) -> str:
        return f"{self.queue}-dlq"

    def consumer(self, **uploads: Any) -> Consumer:
        return Consumer(self.settings(**uploads))

    def consume(self, messages: int = 1, **uploads: Any) -> Tally:
        """Batches until so many messages were taken, or there is none."""
        if uploads:
            consumer = self.consumer(**uploads)
        else:
            consumer = self._consumer = self._consumer or self.consumer()
        done = Tally()
        while done.total() < messages and (batch := consumer.batch(0)):
            done += batch
        if uploads:
            consumer.close()
        return done

    def drain(self) -> Tally:
        consumer = self.consumer()
        try:
            return consumer.work(60, once=True)
        finally:
            consumer.close()

    def clean(self) -> None:
        """Nothing in the registry, and nothing in any queue."""
        with psycopg.connect(self.server.database_url, autocommit=True) as connection:
            connection.execute("truncate upload_registry")
            connection.execute("delete from queue_messages")

    def put(self, key: str, content: bytes = b"x", **more: Any) -> None:
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=content, **more)

    def upload(self, organisation: str, name: str, content: bytes = b"x") -> str:
        """As the front does it; returns the key."""
        key = f"{organisation}/{name}"
        self.put(key, content, Metadata={"organizationId": organisation, "name": name})
        return key

    def notify(self, *keys: str, golden: str = "put") -> None:
        """In place of the stream, with the very messages that it renders."""
        for key in keys:
            body = json.loads((GOLDEN / f"{golden}.json").read_text())
            body["bucket"], body["object"]["key"] = self.bucket, key
            self.send(json.dumps(body))

    def send(self, body: str) -> None:
        self.sqs.send_message(QueueUrl=self.url(), MessageBody=body)

    def rows(self) -> dict[tuple[str, str], datetime]:
        found = self.server.query("select organisation, name, created_at from upload_registry")
        assert len({(row[0], row[1]) for row in found}) == len(found)
        return {(row[0], row[1]): row[2] for row in found}

    def waiting(self, queue: str = "") -> int:
        """Messages in a queue, in flight or not."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url(queue), AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)


def place(server: Server, bucket: str) -> Place:
    """A bucket and queues as `tidings uploads init` makes them; the test event is in the queue."""
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        made = api_keys.create(connection, server.project)
    canary.plant(server.database_url)
    found = Place(server, bucket, {}, made.api_key)
    init(found.settings())
    found.environment = {
        **os.environ,
        "TIDINGS_DATABASE__URL": server.database_url,
        "TIDINGS_UPLOADS__ENDPOINT": server.endpoint,
        "TIDINGS_UPLOADS__ACCESS_KEY_ID": server.access_key_id,
        "TIDINGS_UPLOADS__SECRET": server.secret,
        "TIDINGS_UPLOADS__BUCKET": found.bucket,
        "TIDINGS_UPLOADS__QUEUE": found.queue,
        "TIDINGS_UPLOADS__BATCH_SECONDS": "0",
        "TIDINGS_API__WORKERS": "1",
    }
    return found


def key_for(server: Server, name: str = "", *actions: str, limit: Caveat | None = None) -> tuple[str, str]:
    """A project and an API key of it: of the server's own project, or of a new one of this name."""
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        project = create_project(connection, name) if name else server.project
        made = api_keys.create(connection, project, actions or ACTIONS, limit or Caveat())
    canary.plant(server.database_url)
    return project, made.api_key


@contextmanager
def front(of: Place, folder: Path, **environment: str) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    """`tidings uploads serve` as a process of its own, and a client with the place's key."""
    port = free_port()
    settings = {**of.environment, "TIDINGS_UPLOADS__PORT": str(port), **environment}
    log = folder / "front.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "tidings", "uploads", "serve"]
        process = subprocess.Popen(command, env=settings, stdout=out, stderr=out)
    base = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{base}/-/ready", timeout=5).close()
            return True
        except OSError:
            return False

    def see(answer: httpx.Response) -> None:
        canary.answered(answer.headers, answer.read())

    try:
        until(is_ready, "the front is ready")
        headers = {"authorization": f"Bearer {of.api_key}"}
        with httpx.Client(base_url=base, headers=headers, timeout=60, event_hooks={"response": [see]}) as client:
            yield client, process
    finally:
        process.terminate()
        process.wait(120)
