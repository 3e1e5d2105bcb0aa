"""A tenant that behaves well: 20 requests a second, whatever happens to them, half of them on connections of their own.

Half of its objects are in rows, half on the server's disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from s3_server import Server, request

RATE = 20
_THREADS = 24
BUCKET, KEY, CONTENT = "well-behaved", "small", b"of interest" * 100
LARGE_KEY, LARGE = "large", b"of interest" * 1000
"""More than is kept in a row: it is on the server's disk."""


class Tenant:
    """`took` has the seconds from when a request was due to its whole answer."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = server.client(max_pool_connections=_THREADS, connect_timeout=60, read_timeout=60)
        self.took: list[float] = []
        self.failed: list[str] = []
        self._client.create_bucket(Bucket=BUCKET)
        self._client.put_object(Bucket=BUCKET, Key=KEY, Body=CONTENT)
        self._client.put_object(Bucket=BUCKET, Key=LARGE_KEY, Body=LARGE)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Requests go out for as long as the block lasts; behind it all have their answer."""
        self.took, self.failed = [], []
        over = threading.Event()
        with ThreadPoolExecutor(_THREADS + 1) as threads:
            pacing = threads.submit(self._pace, threads, over)
            try:
                yield
            finally:
                over.set()
                pacing.result()

    def until(self, number: int) -> None:
        while len(self.took) < number:
            time.sleep(0.05)

    def percentile(self, part: float) -> float:
        return sorted(self.took)[min(int(len(self.took) * part), len(self.took) - 1)]

    def _pace(self, threads: ThreadPoolExecutor, over: threading.Event) -> None:
        started, number = time.monotonic(), 0
        while not over.wait(max(started + number / RATE - time.monotonic(), 0)):
            threads.submit(self._ask, number, started + number / RATE)
            number += 1

    def _ask(self, number: int, due: float) -> None:
        key, content = (KEY, CONTENT) if number // 4 % 2 else (LARGE_KEY, LARGE)
        try:
            if number % 4 == 0:
                self._client.put_object(Bucket=BUCKET, Key=f"{key}-{number % 100}", Body=content)
            elif number % 4 == 1:
                assert self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read() == content
            else:
                answer = request(self._server, "GET", f"/{BUCKET}/{key}")
                assert (answer.status, answer.body) == (200, content), answer
        except Exception as error:
            self.failed.append(f"{number} after {time.monotonic() - due:.2f} s: {error!r}")
        self.took.append(time.monotonic() - due)
