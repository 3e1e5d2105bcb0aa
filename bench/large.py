"""large_put_vs_file and large_get_vs_file: 64 MiB through the store, against the same bytes in a file on the same disk.

The file is written in pieces of 1 MiB, synced, and its folder too; the store does that as well, and takes the body's SHA-256
and MD5 on the way. For reading, the kernel is told to forget both files first, so that either comes from the disk.
What reading gives from the kernel's memory is in the note.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from bench.measure import Bar, CannotMeasure, Figure, Progress, interleaved, ratios
from bench.requests import Signer, await_answer, missing
from bench.stack import Stack, bucket, running

NAMES = ("large_put_vs_file", "large_get_vs_file")
_BAR = Bar(">=", 0.4)
_SIZE = 64 << 20
_PIECE = 1 << 20
_BUCKET = "large"
_BODY = os.urandom(_PIECE) * (_SIZE // _PIECE)


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    pairs = 5 if quick else 21
    with running(progress) as stack:
        bucket(stack.ready, _BUCKET)
        large = _Large(stack)
        try:
            if "large_put_vs_file" in names:
                ways = {"file": large.write_file, "put": large.put, "unsigned": large.put_unsigned}
                rates = interleaved(ways, pairs, 2, progress)
                unsigned = statistics.median(ratios(rates.pop("unsigned"), rates["file"]))
                note = f"written and synced; with a body that is not signed, as clients send it over TLS, {unsigned:.2f}"
                yield _figure("large_put_vs_file", rates, note)
            if "large_get_vs_file" in names:
                large.write_file()
                large.put()
                warm = interleaved({"file": large.read_file, "get": large.get}, pairs, 2, progress)
                cold = interleaved({"file": large.cold(large.read_file), "get": large.cold(large.get)}, pairs, 2, progress)
                note = f"from the disk; from the kernel's memory {_said(warm)}, {statistics.median(_ratios(warm)):.2f}"
                yield _figure("large_get_vs_file", cold, note)
        finally:
            large.close()


def _ratios(rates: dict[str, list[float]]) -> list[float]:
    store = next(way for way in rates if way != "file")
    return ratios(rates[store], rates["file"])


def _said(rates: dict[str, list[float]]) -> str:
    return ", ".join(
        f"{way} {statistics.median(values):.0f} MiB/s ({min(values):.0f} to {max(values):.0f})" for way, values in rates.items()
    )


def _figure(name: str, rates: dict[str, list[float]], note: str) -> Figure:
    return Figure.median(name, _ratios(rates), _BAR, "", f"{_said(rates)}; {_SIZE >> 20} MiB, {note}")


class _Large:
    """The ways to move the bytes; each returns MiB a second."""

    def __init__(self, stack: Stack) -> None:
        self._signer = Signer.of(stack.ready)
        self._connection = self._signer.connect()
        self._folder = stack.data
        self._file = self._folder / "bench-file"
        self._buffer = bytearray(_SIZE + 4096)

    def close(self) -> None:
        self._connection.close()

    def write_file(self) -> float:
        view = memoryview(_BODY)
        began = time.perf_counter()
        temporary = self._file.with_suffix(".new")
        with temporary.open("wb", buffering=0) as file:
            for at in range(0, _SIZE, _PIECE):
                file.write(view[at : at + _PIECE])
            os.fsync(file.fileno())
        temporary.rename(self._file)
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return _rate(began)

    def read_file(self) -> float:
        view = memoryview(self._buffer)
        began = time.perf_counter()
        with self._file.open("rb", buffering=0) as file:
            at = 0
            while got := file.readinto(view[at : at + _PIECE]):
                at += got
        rate = _rate(began)
        if at != _SIZE:
            raise CannotMeasure("The file is not whole.")
        return rate

    def put(self) -> float:
        return self._put(self._signer.head("PUT", _BUCKET, "object", _BODY))

    def put_unsigned(self) -> float:
        return self._put(self._signer.head("PUT", _BUCKET, "object", _BODY, "UNSIGNED-PAYLOAD"))

    def _put(self, request: bytes) -> float:
        began = time.perf_counter()
        self._connection.sendall(request)
        self._connection.sendall(_BODY)
        await_answer(self._connection)
        return _rate(began)

    def get(self) -> float:
        request = self._signer.get(_BUCKET, "object")
        view = memoryview(self._buffer)
        began = time.perf_counter()
        self._connection.sendall(request)
        at = self._connection.recv_into(view)
        while (left := missing(bytes(view[:at]))) is None:
            at += self._connection.recv_into(view[at:])
        while left:
            got = self._connection.recv_into(view[at:], left)
            if not got:
                raise CannotMeasure("The connection was closed in the middle of the object.")
            at, left = at + got, left - got
        rate = _rate(began)
        if bytes(view[at - _SIZE : at]) != _BODY:
            raise CannotMeasure("The object is not what was written.")
        return rate

    def cold(self, read: Callable[[], float]) -> Callable[[], float]:
        """The same after the kernel has been told to forget every file in the folder."""

        def cold() -> float:
            for path in (self._file, *(self._folder / "blobs").rglob("*")):
                if path.is_file():
                    descriptor = os.open(path, os.O_RDONLY)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(descriptor)
            return read()

        return cold


def _rate(began: float) -> float:
    return (_SIZE >> 20) / (time.perf_counter() - began)
