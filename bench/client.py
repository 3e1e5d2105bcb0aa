"""The client of the figures about small objects, a process of its own: one line of JSON in for each phase, one out.

It keeps every connection busy, and open as long as the server lets it. Requests are signed before the clock starts; what
is left to do for each is a send, a receive and a look at the answer, so the server is what is measured.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from itertools import count
from typing import Any, Literal

from bench.measure import CannotMeasure
from bench.requests import BODY, Refused, Signer, closes, missing, receive

CONNECTIONS = 16
_ANSWER_SECONDS = 30.0


class _Line:
    """One connection, opened again where the server has closed it, and the answer that comes on it."""

    def __init__(self, signer: Signer, selector: selectors.BaseSelector) -> None:
        self._signer = signer
        self._selector = selector
        self._connection: socket.socket | None = None
        self._answer = bytearray()

    def send(self, request: bytes) -> None:
        if self._connection is None:
            self._connection = self._signer.connect()
            self._selector.register(self._connection, selectors.EVENT_READ, self)
        self._connection.sendall(request)

    def answered(self, expected: bytes) -> bool:
        """Take in what has come; whether that was the end of the answer."""
        assert self._connection is not None
        self._answer += receive(self._connection)
        answer = bytes(self._answer)
        if missing(answer) != 0:
            return False
        if not answer.endswith(expected):
            raise Refused("The body is not the one that was written.")
        if closes(answer):
            self._selector.unregister(self._connection)
            self._connection.close()
            self._connection = None
        self._answer.clear()
        return True


class _Client:
    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._numbers = {"PUT": count(), "GET": count()}
        self._selector = selectors.DefaultSelector()
        self._lines = [_Line(signer, self._selector) for _ in range(CONNECTIONS)]

    def run(
        self, method: Literal["PUT", "GET"], bucket: str, prefix: str, keys: int, seconds: float, most: int
    ) -> dict[str, Any]:
        """As many requests as the server answers in `seconds`, `most` at most, over this many keys, one after the other."""
        sign, expected = (self._signer.put, b"") if method == "PUT" else (self._signer.get, BODY)
        names = (f"{prefix}{next(self._numbers[method]) % keys:09}.bin" for _ in range(most))
        requests = [sign(bucket, name) for name in names]
        cpu, began = time.process_time(), time.perf_counter()
        until, ended = began + seconds, began
        for line in self._lines:
            line.send(requests.pop())
        under_way, done = len(self._lines), 0
        while under_way:
            for line in self._ready():
                if not line.answered(expected):
                    continue
                ended = time.perf_counter()
                done += 1
                if ended < until and requests:
                    line.send(requests.pop())
                else:
                    under_way -= 1
        return {"done": done, "seconds": ended - began, "cpu": time.process_time() - cpu, "ran_out": not requests}

    def _ready(self) -> list[_Line]:
        ready = self._selector.select(_ANSWER_SECONDS)
        if not ready:
            raise Refused(f"No answer for {_ANSWER_SECONDS:g} s.")
        return [key.data for key, _ in ready]


class Client:
    """That process, as a figure uses it. It ends when its input does."""

    def __init__(self, ready: dict[str, Any], seconds: float, most_per_second: int) -> None:
        self._seconds = seconds
        self._most = int(seconds * most_per_second)
        command = [sys.executable, "-m", "bench.client"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._send(ready)

    def _send(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def run(self, method: Literal["PUT", "GET"], bucket: str, prefix: str, keys: int) -> dict[str, float]:
        """One phase; `done`, `seconds` and `cpu` say what it took."""
        self._send(
            {"method": method, "bucket": bucket, "prefix": prefix, "keys": keys, "seconds": self._seconds, "most": self._most}
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise CannotMeasure("The client stopped; what it said is above.")
        done: dict[str, float] = json.loads(line)
        if done["ran_out"]:
            raise CannotMeasure(f"The client had signed {self._most} requests, which was not enough.")
        return done

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def main() -> None:
    client = _Client(Signer.of(json.loads(sys.stdin.readline())))
    try:
        for line in sys.stdin:
            print(json.dumps(client.run(**json.loads(line))), flush=True)
    except Refused as refused:
        sys.exit(str(refused))


if __name__ == "__main__":
    main()
