"""A Pub/Sub server in one process, for Google's own clients: point PUBSUB_EMULATOR_HOST at it.

It speaks `google.pubsub.v1` over gRPC and keeps Google's promises where a publisher or a consumer can tell: names,
limits and statuses, at-least-once delivery with deadlines, order within an ordering key. Messages live in memory only:
when the process ends they are gone. What it does not have (push, filters, dead letters, snapshots) it refuses;
only `max_outstanding_bytes` of a stream goes unheeded: the number of messages alone bounds what is out.

`python -m tidings.local.pubsub --port 8085` runs it; `running()` runs it inside a test. Faults: `tidings.local.faults`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio

from tidings.errors import OperatorError
from tidings.local.faults import Fault, check_topic, get_stats, set_fault
from tidings.local.pubsub_broker import Broker

__all__ = ["PubSubServer", "get_stats", "main", "running", "set_fault"]


class PubSubServer:
    """The broker behind a port. It outlives `stop`: started again, it has the messages it had."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.address = ""
        self._server: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listens and returns the port; 0 asks for any free one."""
        options = [
            # A request that is too large is told Google's limit, not gRPC's.
            ("grpc.max_receive_message_length", -1),
            # Two servers on one port would each get a share of the calls.
            ("grpc.so_reuseport", 0),
            # Google's client pings a quiet stream more often than gRPC puts up with by default.
            ("grpc.http2.max_ping_strikes", 0),
        ]
        self._loop = asyncio.get_running_loop()
        self._server = grpc.aio.server(handlers=self.broker.handlers(), options=options)
        try:
            bound: int = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise OperatorError(f"Cannot listen on {host}:{port}. Choose another port; 0 takes any.") from error
        await self._server.start()
        self.address = f"{host}:{bound}"
        return bound

    async def stop(self) -> None:
        """Gives calls under way a moment, then ends them: streams and hanging calls would never end by themselves."""
        if self._server is not None:
            await self._server.stop(grace=0.1)

    def set_fault(self, topic: str, fault: str | None, *, seconds: float = 0.0, after: int = 0) -> None:
        """As `faults.set_fault`, from any thread of the server's own process. Calls made after this one meet it."""
        if self._loop is None:
            raise OperatorError("The server has not been started. Start it before setting a fault.")
        check_topic(topic)
        if fault is None:
            self._loop.call_soon_threadsafe(self.broker.faults.lift, topic)
        else:
            self._loop.call_soon_threadsafe(self.broker.faults.put, Fault(topic, fault, seconds, after))

    def stats(self) -> dict[str, dict[str, int]]:
        return self.broker.faults.stats()


@contextmanager
def running(host: str = "127.0.0.1", port: int = 0) -> Iterator[PubSubServer]:
    """A server in a thread with an event loop of its own, for as long as the block lasts."""
    server = PubSubServer()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="pubsub", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(host, port), loop).result()
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def main(port: int, host: str = "127.0.0.1") -> None:
    """Serves until SIGTERM or SIGINT. One line of JSON on stdout tells the port."""

    async def serve() -> None:
        server, told_to_stop = PubSubServer(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
        print(json.dumps({"port": await server.start(host, port)}), flush=True)
        await told_to_stop.wait()
        await server.stop()

    asyncio.run(serve())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A Pub/Sub server in memory, for tests and development.")
    parser.add_argument("--port", type=int, default=8085, help="0 takes any free one (default: 8085, as Google's)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    arguments = parser.parse_args()
    main(arguments.port, arguments.host)
