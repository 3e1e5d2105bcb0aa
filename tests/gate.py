"""An HTTP proxy that holds or fails chosen requests: a peer that hangs just where a test wants it to.

with gate.running(("127.0.0.1", server_port)) as way:
    way.choose = lambda request: "before" if request.method == "HEAD" else None
    way.held.wait(30)      # one is held
    way.release()  # or drop(): what is held is never passed on
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    target: str
    """Of AWS's JSON protocol: AmazonSQS.ReceiveMessage, for one."""


class Gate:
    """`choose` says what becomes of a request: "before" holds it, "after" passes it on and holds its answer, a number is the
    status that it fails with, None passes it."""

    def __init__(self) -> None:
        self.choose: Callable[[Request], str | int | None] = lambda _: None
        self.held = threading.Event()
        self.seen: list[Request] = []
        self._open = threading.Event()
        self._dropped = False
        self.endpoint = ""

    def hold(self) -> bool:
        """Whether it may pass in the end."""
        self.held.set()
        self._open.wait(120)
        return not self._dropped

    def release(self) -> None:
        self.choose = lambda _: None
        self._open.set()

    def drop(self) -> None:
        self._dropped = True
        self.release()


@contextmanager
def running(target: tuple[str, int]) -> Iterator[Gate]:
    gate = Gate()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            request = Request(self.command, self.path, self.headers.get("x-amz-target", ""))
            gate.seen.append(request)
            chosen = gate.choose(request)
            if isinstance(chosen, int):
                self._answer(chosen, [], b"")
                return
            if chosen == "before" and not gate.hold():
                self.close_connection = True
                return
            status, headers, content = self._asked(body)
            if chosen == "after":
                gate.hold()
            self._answer(status, headers, content)

        def _asked(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(*target, timeout=60)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    connection.putheader(name, value)  # with the host that was signed
            connection.endheaders(body)
            with contextlib.closing(connection):
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            with contextlib.suppress(OSError):  # whoever asked may be dead by now
                self.send_response_only(status)
                kept = [(name, value) for name, value in headers if name.lower() not in ("connection", "transfer-encoding")]
                for name, value in kept:
                    self.send_header(name, value)
                if not any(name.lower() == "content-length" for name, _ in kept):
                    self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _pass

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    gate.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield gate
    finally:
        gate.drop()
        server.shutdown()
        server.server_close()
