"""The body of a request as it arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

from tidings.api.limits import LimitSettings
from tidings.errors import CallerError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_DRAIN_BYTES = 8 * 1024 * 1024
_DRAIN_SECONDS = 5.0
_BUSY_DRAIN_SECONDS = 0.5
_BUSY = (429, 503)
"""Who sends too much is answered at once."""
_DEFAULTS = LimitSettings()


def _announced(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """How many bytes will come; None where that is open. The server has refused a length that is not a number."""
    announced: int | None = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            announced = int(value)
    return announced


class Incoming(Protocol):
    """Bytes on their way in: the body of a request, or the file of a form in it."""

    @property
    def ended(self) -> bool: ...

    async def next(self) -> bytes: ...


class Body:
    """`ended` says that nothing more will come: the length was announced and has arrived, or the last piece has."""

    def __init__(
        self,
        receive: Receive,
        headers: Sequence[tuple[bytes, bytes]],
        limits: LimitSettings = _DEFAULTS,
        seconds: float | None = None,
    ) -> None:
        self._receive = receive
        self._limits = limits
        self._seconds = limits.body_seconds if seconds is None else seconds
        """For the whole of it."""
        self._until: float | None = None
        self._waited = 0.0
        self._came = 0
        self._left = _announced(headers)
        self._waits = any(name == b"expect" for name, _ in headers)
        self.unread = self._waits
        """Whether the client waits for 100-continue and will not get it, because nothing was read."""
        self._coming: asyncio.Future[MutableMapping[str, Any]] | None = None
        self.ended = self._left == 0

    async def next(self) -> bytes:
        """The next piece. A client that goes away, or sends nothing for too long, has not sent a whole body."""
        self.unread = False
        message = await self._message()
        if message["type"] != "http.request":
            self.ended = True
            raise CallerError("IncompleteBody", "The connection was closed before the whole body had come.")
        piece: bytes = message.get("body", b"")
        self._came += len(piece)
        if self._left is not None:
            self._left -= len(piece)
        self.ended = self._left == 0 or not message.get("more_body", False)
        # The server takes in the next piece while this one is worked on.
        self._coming = None if self.ended else asyncio.ensure_future(self._receive())
        return piece

    async def _message(self) -> MutableMapping[str, Any]:
        """The next message, if the body keeps its least rate. Only time spent waiting for the client counts against it."""
        coming = self._coming = self._coming or asyncio.ensure_future(self._receive())
        limits, started = self._limits, time.monotonic()
        self._until = self._until or started + self._seconds
        while True:
            left = min(limits.idle_seconds - self._waited, self._until - started)
            await asyncio.wait((coming,), timeout=max(left, 0))
            now = time.monotonic()
            self._waited, started = self._waited + now - started, now
            if now >= self._until:
                raise self._give_up(f"The body did not come within {self._seconds:g} s: send less at once.")
            if self._waited >= limits.idle_seconds:
                if self._came < limits.least_rate * limits.idle_seconds and not coming.done():
                    sentence = f"In {limits.idle_seconds:g} s only {self._came} bytes of the body came: send it again, faster."
                    raise self._give_up(sentence)
                self._waited, self._came = 0.0, 0
            if coming.done():
                return coming.result()

    def _give_up(self, sentence: str) -> CallerError:
        """Nothing more is waited for, also not by `drain`."""
        self.close()
        self.ended = True
        return CallerError("RequestTimeout", sentence)

    def close(self) -> None:
        """Nothing more is wanted."""
        if self._coming is not None:
            self._coming.cancel()

    async def drain(self, status: int = 400) -> None:
        """Take in the rest of a body that was refused, within limits.

        The server closes a connection on which something is left unread, and a client that is still sending then may
        see the reset instead of the answer. Only who waits for 100-continue with a lot to send is answered at once: to
        read is to tell it to start. (With less to send it is told so: botocore waits for one second and sends anyway.)
        """
        left = _DRAIN_BYTES
        if self._waits and (self._left is None or self._left > left):
            return
        try:
            async with asyncio.timeout(_BUSY_DRAIN_SECONDS if status in _BUSY else _DRAIN_SECONDS):
                while not self.ended and left > 0:
                    left -= len(await self.next())
        except (TimeoutError, CallerError):
            return
