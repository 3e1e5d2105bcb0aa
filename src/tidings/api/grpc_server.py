"""The gRPC server inside a worker: its port, its certificate, its limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from tidings.api import tls
from tidings.api.metainfo import Metainfo
from tidings.api.parts import Parts
from tidings.api.settings import ApiSettings

MAX_REQUEST = 64 * 1024
"""Bytes: several times the longest key, filter and list of events that can be of use."""
MAX_CALLS = 100
"""At once in one worker. Whoever comes then is told RESOURCE_EXHAUSTED; a call may wait ten seconds for a topic."""
STOP_SECONDS = 12.0
"""A little longer than a test event may take: a call under way is finished before the server stops."""

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_REQUEST),
    ("grpc.max_metadata_size", 32 * 1024),  # the longest API key in it, and what clients add
    ("grpc.so_reuseport", 1),  # all workers share one port
]


@asynccontextmanager
async def serving(parts: Parts) -> AsyncIterator[None]:
    """Answers calls for as long as the block lasts, and lets those under way finish."""
    server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
    server.add_generic_rpc_handlers((Metainfo(parts).handler(),))
    _listen(server, parts.settings.api)
    await server.start()
    try:
        yield
    finally:
        await server.stop(STOP_SECONDS)


def _listen(server: grpc.aio.Server, settings: ApiSettings) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.grpc_port}"
    certificate, key = tls.files(settings)
    if certificate is None or key is None:
        server.add_insecure_port(address)
    else:
        credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
        server.add_secure_port(address, credentials)
