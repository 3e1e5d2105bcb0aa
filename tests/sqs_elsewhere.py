"""A stand-in for an SQS that is not ours: it speaks just enough of the JSON protocol, and fails as it is told."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Elsewhere:
    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.refusal: tuple[int, str, dict[str, str]] | None = None
        """The status and the code of every answer, and further headers of it."""
        self.failed: dict[str, tuple[str, bool]] = {}
        """Bodies that fail alone: their code, and whether the sender is to blame."""
        self.document: Any = None
        """What every call is answered with, in place of what became of its messages."""
        self.silent = threading.Event()
        self.taken: Callable[[str, dict[str, Any]], None] = lambda _url, _entry: None
        """Told of each message that is accepted, and of its queue's URL, before the answer."""
        self.endpoint = ""

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        successful, failed = [], []
        for entry in asked["Entries"]:
            if entry["MessageBody"] in self.failed:
                code, blame = self.failed[entry["MessageBody"]]
                failed.append({"Id": entry["Id"], "Code": code, "SenderFault": blame, "Message": "as it was told"})
                continue
            self.received.append(entry)
            self.taken(asked["QueueUrl"], entry)
            md5 = hashlib.md5(entry["MessageBody"].encode()).hexdigest()
            successful.append({"Id": entry["Id"], "MessageId": str(uuid.uuid4()), "MD5OfMessageBody": md5})
        return {"Successful": successful, "Failed": failed}


@contextmanager
def sqs_elsewhere() -> Iterator[Elsewhere]:
    state = Elsewhere()
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            state.requests.append({**asked, "target": self.headers["x-amz-target"]})
            while state.silent.is_set() and not over.wait(0.05):
                pass
            if state.refusal is None:
                self._answer(200, state.answer(asked) if state.document is None else state.document, {})
            else:
                status, code, headers = state.refusal
                error = {"__type": f"com.amazonaws.sqs#{code}", "message": "as it was told"}
                self._answer(status, error, {"x-amzn-query-error": f"{code};Sender", **headers})

        def _answer(self, status: int, document: Any, headers: dict[str, str]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            for name, value in {
                "content-length": str(len(body)),
                "content-type": "application/x-amz-json-1.0",
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        over.set()
        server.shutdown()
        server.server_close()
