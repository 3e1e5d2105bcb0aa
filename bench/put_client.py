"""The writer of put_with_eventing, a process of its own: one line of JSON in for each phase, one out.

It keeps its connections open and every connection busy. Requests are signed before the clock starts; what is left to do
for each is a send, a receive and a look at the status, so the server is what is measured.
"""

from __future__ import annotations

import json
import selectors
import sys
import time
from itertools import count
from typing import Any

from bench.put import Signer, refusal


class Client:
    def __init__(self, signer: Signer, connections: int) -> None:
        self._signer = signer
        self._numbers = count()  # no key twice: a key's row is a lock
        self._selector = selectors.DefaultSelector()
        for _ in range(connections):
            self._selector.register(signer.connect(), selectors.EVENT_READ)

    def run(self, bucket: str, prefix: str, seconds: float, most: int) -> dict[str, Any]:
        """As many PUTs as the server answers in `seconds`, `most` at most."""
        requests = [self._signer.put(bucket, f"{prefix}{next(self._numbers):09}.bin") for _ in range(most)]
        cpu, began = time.process_time(), time.perf_counter()
        until = began + seconds
        for key in self._selector.get_map().values():
            key.fileobj.sendall(requests.pop())
        under_way, done, ended = len(self._selector.get_map()), 0, began
        while under_way:
            for key, _ in self._selector.select(30) or sys.exit("no answer for 30 s"):
                if said := refusal(key.fileobj.recv(65536)):
                    sys.exit(f"a PUT was refused: {said}")
                ended = time.perf_counter()
                done += 1
                if ended < until and requests:
                    key.fileobj.sendall(requests.pop())
                else:
                    under_way -= 1
        took = ended - began
        return {"puts": done, "seconds": took, "cpu": time.process_time() - cpu, "ran_out": not requests}


def main() -> None:
    setup = json.loads(sys.stdin.readline())
    client = Client(Signer.of(setup["ready"]), setup["connections"])
    for line in sys.stdin:
        print(json.dumps(client.run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
