"""What one client, address or project may have under way at once. `Door` is the layer in front of every application.

Counts are kept in each process: nothing is shared, so a limit costs a request two dictionary lookups. Connections without a
request never reach this layer; `tidings.api.connections` limits them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any, TypeVar

from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from tidings.db import context
from tidings.errors import CallerError

Client = tuple[str, int]
"""The address, as `plain` writes it, and the port of the client's end of a connection."""
T = TypeVar("T")
_TICKET = "tidings.ticket"
_HELD = 8 * 1024 * 1024
"""Of one body no more than this is in memory at once: larger ones are streams."""
_UNPROVEN = 64 * 1024
"""Of a body that nobody has proven yet, so much counts for nothing: the buffers of a connection are larger."""
_SHARE_OF_UNPROVEN = 4
"""One address may have a quarter of the bytes of such bodies."""


class LimitSettings(BaseModel, frozen=True, extra="forbid"):
    """What clients may take up. Every number is for one process: `TIDINGS_API__WORKERS` of them share the clients."""

    connections: int = Field(4096, ge=16, description="connections to a process; beyond that the longest idle ones are closed")
    connections_per_address: int = Field(
        1024,
        ge=1,
        description="connections from one address (of IPv6, one /64), and requests of it under way; raise it behind a proxy",
    )
    requests_per_project: int = Field(256, ge=1, description="requests of a project under way; more are answered with SlowDown")
    waits_per_project: int = Field(
        512, ge=1, description="SQS receives of a project that wait for a message; they do not count as requests meanwhile"
    )
    bytes_per_project: int = Field(
        1 << 30, ge=_HELD, description="bytes of a project's bodies under way; of each, 8 MiB at most count"
    )
    unproven_bytes: int = Field(
        1 << 28,
        ge=_HELD,
        description="bytes of bodies that are kept before a signature over them is verified, a quarter of them for one address;"
        " the first 64 KiB of each do not count",
    )
    header_seconds: float = Field(
        20.0, gt=0, le=3600, description="time for the headers of a request, also for a connection to be idle between two"
    )
    body_seconds: float = Field(86400.0, gt=0, description="time for a whole body: 5 GiB at half a megabit a second")
    unproven_seconds: float = Field(
        60.0, gt=0, le=3600, description="time for a body that must be whole before its signature can be verified"
    )
    idle_seconds: float = Field(20.0, gt=0, description="the span in which the least rate must be kept, in both directions")
    least_rate: int = Field(
        1024, ge=1, description="bytes a second that a body brings, or a client takes of its answer, at least"
    )

    def describe(self, workers: int) -> str:
        """What the log says when the server starts."""
        return (
            f"in each of {workers} processes: {self.connections} connections, {self.connections_per_address} per address; "
            f"{self.requests_per_project} requests, {self.waits_per_project} waits and {self.bytes_per_project >> 20} MiB of "
            f"bodies per project, {self.unproven_bytes >> 20} MiB of unproven ones; headers in {self.header_seconds:g} s, "
            f"bodies in {self.body_seconds:g} s, unproven ones in {self.unproven_seconds:g} s, "
            f"at least {self.least_rate} bytes/s over {self.idle_seconds:g} s"
        )


class UnderWay:
    """What clients have under way at one port of this process."""

    def __init__(self, limits: LimitSettings) -> None:
        self.limits = limits
        self.addresses: Counter[str] = Counter()
        self.unproven: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.busy: Counter[Client] = Counter()
        """Connections with a verified request under way: `connections` closes none of them for being idle."""
        self.served: set[Client] = set()
        """Connections that had a verified request, and some that have ended since: `connections` closes others first."""
        self.unsent_answers: dict[object, tuple[Client, float]] = {}
        """Answers that gRPC has and could not send yet: whose, and since when, the oldest first."""


class Ticket:
    """What one request takes up, from its first header to the last byte of its answer."""

    def __init__(self, under_way: UnderWay, client: Client, held: int = 0) -> None:
        self._under_way = under_way
        self._client = client
        self._network = network(client[0])
        self._bytes = held
        self._unproven = 0
        self._project: str | None = None
        under_way.addresses[self._network] += 1
        context.share.set(f"address {self._network}")

    def enter(self) -> None:
        """Refuse a request of an address that has too many, before anything is read for it."""
        most = self._under_way.limits.connections_per_address
        if self._under_way.addresses[self._network] > most:
            raise slow_down(f"More than {most} requests from your address are under way.")

    def hold(self, size: int) -> None:
        """Call it with the bytes so far of a body that is kept although its sender has proven nothing yet."""
        unproven, most = self._under_way.unproven, self._under_way.limits.unproven_bytes
        more = size - _UNPROVEN - self._unproven
        if more <= 0:
            return
        if unproven[self._network] + more > most // _SHARE_OF_UNPROVEN or unproven.total() + more > most:
            raise slow_down("Too many bytes are under way whose signatures could not be verified yet.")
        self._unproven += more
        unproven[self._network] += more

    def admit(self, project: str, *, proven: bool = True) -> None:
        """Call it when the request is verified: nobody may use up the limits of a project whose key it does not have.

        What may be asked for without a key is counted apart.
        """
        limits, under_way = self._under_way.limits, self._under_way
        self._release()
        name = project if proven else f"{project} without a key"
        if len(under_way.busy) >= limits.connections:
            raise slow_down(f"{limits.connections} requests are under way.")
        if under_way.requests[name] >= limits.requests_per_project:
            raise slow_down(f"{limits.requests_per_project} requests of this project are under way.")
        if under_way.bytes[name] + self._bytes > limits.bytes_per_project:
            raise slow_down(f"{under_way.bytes[name]} bytes of this project are under way.")
        self._project = name
        context.share.set(name)
        under_way.requests[name] += 1
        under_way.bytes[name] += self._bytes
        under_way.busy[self._client] += 1
        if proven:
            under_way.served.add(self._client)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Within the block the request waits for something to happen, and does not count as one under way."""
        under_way, project, most = self._under_way, str(self._project), self._under_way.limits.waits_per_project
        if under_way.waits[project] >= most:
            raise slow_down(f"{most} receives of this project wait for messages.")
        under_way.waits[project] += 1
        _take(under_way.requests, project, 1)
        try:
            yield
        finally:
            under_way.requests[project] += 1
            _take(under_way.waits, project, 1)

    def leave(self) -> None:
        _take(self._under_way.addresses, self._network, 1)
        self._release()
        if self._project is not None:
            _take(self._under_way.busy, self._client, 1)
            _take(self._under_way.requests, self._project, 1)
            _take(self._under_way.bytes, self._project, self._bytes)

    def _release(self) -> None:
        _take(self._under_way.unproven, self._network, self._unproven)
        self._unproven = 0


class Door:
    """An ASGI layer that knows what is under way in this process."""

    def __init__(self, app: ASGIApp, under_way: UnderWay) -> None:
        self._app = app
        self._under_way = under_way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _is_ambiguous(scope["headers"]):
            await _refuse_framing(send)
            return
        address, port = scope.get("client") or ("", 0)
        client = (plain(address), int(port))  # granian gives the port as text
        ticket = scope[_TICKET] = Ticket(self._under_way, client, _held(scope["headers"]))
        try:
            await self._app(scope, receive, send)
        finally:
            ticket.leave()


@lru_cache(maxsize=4096)
def plain(address: str) -> str:
    """The one way to write an address, whoever gave it to us: the kernel, granian or gRPC."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(getattr(found, "ipv4_mapped", None) or found)


@lru_cache(maxsize=4096)
def network(address: str) -> str:
    """Whose limits count for an address: of IPv6, a customer has at least 2^64 of them."""
    if ":" not in address:
        return address
    return str(IPv6Address(int(IPv6Address(address)) >> 64 << 64))


def enter(scope: Mapping[str, Any]) -> None:
    """The first thing that a front does with a request."""
    if _TICKET in scope:
        scope[_TICKET].enter()


def hold(scope: Mapping[str, Any], size: int) -> None:
    """What a front does with each piece of a body that it must have before it can verify the request."""
    if _TICKET in scope:
        scope[_TICKET].hold(size)


def admit(scope: Mapping[str, Any], project: str, *, proven: bool = True) -> None:
    """The first thing that a front does with a request that it has verified, or that needs no key."""
    if _TICKET in scope:
        scope[_TICKET].admit(project, proven=proven)


def wait(scope: Mapping[str, Any]) -> AbstractContextManager[None]:
    """A block in which a verified request waits for something to happen."""
    return scope[_TICKET].wait() if _TICKET in scope else nullcontext()


class OverLimit(CallerError):
    """The client has too much under way: the catalog answers 429, all others 503."""


def slow_down(reason: str) -> CallerError:
    return OverLimit("SlowDown", f"{reason} Please reduce your request rate.").with_headers(retry_after="1", connection="close")


def is_refusal(problem: CallerError) -> bool:
    return isinstance(problem, OverLimit)


def _held(headers: Sequence[tuple[bytes, bytes]]) -> int:
    fields = dict(headers)
    if b"transfer-encoding" in fields:
        return _HELD
    return min(int(fields.get(b"content-length", 0)), _HELD)


def _is_ambiguous(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether another server could see another end of the body (RFC 9112, 6.1): only `chunked` alone is read alike by all."""
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    return codings not in ([], [b"chunked"]) or (bool(codings) and any(name == b"content-length" for name, _ in headers))


async def _refuse_framing(send: Send) -> None:
    sentence = b"Transfer-Encoding is chunked and nothing else, without a Content-Length.\n"
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(sentence)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": sentence})


def _take(counter: Counter[T], name: T, number: int) -> None:
    """A name with nothing under way is forgotten: there is no end of names."""
    counter[name] -= number
    if counter[name] <= 0:
        del counter[name]
