"""The client of the figures about small objects, a process of its own: one line of JSON in for each phase, one out.

It keeps its connections open and every connection busy. Requests are signed before the clock starts; what is left to do
for each is a send, a receive and a look at the answer, so the server is what is measured.
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
from bench.requests import BODY, Refused, Signer, missing, receive

CONNECTIONS = 16
_ANSWER_SECONDS = 30.0


class _Client:
    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._numbers = {"PUT": count(), "GET": count()}
        self._answers = {signer.connect(): bytearray() for _ in range(CONNECTIONS)}
        self._selector = selectors.DefaultSelector()
        for connection in self._answers:
            self._selector.register(connection, selectors.EVENT_READ, connection)

    def run(
        self, method: Literal["PUT", "GET"], bucket: str, prefix: str, keys: int, seconds: float, most: int
    ) -> dict[str, Any]:
        """As many requests as the server answers in `seconds`, `most` at most, over this many keys, one after the other."""
        sign = self._signer.put if method == "PUT" else self._signer.get
        names = (f"{prefix}{next(self._numbers[method]) % keys:09}.bin" for _ in range(most))
        requests = [sign(bucket, name) for name in names]
        requests.reverse()
        cpu, began = time.process_time(), time.perf_counter()
        until, ended = began + seconds, began
        for connection in self._answers:
            connection.sendall(requests.pop())
        under_way, done = len(self._answers), 0
        while under_way:
            for connection in self._ready():
                if not self._answered(connection, method):
                    continue
                ended = time.perf_counter()
                done += 1
                if ended < until and requests:
                    connection.sendall(requests.pop())
                else:
                    under_way -= 1
        return {"done": done, "seconds": ended - began, "cpu": time.process_time() - cpu, "ran_out": not requests}

    def _answered(self, connection: socket.socket, method: str) -> bool:
        answer = self._answers[connection]
        answer += receive(connection)
        if missing(bytes(answer)) != 0:
            return False
        if method == "GET" and not answer.endswith(BODY):
            raise Refused("The body is not the one that was written.")
        answer.clear()
        return True

    def _ready(self) -> list[socket.socket]:
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
