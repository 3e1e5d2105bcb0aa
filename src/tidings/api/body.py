"""The body of a request as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

from tidings.errors import CallerError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

STALL_SECONDS = 60.0
_DRAIN_BYTES = 8 * 1024 * 1024
_DRAIN_SECONDS = 5.0


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

    def __init__(self, receive: Receive, headers: Sequence[tuple[bytes, bytes]], stall_seconds: float = STALL_SECONDS) -> None:
        self._receive = receive
        self._stall_seconds = stall_seconds
        self._left = _announced(headers)
        self._waits = any(name == b"expect" for name, _ in headers)
        self.unread = self._waits
        """Whether the client waits for 100-continue and will not get it, because nothing was read."""
        self._coming: asyncio.Future[MutableMapping[str, Any]] | None = None
        self.ended = self._left == 0

    async def next(self) -> bytes:
        """The next piece. A client that goes away, or sends nothing for too long, has not sent a whole body."""
        self.unread = False
        try:
            async with asyncio.timeout(self._stall_seconds):
                message = await (self._coming or self._receive())
        except TimeoutError:
            sentence = f"Nothing of the body came for {self._stall_seconds:.0f} s: send it again."
            raise CallerError("RequestTimeout", sentence) from None
        if message["type"] != "http.request":
            self.ended = True
            raise CallerError("IncompleteBody", "The connection was closed before the whole body had come.")
        piece: bytes = message.get("body", b"")
        if self._left is not None:
            self._left -= len(piece)
        self.ended = self._left == 0 or not message.get("more_body", False)
        # The server takes in the next piece while this one is worked on.
        self._coming = None if self.ended else asyncio.ensure_future(self._receive())
        return piece

    def close(self) -> None:
        """Nothing more is wanted."""
        if self._coming is not None:
            self._coming.cancel()

    async def drain(self) -> None:
        """Take in the rest of a body that was refused, within limits.

        The server closes a connection on which something is left unread, and a client that is still sending then may
        see the reset instead of the answer. Only who waits for 100-continue with a lot to send is answered at once: to
        read is to tell it to start. (With less to send it is told so: botocore waits for one second and sends anyway.)
        """
        left = _DRAIN_BYTES
        if self._waits and (self._left is None or self._left > left):
            return
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while not self.ended and left > 0:
                    left -= len(await self.next())
        except (TimeoutError, CallerError):
            return
