"""What clients have under way at the gRPC port: `tidings.api.limits` for calls, of which one connection has many.

A call takes its place when its request has come. Until then it costs next to nothing, but whoever opens calls and sends nothing
could open any number: beyond some the oldest is ended, for a client that means it sends its request at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from tidings.api.limits import Client, LimitSettings, Ticket, UnderWay, plain, slow_down
from tidings.errors import CallerError

MAX_CALLS = 100
"""At once in one worker, of those whose keys are verified."""
MAX_PER_PROJECT = 25
MAX_UNVERIFIED = 400
"""More than `MAX_CALLS`: a burst of one project waits here for its turn at the database, and is no reason to refuse others."""
MAX_UNSENT = 512
"""Calls whose request has not come: of more, the oldest is ended."""
_PART_OF_CONNECTIONS = 4
"""The port has a quarter of the connections that the S3 API has."""


def limits_of_port(limits: LimitSettings) -> LimitSettings:
    return limits.model_copy(
        update={
            "connections": max(limits.connections // _PART_OF_CONNECTIONS, 1),
            "connections_per_address": max(limits.connections_per_address // _PART_OF_CONNECTIONS, 1),
            "requests_per_project": min(limits.requests_per_project, MAX_PER_PROJECT),
        }
    )


class Calls:
    """All calls of a worker."""

    def __init__(self, limits: LimitSettings) -> None:
        self.under_way = UnderWay(limits_of_port(limits))
        self._seconds = limits.header_seconds
        self._unsent: dict[asyncio.Future[None], None] = {}
        self._sent = 0

    async def request(self, requests: AsyncIterator[bytes]) -> bytes:
        """The request of a call, which is its only one; an error for who does not send it soon."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsent[ended] = None
        if len(self._unsent) > MAX_UNSENT:
            oldest = next(iter(self._unsent))
            del self._unsent[oldest]
            oldest.set_result(None)
        coming = asyncio.ensure_future(_first(requests))
        try:
            await asyncio.wait((coming, ended), timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                return coming.result()
            if ended.done():
                raise slow_down("Too many calls are open that have sent no request.")
            raise CallerError("RequestTimeout", f"The request did not come within {self._seconds:g} s.")
        finally:
            self._unsent.pop(ended, None)
            coming.add_done_callback(lambda call: call.cancelled() or call.exception())  # gRPC ends it with the call

    @contextmanager
    def place(self, peer: str) -> Iterator[Ticket]:
        """A place for a call whose request has come, for as long as the block lasts."""
        if self._sent >= MAX_CALLS + MAX_UNVERIFIED:
            raise slow_down("Too many calls are under way.")
        ticket = Ticket(self.under_way, client_of(peer))
        self._sent += 1
        try:
            ticket.enter()
            yield ticket
        finally:
            self._sent -= 1
            ticket.leave()

    def admit(self, ticket: Ticket, project: str) -> None:
        """Call it when the key is verified."""
        if self.under_way.requests.total() >= MAX_CALLS:
            raise slow_down("Too many calls are under way.")
        ticket.admit(project)

    def answered(self, context: Any, peer: str) -> None:
        """Call it when a call has its answer, which the client may keep from being sent: HTTP/2 lets it close its window."""
        unsent = self.under_way.unsent_answers
        unsent[context] = client_of(peer), time.monotonic()
        context.add_done_callback(unsent.pop)  # gRPC calls it with the context, when the status is sent or never will be


def client_of(peer: str) -> Client:
    """The client in the words of gRPC: `ipv4:127.0.0.1:1234`, `ipv6:%5B::1%5D:1234`."""
    address, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    return plain(address.strip("[]")), int(port) if port.isdecimal() else 0


async def _first(requests: AsyncIterator[bytes]) -> bytes:
    async for request in requests:
        return request
    raise CallerError("InvalidRequest", "The call ended without a request.")
