"""The workload of the circle: S3 operations of every kind in every versioning state, and uploads through their front.

Nobody's keys are his own, and what was not answered may have happened: in the end the store's listing is the truth. Only of
uploads more is known: of a name that one thread has to itself the last thing that was answered holds.
"""

from __future__ import annotations

import random
import re
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import md5, sha256
from itertools import count
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

import httpx

import canary
from traffic import Answer, Caller

KINDS = {"put": 36, "blob": 4, "copy": 8, "multipart": 5, "delete": 16, "version": 17, "many": 6, "versioning": 8}
NULL = "null"
_BLOB = 30_000
"""Bytes: too many to be kept in a row."""
_RETRY_SECONDS = 180.0


class Bucket:
    """`states` are those that its versioning is set to at random; `keys` are those that are written there."""

    def __init__(self, name: str, keys: Sequence[str], states: Sequence[str] = ()) -> None:
        self.name = name
        self.keys = keys
        self.states = states
        self.versions: dict[str, list[str]] = {key: [NULL] for key in keys}
        """Ids that were answered; some of them are gone."""


class Work:
    """Threads that do operations until they are told to stop; `done` counts what was answered."""

    def __init__(self, seed: int, pace: float) -> None:
        self.done: Counter[str] = Counter()
        self.unanswered = 0
        self._seed = seed
        self._pace = pace
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._runs: list[Callable[[random.Random], None]] = []
        self.failures: list[BaseException] = []

    @contextmanager
    def working(self) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._run, args=(run, random.Random(f"{self._seed}/{number}")))
            for number, run in enumerate(self._runs)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        if self.failures:
            raise self.failures[0]

    def _run(self, run: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            run(chance)
        except BaseException as error:
            self.failures.append(error)

    def _note(self, kind: str | None) -> None:
        """None: there was no answer."""
        with self._lock:
            if kind is None:
                self.unanswered += 1
            else:
                self.done[kind] += 1

    def _wait(self, chance: random.Random) -> None:
        self._stop.wait(self._pace * chance.uniform(0.5, 1.5))


class Operations(Work):
    """Operations of S3 in these buckets. A copy stays within a group of buckets: the files' keys have a form."""

    def __init__(
        self, ready: dict[str, Any], groups: Sequence[Sequence[Bucket]], seed: int, *, threads: int = 4, pace: float = 0.0
    ) -> None:
        super().__init__(seed, pace)
        self._ready = ready
        self._groups = groups
        self._runs = [self._operate] * threads

    def _operate(self, chance: random.Random) -> None:
        caller, kinds, weights = Caller(self._ready), list(KINDS), list(KINDS.values())
        while not self._stop.is_set():
            group = chance.choice(self._groups)
            bucket, [kind] = chance.choice(group), chance.choices(kinds, weights)
            try:
                answered = operate(caller, chance, kind, bucket, group)
            except ConnectionError:
                answered = False
            self._note(kind if answered else None)
            if not answered:
                self._stop.wait(0.05)
            self._wait(chance)
        caller.close()


def operate(caller: Caller, chance: random.Random, kind: str, bucket: Bucket, group: Sequence[Bucket]) -> bool:
    """Returns whether the store answered; what is not there, or is no longer there, is an answer."""
    if kind == "versioning" and not bucket.states:
        kind = "put"
    key = chance.choice(bucket.keys)
    where = f"/{bucket.name}/{quote(key)}"
    if kind in ("put", "blob"):
        body = chance.randbytes(_BLOB if kind == "blob" else chance.randrange(60))
        answer = caller.call("PUT", where, body, headers=_described(body))
    elif kind == "copy":
        source = chance.choice(group)
        named = quote(f"{source.name}/{chance.choice(source.keys)}")
        answer = caller.call("PUT", where, headers={"x-amz-copy-source": named})
    elif kind == "multipart":
        answer = _in_parts(caller, where, chance.randbytes(chance.randrange(1, 2000)))
    elif kind == "delete":
        answer = caller.call("DELETE", where)
    elif kind == "version":
        known = bucket.versions[key]
        answer = caller.call("DELETE", f"{where}?versionId={chance.choice(known[-4:])}")
    elif kind == "many":
        answer = _delete_many(caller, chance, bucket)
    else:
        status = f"<VersioningConfiguration><Status>{chance.choice(bucket.states)}</Status></VersioningConfiguration>"
        answer = caller.call("PUT", f"/{bucket.name}?versioning", status.encode())
    made = answer.headers.get("x-amz-version-id")
    if made is not None and kind != "version":
        bucket.versions[key].append(made)
    return answer.status < 500


def _described(body: bytes) -> dict[str, str]:
    return {"x-amz-meta-source-sha256": sha256(body).hexdigest(), "content-type": "application/x-hdf5"}


def _in_parts(caller: Caller, where: str, body: bytes) -> Answer:
    begun = caller.call("POST", f"{where}?uploads", headers=_described(body))
    found = re.search(rb"<UploadId>([^<]+)</UploadId>", begun.body)
    if found is None:
        return begun
    upload = found[1].decode()
    part = caller.call("PUT", f"{where}?partNumber=1&uploadId={upload}", body)
    if part.status != 200:
        return part
    parts = f"<Part><PartNumber>1</PartNumber><ETag>{escape(part.headers['etag'])}</ETag></Part>"
    whole = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"
    return caller.call("POST", f"{where}?uploadId={upload}", whole.encode())


def _delete_many(caller: Caller, chance: random.Random, bucket: Bucket) -> Answer:
    objects = ""
    for key in chance.sample(bucket.keys, 3):
        exact = chance.random() < 0.4
        version = f"<VersionId>{chance.choice(bucket.versions[key][-4:])}</VersionId>" if exact else ""
        objects += f"<Object><Key>{escape(key)}</Key>{version}</Object>"
    body = f"<Delete>{objects}</Delete>".encode()
    return caller.call("POST", f"/{bucket.name}?delete", body, headers={"content-md5": b64encode(md5(body).digest()).decode()})


class Uploads(Work):
    """Uploads and removals through the front. Some names belong to one thread, some are everybody's.

    A removal that was not answered is asked for again, as the front's guide says: the object may be gone and its row not.
    """

    def __init__(self, front: str, api_key: str, seed: int, *, threads: int = 2, pace: float = 0.0) -> None:
        super().__init__(seed, pace)
        self._front = front
        self._headers = {"authorization": f"Bearer {api_key}"}
        self._numbers = count()
        self._runs = [self._upload] * threads
        self.headed: set[str] = set()
        """Names that somebody asked for, answered or not."""
        self.posted: set[str] = set()
        self.removed: set[str] = set()
        """Names for which a removal was asked for, at any time."""
        self.last: dict[str, bool | None] = {}
        """Of names that one thread has to itself: whether it is there; None if nobody knows."""

    def _upload(self, chance: random.Random) -> None:
        own = f"{next(self._numbers)}"
        with httpx.Client(base_url=self._front, headers=self._headers, timeout=60, trust_env=False) as client:
            while not self._stop.is_set():
                shared = chance.random() < 0.3
                name = f"shared/{chance.randrange(6)}" if shared else f"report {own}-{chance.randrange(40)} ü.pdf"
                if chance.random() < 0.25:
                    self._remove(client, name, shared)
                else:
                    self._post(client, name, shared, chance.randbytes(chance.randrange(1, 5000)))
                self._wait(chance)

    def _post(self, client: httpx.Client, name: str, shared: bool, content: bytes) -> None:
        self.headed.add(name)
        answered = _answered(client, "POST", "/api/uploads", data={"name": name}, files={"file": ("f", content)})
        self._note("upload" if answered else None)
        if answered:
            self.posted.add(name)
        if not shared:
            self.last[name] = True if answered else None

    def _remove(self, client: httpx.Client, name: str, shared: bool) -> None:
        self.removed.add(name)
        deadline = time.monotonic() + _RETRY_SECONDS
        while not _answered(client, "DELETE", f"/api/uploads/{quote(name)}"):
            self._note(None)
            assert time.monotonic() < deadline, f"{name} could not be removed"
            time.sleep(0.2)
        self._note("removal")
        if not shared:
            self.last[name] = False


def _answered(client: httpx.Client, method: str, path: str, **more: Any) -> bool:
    try:
        answer = client.request(method, path, **more)
    except httpx.HTTPError:
        return False
    canary.answered(answer.headers, answer.content)
    assert answer.status_code in (200, 500, 502, 503, 504), answer.text
    return answer.status_code == 200
