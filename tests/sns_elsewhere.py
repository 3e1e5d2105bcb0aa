"""A stand-in for an SNS that is not ours: it speaks just enough of the query protocol, and fails as it is told."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

_NAMESPACE = "http://sns.amazonaws.com/doc/2010-03-31/"


class Elsewhere:
    def __init__(self) -> None:
        self.received: list[dict[str, str]] = []
        """The fields of each message that was taken, without the beginning of their names."""
        self.refusal: tuple[int, str] | None = None
        """The status and the code of every answer."""
        self.failed: dict[str, tuple[str, bool]] = {}
        """Messages that fail alone: their code, and whether the sender is to blame."""
        self.result = ""
        """What every call is answered with, in place of what became of its messages."""
        self.silent = threading.Event()
        self.endpoint = ""

    def answer(self, asked: dict[str, str]) -> str:
        successful, failed = "", ""
        number = 1
        while f"PublishBatchRequestEntries.member.{number}.Id" in asked:
            start = f"PublishBatchRequestEntries.member.{number}."
            entry = {name.removeprefix(start): value for name, value in asked.items() if name.startswith(start)}
            if entry["Message"] in self.failed:
                code, blame = self.failed[entry["Message"]]
                said = f"<Code>{code}</Code><SenderFault>{str(blame).lower()}</SenderFault><Message>as it was told</Message>"
                failed += f"<member><Id>{entry['Id']}</Id>{said}</member>"
            else:
                self.received.append({**entry, "TopicArn": asked["TopicArn"]})
                successful += f"<member><Id>{entry['Id']}</Id><MessageId>{uuid.uuid4()}</MessageId></member>"
            number += 1
        parts = f"<Successful>{successful}</Successful><Failed>{failed}</Failed>"
        result = f"<PublishBatchResult>{self.result or parts}</PublishBatchResult>"
        return f'<PublishBatchResponse xmlns="{_NAMESPACE}">{result}</PublishBatchResponse>'


def attributes_of(entry: dict[str, str]) -> dict[str, str]:
    """The attributes of a message that was received."""
    found, number = {}, 1
    while (name := f"MessageAttributes.entry.{number}.Name") in entry:
        found[entry[name]] = entry[f"MessageAttributes.entry.{number}.Value.StringValue"]
        number += 1
    return found


@contextmanager
def sns_elsewhere() -> Iterator[Elsewhere]:
    state = Elsewhere()
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = dict(parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode(), keep_blank_values=True))
            while state.silent.is_set() and not over.wait(0.05):
                pass
            status, document = 200, ""
            if state.refusal is None:
                document = state.answer(asked)
            else:
                status, code = state.refusal
                error = f"<Error><Type>Sender</Type><Code>{escape(code)}</Code><Message>as it was told</Message></Error>"
                document = f'<ErrorResponse xmlns="{_NAMESPACE}">{error}</ErrorResponse>'
            self.send_response(status)
            self.send_header("content-length", str(len(document.encode())))
            self.send_header("content-type", "text/xml")
            self.end_headers()
            self.wfile.write(document.encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield state
    finally:
        over.set()
        server.shutdown()
        server.server_close()
