"""The writer of put_with_eventing, a process of its own: one line of JSON in for each phase, one out.

It keeps its connections open and every connection busy. Requests are signed before the clock starts; what is left to do
for each is a send, a receive and a look at the status, so the server is what is measured.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from itertools import count
from typing import Any

from bench.put import Signer, refusal

_ANSWER_SECONDS = 30.0


class Client:
    def __init__(self, signer: Signer, connections: int) -> None:
        self._signer = signer
        self._numbers = count()  # no key twice: a key's row is a lock
        self._connections = [signer.connect() for _ in range(connections)]
        self._selector = selectors.DefaultSelector()
        for connection in self._connections:
            self._selector.register(connection, selectors.EVENT_READ, connection)

    def run(self, bucket: str, prefix: str, seconds: float, most: int) -> dict[str, Any]:
        """As many PUTs as the server answers in `seconds`, `most` at most."""
        requests = [self._signer.put(bucket, f"{prefix}{next(self._numbers):09}.bin") for _ in range(most)]
        cpu, began = time.process_time(), time.perf_counter()
        until, ended = began + seconds, began
        for connection in self._connections:
            connection.sendall(requests.pop())
        under_way, done = len(self._connections), 0
        while under_way:
            for connection in self._answered():
                if said := refusal(connection.recv(65536)):
                    sys.exit(f"a PUT was refused: {said}")
                ended = time.perf_counter()
                done += 1
                if ended < until and requests:
                    connection.sendall(requests.pop())
                else:
                    under_way -= 1
        return {"puts": done, "seconds": ended - began, "cpu": time.process_time() - cpu, "ran_out": not requests}

    def _answered(self) -> list[socket.socket]:
        ready = self._selector.select(_ANSWER_SECONDS)
        if not ready:
            sys.exit(f"no answer for {_ANSWER_SECONDS:g} s")
        return [key.data for key, _ in ready]


def main() -> None:
    setup = json.loads(sys.stdin.readline())
    client = Client(Signer.of(setup["ready"]), setup["connections"])
    for line in sys.stdin:
        print(json.dumps(client.run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
