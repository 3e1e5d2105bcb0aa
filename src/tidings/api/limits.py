"""What one client, address or project may have under way at once. `Door` is the layer in front of every application.

Counts are kept in each process: nothing is shared, so a limit costs a request two dictionary lookups. Connections without a
request never reach this layer; `tidings.api.connections` limits them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from tidings.errors import CallerError

Client = tuple[str, int]
"""The address and port of the client's end of a connection."""
_TICKET = "tidings.ticket"
_HELD = 8 * 1024 * 1024
"""Of one body no more than this is in memory at once: larger ones are streams."""


class LimitSettings(BaseModel, frozen=True, extra="forbid"):
    """What clients may take up. Every number is for one process: `TIDINGS_API__WORKERS` of them share the clients."""

    connections: int = Field(4096, ge=16, description="connections to a process; beyond that the longest idle ones are closed")
    connections_per_address: int = Field(
        1024, ge=1, description="connections from one address, and requests of it under way; raise it behind a proxy"
    )
    requests_per_project: int = Field(256, ge=1, description="requests of a project under way; more are answered with SlowDown")
    waits_per_project: int = Field(
        512, ge=1, description="SQS receives of a project that wait for a message; they do not count as requests meanwhile"
    )
    bytes_per_project: int = Field(
        1 << 30, ge=_HELD, description="bytes of a project's bodies under way; of each, 8 MiB at most count"
    )
    header_seconds: float = Field(
        20.0, gt=0, le=3600, description="time for the headers of a request, also for a connection to be idle between two"
    )
    body_seconds: float = Field(7200.0, gt=0, description="time for a whole body")
    idle_seconds: float = Field(20.0, gt=0, description="the span in which the least rate must be kept, in both directions")
    least_rate: int = Field(
        1024, ge=1, description="bytes a second that a body brings, or a client takes of its answer, at least"
    )

    def describe(self, workers: int) -> str:
        """What the log says when the server starts."""
        return (
            f"in each of {workers} processes: {self.connections} connections, {self.connections_per_address} per address; "
            f"{self.requests_per_project} requests, {self.waits_per_project} waits and {self.bytes_per_project >> 20} MiB of "
            f"bodies per project; headers in {self.header_seconds:g} s, bodies in {self.body_seconds:g} s, "
            f"at least {self.least_rate} bytes/s over {self.idle_seconds:g} s"
        )


class Ticket:
    """What one request takes up, from its first header to the last byte of its answer."""

    def __init__(self, door: Door, client: Client, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._door = door
        self._client = client
        self._bytes = _held(headers)
        self._project: str | None = None
        door.addresses[client[0]] += 1

    def enter(self) -> None:
        """Refuse a request of an address that has too many, before anything is read for it."""
        most = self._door.limits.connections_per_address
        if self._door.addresses[self._client[0]] > most:
            raise slow_down(f"More than {most} requests from your address are under way.")

    def admit(self, project: str) -> None:
        """Call it when the request is verified: nobody may use up the limits of a project whose key it does not have."""
        limits, door = self._door.limits, self._door
        if len(door.busy) >= limits.connections:
            raise slow_down(f"{limits.connections} requests are under way.")
        if door.requests[project] >= limits.requests_per_project:
            raise slow_down(f"{limits.requests_per_project} requests of this project are under way.")
        if door.bytes[project] + self._bytes > limits.bytes_per_project:
            raise slow_down(f"{door.bytes[project]} bytes of this project are under way.")
        self._project = project
        door.requests[project] += 1
        door.bytes[project] += self._bytes
        door.busy.add(self._client)
        door.served.add(self._client)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Within the block the request waits for something to happen, and does not count as one under way."""
        door, project, most = self._door, str(self._project), self._door.limits.waits_per_project
        if door.waits[project] >= most:
            raise slow_down(f"{most} receives of this project wait for messages.")
        door.waits[project] += 1
        _take(door.requests, project, 1)
        try:
            yield
        finally:
            door.requests[project] += 1
            _take(door.waits, project, 1)

    def leave(self) -> None:
        _take(self._door.addresses, self._client[0], 1)
        if self._project is not None:
            self._door.busy.discard(self._client)
            _take(self._door.requests, self._project, 1)
            _take(self._door.bytes, self._project, self._bytes)


class Door:
    """An ASGI layer that knows what is under way in this process."""

    def __init__(self, app: ASGIApp, limits: LimitSettings) -> None:
        self._app = app
        self.limits = limits
        self.addresses: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.busy: set[Client] = set()
        """Connections with a verified request under way: `connections` closes none of them for being idle."""
        self.served: set[Client] = set()
        """Connections that had a verified request, and some that have ended since: `connections` closes others first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _is_ambiguous(scope["headers"]):
            await _refuse_framing(send)
            return
        address, port = scope.get("client") or ("", 0)
        client = (address, int(port))  # granian gives the port as text
        ticket = scope[_TICKET] = Ticket(self, client, scope["headers"])
        try:
            await self._app(scope, receive, send)
        finally:
            ticket.leave()


def enter(scope: Mapping[str, Any]) -> None:
    """The first thing that a front does with a request."""
    if _TICKET in scope:
        scope[_TICKET].enter()


def admit(scope: Mapping[str, Any], project: str) -> None:
    """The first thing that a front does with a request that it has verified."""
    if _TICKET in scope:
        scope[_TICKET].admit(project)


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


def _take(counter: Counter[str], name: str, number: int) -> None:
    """A name with nothing under way is forgotten: there is no end of names."""
    counter[name] -= number
    if counter[name] <= 0:
        del counter[name]
