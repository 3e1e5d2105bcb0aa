"""Traffic for the end-to-end tests: writers who note what was acknowledged, a collector of events, a verdict on both.

The table `changes` is the truth. A request that was answered must be in it; one that was not (the server was killed) may be.
Whatever is in it, and is wanted by a rule, must arrive, and nothing else may.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import md5
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus, urlsplit

import grpc
import psycopg
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from google.api_core.exceptions import AlreadyExists
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.scheduler import ThreadScheduler
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

import canary
from conftest import Running

PROJECT = "tidings-test"
PROGRAMS = Path(sys.executable).parent
"""Where `tidings` and `aws` are: in the virtual environment that runs the tests."""


def seeded() -> int:
    """A new seed for each run, or the one in SEED: every fault test prints the one it had."""
    return int(os.environ.get("SEED") or random.SystemRandom().randrange(2**32))


def until(condition: Callable[[], Any], seconds: float, what: str, every: float = 0.05) -> Any:
    """Wait until the condition holds, and return what it said."""
    deadline = time.monotonic() + seconds
    while not (said := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(every)
    return said


def tidings(*arguments: str, clear: Sequence[str] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, with these variables and without those of `clear`."""
    kept = {name: value for name, value in os.environ.items() if name not in clear}
    done = subprocess.run(
        [PROGRAMS / "tidings", *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "create" not in arguments and "restrict" not in arguments:  # these show a new key's secret, once
        canary.seen(done.stdout, done.stderr)
    return done


# The caller: one signed request after the other over one connection, a tenth of boto3's cost.


class _Signer(S3SigV4Auth):
    """botocore's own signer, with a clock of ours."""

    def __init__(self, credentials: Credentials, region: str, at: datetime | None) -> None:
        super().__init__(credentials, "s3", region)
        self._at = at

    def _modify_request_before_signing(self, request: AWSRequest) -> None:
        if self._at is not None:
            request.context["timestamp"] = self._at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        super()._modify_request_before_signing(request)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def request_id(self) -> str:
        return self.headers["x-amz-request-id"]


class Caller:
    """`target` is the path, already percent-encoded, and the query. Raises OSError where no answer came."""

    def __init__(self, ready: dict[str, Any]) -> None:
        self._ready = ready
        self._connection: http.client.HTTPConnection | None = None

    def call(
        self, method: str, target: str, body: bytes = b"", *, at: datetime | None = None, secret: str | None = None
    ) -> Answer:
        request = AWSRequest(method, self._ready["s3"] + target, data=body)
        credentials = Credentials(self._ready["access_key_id"], secret or self._ready["secret_access_key"])
        _Signer(credentials, self._ready["region"], at).add_auth(request)
        return self.send(method, target, body, dict(request.headers.items()))

    def send(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Answer:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(urlsplit(self._ready["s3"]).netloc, timeout=60)
        try:
            self._connection.request(method, target, body, headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ConnectionError(f"{method} {target}: {error}") from error
        canary.answered(response.getheaders(), content)
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, content)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


# The writers.


@dataclass(frozen=True, slots=True)
class Write:
    """A change that was acknowledged: in the order of its key, for each key has one writer only."""

    bucket: str
    key: str
    event: str
    etag: str | None
    request_id: str
    began: float
    seconds: float


class Writers:
    """Threads that put, overwrite and delete under a few keys, so that the order of each key matters.

    Every key belongs to one thread, which knows what is there: it deletes only what exists, so every acknowledged write is
    a change. After a request without an answer it does not know, and puts.
    """

    def __init__(
        self, ready: dict[str, Any], buckets: Sequence[str], seed: int, *, threads: int = 3, keys: int = 48, pace: float = 0.1
    ) -> None:
        self.acknowledged: list[Write] = []
        self.refused: list[str] = []
        self.unanswered = 0
        self.present: dict[tuple[str, str], bytes | None] = {}
        """What is under each key: its bytes, or None where it was deleted. A key whose last request got no answer is absent."""
        self._ready = ready
        self._buckets = buckets
        self._pace = pace
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed}/{number}"), number, range(number, keys, threads)))
            for number in range(threads)
        ]

    @contextmanager
    def writing(self) -> Iterator[Writers]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def since(self, moment: float, bucket: str) -> list[Write]:
        return [write for write in list(self.acknowledged) if write.bucket == bucket and write.began >= moment]

    def _run(self, chance: random.Random, number: int, keys: Sequence[int]) -> None:
        caller = Caller(self._ready)
        count = 0
        while not self._stop.is_set():
            count += 1
            bucket, key = chance.choice(self._buckets), f"key/{chance.choice(keys):03}"
            deleting = self.present.get((bucket, key)) is not None and chance.random() < 0.2
            body = None if deleting else b"%d.%d " % (number, count) * chance.randrange(1, 20)
            if not self._write(caller, bucket, key, body):
                self._stop.wait(0.05)
            self._stop.wait(self._pace * chance.uniform(0.5, 1.5))
        caller.close()

    def _write(self, caller: Caller, bucket: str, key: str, body: bytes | None) -> bool:
        """Put the body, or delete where it is None. Returns whether that was acknowledged."""
        known = self.present.pop((bucket, key), None)
        method = "DELETE" if body is None else "PUT"
        began = time.time()
        try:
            answer = caller.call(method, f"/{bucket}/{key}", body or b"")
        except ConnectionError:
            with self._lock:
                self.unanswered += 1
            return False
        seconds = time.time() - began
        with self._lock:
            if answer.status not in (200, 204):
                self.refused.append(f"{answer.status} {answer.body!r}")
                if answer.status < 500:
                    self.present[bucket, key] = known
                return False
            self.present[bucket, key] = body
            event = "ObjectRemoved:Delete" if body is None else "ObjectCreated:Put"
            etag = None if body is None else md5(body).hexdigest()
            self.acknowledged.append(Write(bucket, key, event, etag, answer.request_id, began, seconds))
        return True


# The collector.


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message as Google's client handed it over. `publish` is Pub/Sub's own id of the publication."""

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
    record: dict[str, Any]
    attributes: dict[str, str]

    @property
    def request_id(self) -> str:
        said: str = self.record["responseElements"]["x-amz-request-id"]
        return said


class Collector:
    """Streaming pulls with one thread each, so that the order of arrival is that of Pub/Sub."""

    def __init__(self, address: str) -> None:
        self.arrivals: list[Arrival] = []
        self.tests: list[dict[str, Any]] = []
        self._publications: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._channel = grpc.insecure_channel(address)
        self._subscriber = pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=self._channel))
        self._publisher = pubsub_v1.PublisherClient(transport=PublisherGrpcTransport(channel=self._channel))
        self._pulls: list[Any] = []

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
        scheduler = ThreadScheduler(ThreadPoolExecutor(max_workers=1))
        self._pulls.append(
            self._subscriber.subscribe(subscription, lambda message: self._take(topic, message), scheduler=scheduler)
        )
        return f"arn:gcp:pubsub::{PROJECT}:{topic}"

    def _take(self, topic: str, message: Any) -> None:
        now = time.time()
        canary.seen(message.data, str(dict(message.attributes)))
        body = json.loads(message.data)
        with self._lock:
            again = (topic, message.message_id) in self._publications  # Pub/Sub gave it twice: that is not our duplicate
            self._publications.add((topic, message.message_id))
            if not again and "Records" not in body:
                self.tests.append(body)
            elif not again:
                (record,) = body["Records"]
                self.arrivals.append(_arrival(topic, message, now, record))
        message.ack()

    def close(self) -> None:
        for pull in self._pulls:
            pull.cancel()
            pull.result(timeout=10)
        self._channel.close()

    def of(self, topic: str) -> list[Arrival]:
        return [arrival for arrival in list(self.arrivals) if arrival.topic == topic]

    def event(self, request_id: str, seconds: float = 30) -> Arrival:
        """The event of one request, waited for."""
        found: Arrival = until(
            lambda: next((arrival for arrival in list(self.arrivals) if arrival.request_id == request_id), None),
            seconds,
            f"the event of request {request_id}",
        )
        return found

    def ids(self) -> set[str]:
        return {arrival.id for arrival in list(self.arrivals)}


def _arrival(topic: str, message: Any, now: float, record: dict[str, Any]) -> Arrival:
    s3 = record["s3"]
    return Arrival(
        topic,
        message.message_id,
        message.attributes["id"],
        now,
        s3["bucket"]["name"],
        unquote_plus(s3["object"]["key"]),
        record["eventName"],
        s3["object"].get("size"),
        s3["object"].get("eTag"),
        s3["object"]["sequencer"],
        record,
        dict(message.attributes),
    )


@contextmanager
def collecting(stack: Running) -> Iterator[Collector]:
    collector = Collector(stack.ready["pubsub"])
    try:
        yield collector
    finally:
        collector.close()


def send_events(stack: Running, collector: Collector, bucket: str, topic: str | None = None) -> None:
    """A new bucket whose changes all go to the topic, by default one of its own name."""
    arn = collector.listen(topic or bucket)
    rule = {"Id": bucket, "TopicArn": arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}
    s3 = stack.s3()
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [rule]})


# The verdict.


@dataclass(slots=True)
class Verdict:
    """Figures, and every case that must not be."""

    seed: int
    acknowledged: int = 0
    unanswered: int = 0
    changes: int = 0
    arrived: int = 0
    duplicates: int = 0
    lost: list[Any] = field(default_factory=list)
    phantom: list[Any] = field(default_factory=list)
    inversions: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.acknowledged} acknowledged, {self.unanswered} unanswered, {self.changes} changes, "
            f"{self.arrived} events, {len(self.lost)} lost, {len(self.phantom)} phantom, {len(self.inversions)} inversions, "
            f"{self.duplicates} duplicates"
        )


_CHANGES = """
    select id, bucket, key, event, size, etag, seq, request_id, rules from changes where bucket = any(%s) order by seq
"""


def changes(database: str, buckets: Sequence[str]) -> list[Any]:
    with psycopg.connect(database, autocommit=True) as connection:
        return list(connection.cursor(row_factory=psycopg.rows.namedtuple_row).execute(_CHANGES, [list(buckets)]))


def _wanted(rows: Sequence[Any]) -> dict[str, Any]:
    """The message id of everything that must arrive."""
    return {f"{row.id}.{rule}": row for row in rows if row.rules is not None for rule in row.rules.split(",")}


def all_arrived(database: str, collector: Collector, buckets: Sequence[str], seconds: float = 120) -> None:
    """Wait until every change that a rule wants has arrived; if that takes too long the verdict says what is lost."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and _wanted(changes(database, buckets)).keys() - collector.ids():
        time.sleep(0.2)


def verdict(database: str, collector: Collector, writers: Writers, buckets: Sequence[str], seed: int) -> Verdict:
    rows = changes(database, buckets)
    wanted = _wanted(rows)
    arrivals = [arrival for arrival in list(collector.arrivals) if arrival.bucket in buckets]
    found = Verdict(seed, len(writers.acknowledged), writers.unanswered, len(wanted))
    found.lost += _not_stored(writers.acknowledged, rows)
    first: dict[str, Arrival] = {}
    for arrival in arrivals:
        if arrival.id not in wanted or _differs(arrival, wanted[arrival.id]):
            found.phantom.append(arrival)
        first.setdefault(arrival.id, arrival)
    found.lost += [row for id_, row in wanted.items() if id_ not in first]
    found.arrived, found.duplicates = len(first), len(arrivals) - len(first)
    newest: dict[tuple[str, str, str], str] = defaultdict(str)
    for arrival in first.values():
        place = arrival.topic, arrival.bucket, arrival.key
        if arrival.sequencer <= newest[place]:
            found.inversions.append(arrival)
        newest[place] = max(newest[place], arrival.sequencer)
    print(found)
    return found


def _not_stored(acknowledged: Sequence[Write], rows: Sequence[Any]) -> list[Write]:
    """Writes that were acknowledged and are not in the log as they were made, in the order of their key."""
    by_request = {row.request_id: row for row in rows}
    last: dict[tuple[str, str], int] = defaultdict(int)
    missing = []
    for write in acknowledged:
        row = by_request.get(write.request_id)
        said = (write.bucket, write.key, write.event, write.etag)
        if row is None or said != (row.bucket, row.key, row.event, row.etag) or row.seq <= last[row.bucket, row.key]:
            missing.append(write)
        else:
            last[row.bucket, row.key] = row.seq
    return missing


def _differs(arrival: Arrival, row: Any) -> bool:
    said = (arrival.bucket, arrival.key, arrival.event, arrival.size, arrival.etag, arrival.sequencer)
    return said != (row.bucket, row.key, row.event, row.size, row.etag, f"{row.seq:016X}")


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]
