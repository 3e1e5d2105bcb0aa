"""Clients that take up connections and give nothing for it: idle ones, trickling ones, slow readers. In a process of its own.

The process gets a plan as a line of JSON, prints a line when every connection has been opened once, and reports when its
input ends. Who is sent away comes back, at a pace: an attack that connects as fast as it can is one on the kernel.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

_TICK_SECONDS = 0.1
_OPENING_SECONDS = 4
_COMING_BACK_SECONDS = 20
_SEEN = 4096
_NO_PORT_YET = 24
"""IP_BIND_ADDRESS_NO_PORT of linux/in.h: a port is taken when it is known to whom."""
_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET


@dataclass
class Plan:
    """`head` is sent at once on each connection, then a byte of `drip` every second; what is answered is left unread."""

    port: int
    connections: int
    addresses: int = 40
    head: str = ""
    drip: str = ""


@dataclass
class Report:
    """`most` were open at once. `answers` has a count by status and error code."""

    opened: int = 0
    most: int = 0
    closed: int = 0
    failed: int = 0
    answers: dict[str, int] = field(default_factory=Counter)


class Flood:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._epoll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        self._started: set[int] = set()
        self._answered: set[int] = set()
        self._due = deque(range(plan.connections))
        self.report = Report()

    def run(self, is_over: Callable[[], bool], ready: Callable[[], None]) -> None:
        pace, allowed, dripped = self._plan.connections / _OPENING_SECONDS, 0.0, time.monotonic()
        while not is_over():
            started = time.monotonic()
            allowed = min(allowed + pace * _TICK_SECONDS, pace)
            while allowed >= 1 and self._due:
                allowed -= 1
                self._connect(self._due.popleft())
            if self.report.opened + self.report.failed == self._plan.connections and pace > 0 and ready:
                ready()
                ready = None  # type: ignore[assignment]
                pace = self._plan.connections / _COMING_BACK_SECONDS
            if self._plan.drip and started - dripped >= 1:
                dripped = started
                for number in list(self._started - self._answered):
                    self._send(number, self._plan.drip)
            while (left := _TICK_SECONDS - (time.monotonic() - started)) > 0:
                for number, events in self._epoll.poll(left):
                    self._look(number, events)
            self.report.most = max(self.report.most, len(self._open))

    def _connect(self, slot: int) -> None:
        client = socket.socket()
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setsockopt(socket.IPPROTO_IP, _NO_PORT_YET, 1)
        client.bind((f"127.0.1.{1 + slot % self._plan.addresses}", 0))
        client.connect_ex(("127.0.0.1", self._plan.port))
        self._open[client.fileno()] = client
        self._epoll.register(client.fileno(), _EVENTS)
        self.report.opened += 1

    def _look(self, number: int, events: int) -> None:
        client = self._open.get(number)
        if client is None:
            return
        if events & select.EPOLLOUT and number not in self._started:
            self._started.add(number)
            self._send(number, self._plan.head)
        if events & select.EPOLLIN and number not in self._answered and number in self._open:
            self._see(number, client)
        if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            self._close(number)

    def _see(self, number: int, client: socket.socket) -> None:
        """The answer stays where it is: only its beginning is looked at."""
        try:
            seen = client.recv(_SEEN, socket.MSG_PEEK)
        except OSError:
            seen = b""
        if not seen:
            return
        status = seen[9:12].decode()
        code = seen.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()
        if status >= "300" and not code and b"\r\n\r\n" not in seen.removesuffix(b"\r\n\r\n"):
            return  # the body is still coming
        self._answered.add(number)
        self.report.answers[f"{status} {code}".strip()] += 1
        if status >= "300":
            self._close(number)

    def _send(self, number: int, text: str) -> None:
        try:
            self._open[number].send(text.encode("latin-1"))
        except BlockingIOError:
            pass
        except OSError:
            self._close(number)

    def _close(self, number: int) -> None:
        client = self._open.pop(number, None)
        if client is None:
            return
        client.close()
        self._started.discard(number)
        self._answered.discard(number)
        self._due.append(number)
        self.report.closed += 1


@contextmanager
def flooding(plan: Plan) -> Iterator[Report]:
    """The flood is on for as long as the block lasts; the report is filled in behind it."""
    command = [sys.executable, __file__]
    report = Report()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(plan)) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        try:
            yield report
        finally:
            process.stdin.close()
            said: dict[str, Any] = json.loads(process.stdout.readline())
            vars(report).update(said)


def _main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    flood = Flood(Plan(**json.loads(sys.stdin.readline())))
    flood.run(lambda: bool(select.select([0], [], [], 0)[0]), lambda: print("ready", flush=True))
    print(json.dumps(vars(flood.report)), flush=True)


if __name__ == "__main__":
    _main()
