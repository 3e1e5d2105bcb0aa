"""A webhook that takes its time, a process of its own: every POST is answered with 200, so many seconds after it has come.

It does the least that HTTP asks for, so that it is not what is measured. A GET is answered at once, with what has come so far:
the number of POSTs, how many different messages they were, and the most that were under way at once.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.request import urlopen

from bench.measure import CannotMeasure
from tidings.local.processes import die_with_parent, end

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ID = re.compile(rb"\r\nx-amz-sns-message-id: *([^\r]+)", re.IGNORECASE)
_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class _Taken:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.posts = 0
        self.ids: set[bytes] = set()
        self.under_way = self.most = 0


class _Connection(asyncio.Protocol):
    def __init__(self, taken: _Taken) -> None:
        self._taken = taken
        self._come = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._come += data
        head, blank, rest = self._come.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not blank or len(rest) < (int(length[1]) if length else 0):
            return
        self._come = b""
        if head.startswith(b"GET"):
            taken = self._taken
            body = json.dumps([taken.posts, len(taken.ids), taken.most]).encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            return
        self._taken.posts += 1
        self._taken.under_way += 1
        self._taken.most = max(self._taken.most, self._taken.under_way)
        if (id_ := _ID.search(head)) is not None:
            self._taken.ids.add(id_[1])
        asyncio.get_running_loop().call_later(self._taken.seconds, self._answer)

    def _answer(self) -> None:
        self._taken.under_way -= 1
        self._transport.write(_OK)


@dataclass(frozen=True)
class Endpoint:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def taken(self) -> tuple[int, int, int]:
        """POSTs, different messages, the most under way at once; all since it was started."""
        with urlopen(self.url, timeout=30) as answer:  # noqa: S310 our own listener
            posts, messages, most = json.load(answer)
        return posts, messages, most


@contextmanager
def running(seconds: float) -> Iterator[Endpoint]:
    command = [sys.executable, "-m", "bench.endpoint", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=die_with_parent()) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise CannotMeasure("The endpoint did not start.")
            yield Endpoint(int(line))
        finally:
            end(process, 5)


async def _main(seconds: float) -> None:
    taken, stop = _Taken(seconds), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await loop.create_server(lambda: _Connection(taken), "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stop.wait()


if __name__ == "__main__":
    asyncio.run(_main(float(sys.argv[1])))
