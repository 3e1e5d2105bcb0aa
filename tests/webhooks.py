"""A webhook for tests: a real HTTP server that remembers what it was sent, and answers as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from waiting import PATIENCE_SECONDS


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def envelope(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0


class Webhook:
    def __init__(self, port: int) -> None:
        self.port = port
        self.answer: Callable[[Received], Answer] = lambda _: Answer()
        self.received: list[Received] = []
        self.connections = 0
        self._changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def take(self, received: Received) -> Answer:
        with self._changed:
            self.received.append(received)
            self._changed.notify_all()
        return self.answer(received)

    def wait(self, wanted: Callable[[Received], bool], seconds: float = PATIENCE_SECONDS) -> Received:
        """The first request that is wanted, also one that has come already."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                for each in self.received:
                    if wanted(each):
                        return each
                left = deadline - time.monotonic()
                assert left > 0, f"not among {[each.headers for each in self.received]}"
                self._changed.wait(left)

    def confirmation(self, path: str = "/hook", type_: str = "SubscriptionConfirmation") -> Received:
        return self.wait(lambda each: each.path == path and each.headers.get("x-amz-sns-message-type") == type_)


@contextmanager
def webhook() -> Iterator[Webhook]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            hook.connections += 1
            super().setup()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = hook.take(Received(self.path, headers, body))
            time.sleep(answer.delay)
            try:
                self.send_response_only(answer.status)
                for name, value in {"content-length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)
            except OSError:  # whoever called waits no longer
                self.close_connection = True

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    hook = Webhook(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
