"""A TCP relay with a port that stays, between a client and a server that a test wants to be in trouble.

    with relay.running(("127.0.0.1", server_port)) as way:
        way.refuse()      # connections are refused, open ones are cut
        way.hang()        # connections are taken, nothing passes
        way.delay(30)     # everything passes so many seconds later
        way.cut()         # open connections are cut, once
        way.mend()

Of no use for Kafka, whose brokers tell clients their own ports; they have faults of their own (`tidings.local.kafka`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Relay:
    """Its methods may be called from any thread; when they return, what they say holds."""

    def __init__(self, target: tuple[str, int], loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._delay = 0.0
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def refuse(self) -> None:
        self._do(self._refuse())

    def hang(self) -> None:
        self._do(self._set(passing=False))

    def delay(self, seconds: float) -> None:
        self._do(self._set(delay=seconds))

    def cut(self) -> None:
        self._do(self._cut())

    def mend(self) -> None:
        self._do(self._mend())

    def _do(self, what: object) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(10)  # type: ignore[arg-type]

    async def listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _set(self, *, passing: bool = True, delay: float = 0.0) -> None:
        (self._passing.set if passing else self._passing.clear)()
        self._delay = delay

    async def _mend(self) -> None:
        await self._set()
        await self.listen()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open.add(far_writer)
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        for each in (writer, far_writer):
            self._open.discard(each)
            each.close()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """One direction, to its end; the end is passed on too."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1000)

        async def take() -> None:
            data = b"more"
            while data:
                try:
                    data = await source.read(65536)
                except OSError:
                    data = b""
                await under_way.put((self._loop.time() + self._delay, data))

        taking = asyncio.create_task(take())
        with contextlib.suppress(OSError):
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                await self._passing.wait()
                if not data:
                    sink.write_eof()
                    break
                sink.write(data)
                await sink.drain()
        taking.cancel()


@contextmanager
def running(target: tuple[str, int]) -> Iterator[Relay]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="relay", daemon=True)
    thread.start()
    relay = Relay(target, loop)
    try:
        asyncio.run_coroutine_threadsafe(relay.listen(), loop).result(10)
        yield relay
    finally:
        relay.refuse()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(120)
