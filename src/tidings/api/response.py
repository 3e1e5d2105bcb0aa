"""An answer, and how it goes out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from tidings.api.body import Receive

STALL_SECONDS = 60.0
"""Where the kernel shows no more (see `connections`), who takes nothing for so long is not waited for."""

_WHOLE_BYTES, _PIECE_BYTES = 128 * 1024, 64 * 1024
"""What is longer goes out in pieces. The server would take it whole, and then the request would be over, and nothing would
count it, for as long as a slow client takes."""

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(slots=True)
class Response:
    """A whole body, or one that streams; who streams gives the content-length among the headers."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | AsyncIterator[bytes] = b""

    async def send(self, receive: Receive, send: Send) -> None:
        body = self.body
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        if isinstance(body, bytes) and "content-length" not in self.headers and self.status not in (204, 304):
            headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if not isinstance(body, bytes):
            await _stream(body, receive, send)
        elif len(body) > _WHOLE_BYTES:
            await _stream(_pieces(body), receive, send)
        else:
            await send({"type": "http.response.body", "body": body})


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PIECE_BYTES):
        yield body[start : start + _PIECE_BYTES]


async def _stream(body: AsyncIterator[bytes], receive: Receive, send: Send) -> None:
    # `send` says nothing about a client that has gone: without the watch a blob would be read to its end for nobody.
    gone = asyncio.ensure_future(closed(receive))
    try:
        async for chunk in body:
            if gone.done():
                return
            async with asyncio.timeout(STALL_SECONDS):
                await send({"type": "http.response.body", "body": bytes(chunk), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    except TimeoutError:
        return  # who takes nothing for so long is not waited for; the connection ends in the middle of the body
    finally:
        gone.cancel()


async def closed(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
