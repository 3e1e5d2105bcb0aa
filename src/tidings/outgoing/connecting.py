"""How a connection is made: resolve once, judge every address, connect to a judged one, with the name in SNI and Host.

Each attempt resolves and judges anew. A connection that is kept was judged when it was made, and leads where it led then.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from tidings.outgoing.addresses import Address, parsed
from tidings.outgoing.guard import Guard, listeners
from tidings.outgoing.settings import OutgoingSettings
from tidings.outgoing.urls import Endpoint, Refused
from tidings.settings import Settings

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses behind a name, as text."""

_CONNECT_SECONDS = 5.0
_KEEPALIVE_SECONDS = 30.0


_calling: ContextVar[Endpoint] = ContextVar("calling")
"""What the connection is for that is being made."""


class _RefusedAddress(OSError):
    """As aiohttp lets it through where it makes sockets."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    """No more of it than the settings say."""


class _Judging(AbstractResolver):
    """Asks once, and gives the connector only what has been judged. One bad address among good ones spoils the name."""

    def __init__(self, guard: Guard, resolve: Resolve) -> None:
        self._guard = guard
        self._resolve = resolve

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        assert family is not None
        judged = []
        for text in await self._resolve(host, port):
            address = _one(text)
            self._guard.judge(host, port, address)
            kind = socket.AF_INET if address.version == 4 else socket.AF_INET6
            judged.append(
                ResolveResult(hostname=host, host=str(address), port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            )
        if not judged:
            raise OSError(None, f"{host} has no address")
        return judged

    async def close(self) -> None: ...


def _one(text: str) -> Address:
    try:
        return parsed(text)
    except ValueError:
        raise Refused(f"{text[:100]} is not called: not an address of the public internet") from None


async def _first(content: aiohttp.StreamReader, most: int) -> bytes:
    """The first bytes of an answer, in however many pieces they come."""
    pieces = bytearray()
    while len(pieces) < most and (piece := await content.read(most - len(pieces))):
        pieces += piece
    return bytes(pieces)


async def _system(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class Caller:
    """Calls endpoints over connections that it keeps. Use it from one event loop, and close it."""

    def __init__(self, settings: OutgoingSettings, own: Iterable[str] = (), resolve: Resolve = _system) -> None:
        self.guard = Guard(settings, own)
        self._most = settings.max_response_bytes
        self._resolver = _Judging(self.guard, resolve)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        await self.close()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout: float) -> Answer:
        """One POST. `Refused` where the guard says no; what aiohttp raises where the peer cannot be reached."""
        return await self._call("POST", url, body, headers, timeout, self._most)

    async def get(self, url: str, timeout: float, most: int) -> Answer:
        """One GET, of which at most so many bytes are wanted: a longer answer is refused."""
        answer = await self._call("GET", url, None, {}, timeout, most + 1)
        if len(answer.body) > most:
            raise Refused(f"{url[:200]} answers with more than {most} bytes")
        return answer

    async def _call(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout: float, most: int
    ) -> Answer:
        endpoint = self.guard.endpoint(url)
        waits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, _CONNECT_SECONDS), ceil_threshold=math.inf)
        # encoded: what was judged is what is sent, and nobody normalises it in between
        target = URL(endpoint.url, encoded=True)
        if (target.raw_host, target.port) != (endpoint.host, endpoint.port):
            raise Refused(f"{url[:200]!r} can be read in two ways")
        _calling.set(endpoint)
        try:
            async with self._opened().request(
                method, target, data=body, headers=headers, timeout=waits, allow_redirects=False
            ) as response:
                said = await _first(response.content, most)
                if not response.content.at_eof():
                    response.close()  # the rest is not ours to wait for
                return Answer(response.status, response.headers, said)
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, _RefusedAddress):
                raise Refused(str(error.os_error)) from None
            raise

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=self._resolver,
                use_dns_cache=False,
                limit=0,  # lanes bound what is under way
                keepalive_timeout=_KEEPALIVE_SECONDS,
                timeout_ceil_threshold=math.inf,  # else waits above five seconds are rounded up
                socket_factory=self._socket,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers={"user-agent": "tidings"},
                skip_auto_headers=("accept", "accept-encoding"),
                trust_env=False,
            )
        return self._session

    def _socket(self, info: Any) -> socket.socket:
        """The last word before a connection: whatever aiohttp makes of a URL, this is where it would go."""
        family, kind, protocol, _, sockaddr = info
        try:
            self.guard.judge(_calling.get().host, sockaddr[1], _one(sockaddr[0]))
        except Refused as refused:
            raise _RefusedAddress(str(refused)) from None
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def caller(settings: Settings, resolve: Resolve = _system) -> Caller:
    """As the operator's settings say, and never to a listener of our own."""
    return Caller(settings.outgoing, listeners(settings), resolve)
