"""put_vs_moto and get_vs_moto: small objects, against the S3 server that people start in their tests.

The same requests to both, in pairs: 1 KiB, signed beforehand, every connection busy, and kept open where the server keeps it
(moto's closes each). moto holds everything in the memory of one process, checks no signature and appends no change.
Tidings runs as `tidings up` starts it, with PostgreSQL, fsync and an idle stream.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

from bench.client import CONNECTIONS, Client
from bench.measure import Bar, CannotMeasure, Figure, Progress, interleaved, ratios
from bench.requests import BODY, Signer, await_answer
from bench.stack import bucket, running
from tidings.local.processes import die_with_parent, free_port

NAMES = ("put_vs_moto", "get_vs_moto")
_BAR = Bar(">=", 5)
_BUCKET, _PREFIX = "small", "data/"
_KEYS = 500
"""So many objects are read, in turn."""
_REQUESTS: dict[str, tuple[Literal["PUT", "GET"], str, int]] = {
    "put_vs_moto": ("PUT", "new/", 10**9),  # no key twice
    "get_vs_moto": ("GET", _PREFIX, _KEYS),
}
_MOST_PER_SECOND = 8000
_START_SECONDS = 30.0


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    with ExitStack() as open_now:
        servers = {"tidings": open_now.enter_context(running(progress)).ready, "moto": open_now.enter_context(_moto(progress))}
        clients = {}
        for way, ready in servers.items():
            bucket(ready, _BUCKET)
            clients[way] = Client(ready, seconds=1.0 if quick else 2.0, most_per_second=_MOST_PER_SECOND)
            open_now.callback(clients[way].close)
            _fill(ready)
        for name in NAMES:
            if name in names:
                yield _figure(name, clients, 3 if quick else 11, progress)


def _fill(ready: dict[str, Any]) -> None:
    """The objects that GET asks for."""
    signer = Signer.of(ready)
    for number in range(_KEYS):
        with signer.connect() as connection:
            connection.sendall(signer.put(_BUCKET, f"{_PREFIX}{number:09}.bin"))
            await_answer(connection)


def _figure(name: str, clients: dict[str, Client], pairs: int, progress: Progress) -> Figure:
    method, prefix, keys = _REQUESTS[name]
    used = dict.fromkeys(clients, 0.0)

    def phase(way: str) -> float:
        done = clients[way].run(method, _BUCKET, prefix, keys)
        used[way] = done["cpu"] / done["seconds"]
        return done["done"] / done["seconds"]

    rates = interleaved({way: partial(phase, way) for way in clients}, pairs, 1, progress)
    said = ", ".join(f"{way} {min(values):.0f} to {max(values):.0f} a second" for way, values in rates.items())
    busy = ", ".join(f"{share:.0%} of a core at {way}" for way, share in used.items())
    note = f"{said}; {method}, {len(BODY)} bytes, {CONNECTIONS} connections; the client took {busy}"
    return Figure.median(name, ratios(rates["tidings"], rates["moto"]), _BAR, "x", note)


@contextmanager
def _moto(progress: Progress) -> Iterator[dict[str, Any]]:
    """moto's server, as its documentation starts it."""
    progress("starting moto")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent())
    try:
        _wait(process, port)
        yield {
            "s3": f"http://127.0.0.1:{port}",
            "region": "us-east-1",
            "access_key_id": "AKIAIOSFODNN7EXAMPLE",
            "secret_access_key": os.urandom(20).hex(),
        }
    finally:
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise CannotMeasure("moto's server did not start.") from None
            time.sleep(0.1)
