"""The body of a request as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tidings.errors import CallerError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

STALL_SECONDS = 60.0
_DRAIN_BYTES = 1024 * 1024
_DRAIN_SECONDS = 5.0


class Body:
    """`ended` says that nothing more will come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.ended = False

    async def next(self) -> bytes:
        """The next piece. A client that goes away, or sends nothing for too long, has not sent a whole body."""
        try:
            async with asyncio.timeout(STALL_SECONDS):
                message = await self._receive()
        except TimeoutError:
            sentence = f"Nothing of the body came for {STALL_SECONDS:.0f} s: send it again."
            raise CallerError("RequestTimeout", sentence) from None
        if message["type"] != "http.request":
            self.ended = True
            raise CallerError("IncompleteBody", "The connection was closed before the whole body had come.")
        self.ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    async def drain(self) -> None:
        """Take in the rest of a body that was refused, within limits.

        A client that is still sending when the connection is closed may see that instead of the answer.
        """
        left = _DRAIN_BYTES
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while not self.ended and left > 0:
                    left -= len(await self.next())
        except (TimeoutError, CallerError):
            return
