"""A digest that is computed beside whoever takes the bytes in, on another processor."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from tidings.access.checksums import Running

_BATCH = 256 * 1024

_threads = ThreadPoolExecutor(thread_name_prefix="digest")  # none is started before it is needed


class Beside:
    """Another digest, fed by a thread: a batch is computed while the next one comes.

    At most one batch is under way, so memory stays bounded: who is faster than the digest waits for it. What is smaller
    than a batch sees no thread at all.
    """

    def __init__(self, digest: Running) -> None:
        self._digest = digest
        self._pieces: list[bytes] = []
        self._gathered = 0
        self._under_way: Future[None] | None = None

    def update(self, data: bytes, /) -> None:
        self._pieces.append(data)
        self._gathered += len(data)
        if self._gathered >= _BATCH:
            self._wait()
            self._under_way = _threads.submit(self._digest.update, self._taken())

    def digest(self) -> bytes:
        """Of everything so far; more may follow."""
        self._wait()
        self._digest.update(self._taken())
        return self._digest.digest()

    def _taken(self) -> bytes:
        batch = b"".join(self._pieces)
        self._pieces.clear()
        self._gathered = 0
        return batch

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None
