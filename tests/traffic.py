"""Traffic for the end-to-end tests: writers who note what was acknowledged, a collector of events, a verdict on both.

The table `changes` is the truth. A request that was answered must be in it; one that was not (the server was killed) may be.
Whatever is in it, and is wanted by a rule, must arrive, and nothing else may.
"""

from __future__ import annotations

import http.client
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import md5
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

import canary
from arrivals import Arrival, Collector
from conftest import Running
from waiting import PATIENCE_SECONDS

PROGRAMS = Path(sys.executable).parent
"""Where `tidings` and `aws` are: in the virtual environment that runs the tests."""


def seeded() -> int:
    """A new seed for each run, or the one in SEED: every fault test prints the one it had."""
    return int(os.environ.get("SEED") or random.SystemRandom().randrange(2**32))


def tidings(*arguments: str, clear: Sequence[str] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, with these variables and without those of `clear`."""
    kept = {name: value for name, value in os.environ.items() if name not in clear}
    done = subprocess.run(
        [PROGRAMS / "tidings", *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=300,
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
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        at: datetime | None = None,
        secret: str | None = None,
    ) -> Answer:
        request = AWSRequest(method, self._ready["s3"] + target, data=body, headers=headers)
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
    a change. After a request without an answer it does not know, and puts. `pace` is the time from one write of a thread to
    its next, however long a write takes.
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
        count, due = 0, time.monotonic()
        while not self._stop.is_set():
            count += 1
            bucket, key = chance.choice(self._buckets), f"key/{chance.choice(keys):03}"
            deleting = self.present.get((bucket, key)) is not None and chance.random() < 0.2
            body = None if deleting else b"%d.%d " % (number, count) * chance.randrange(1, 20)
            if not self._write(caller, bucket, key, body):
                self._stop.wait(0.05)
            due += self._pace * chance.uniform(0.5, 1.5)
            late = time.monotonic() - due
            due += late if late > 1 else 0  # what was not written in a bad moment is not made up for
            self._stop.wait(-late)
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
    duplicates_at: Counter[str] = field(default_factory=Counter)
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
    select id, bucket, key, event, size, etag, seq, at, request_id, rules from changes where bucket = any(%s) order by seq
"""


def changes(database: str, buckets: Sequence[str]) -> list[Any]:
    with psycopg.connect(database, autocommit=True) as connection:
        return list(connection.cursor(row_factory=psycopg.rows.namedtuple_row).execute(_CHANGES, [list(buckets)]))


def _wanted(rows: Sequence[Any]) -> dict[str, Any]:
    """The message id of everything that must arrive."""
    return {f"{row.id}.{rule}": row for row in rows if row.rules is not None for rule in row.rules.split(",")}


def all_arrived(database: str, collector: Collector, buckets: Sequence[str], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until every change that a rule wants has arrived; if that takes too long the verdict says what is lost."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and _wanted(changes(database, buckets)).keys() - collector.ids():
        time.sleep(0.5)


def verdict(database: str, collector: Collector, writers: Writers, buckets: Sequence[str], seed: int) -> Verdict:
    rows = changes(database, buckets)
    wanted = _wanted(rows)
    arrivals = [arrival for arrival in list(collector.arrivals) if arrival.bucket in buckets]
    found = Verdict(seed, len(writers.acknowledged), writers.unanswered, len(wanted))
    found.duplicates_at.update(arrival.topic for arrival in arrivals)
    found.lost += _not_stored(writers.acknowledged, rows)
    first: dict[str, Arrival] = {}
    for arrival in arrivals:
        if arrival.id not in wanted or _differs(arrival, wanted[arrival.id]):
            found.phantom.append(arrival)
        first.setdefault(arrival.id, arrival)
    found.lost += [row for id_, row in wanted.items() if id_ not in first]
    found.duplicates_at.subtract(arrival.topic for arrival in first.values())
    found.arrived, found.duplicates = len(first), len(arrivals) - len(first)
    found.inversions += _inversions([each for each in first.values() if each.topic not in collector.unordered])
    found.inversions += _stale([each for each in first.values() if each.topic in collector.unordered], rows)
    print(found)
    return found


def _inversions(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Those that came after a later one of their key."""
    newest: dict[tuple[str, str, str], str] = defaultdict(str)
    found = []
    for arrival in arrivals:
        place = arrival.topic, arrival.bucket, arrival.key
        if arrival.sequencer <= newest[place]:
            found.append(arrival)
        newest[place] = max(newest[place], arrival.sequencer)
    return found


def _stale(arrivals: Sequence[Arrival], rows: Sequence[Any]) -> list[Arrival]:
    """What who sorts by sequencer holds in the end for the state of a key, where the last change of the key says another."""
    last = {(row.bucket, row.key): row for row in rows if row.rules is not None}
    held = {(each.topic, each.bucket, each.key): each for each in sorted(arrivals, key=lambda each: each.sequencer)}
    return [each for each in held.values() if _differs(each, last[each.bucket, each.key])]


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
