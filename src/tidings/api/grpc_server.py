"""The gRPC server inside a worker: its port, its certificate, its limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from tidings.api import connections, tls
from tidings.api.grpc_calls import Calls
from tidings.api.metainfo import Metainfo
from tidings.api.parts import Parts
from tidings.api.settings import ApiSettings

MAX_REQUEST = 64 * 1024
"""Bytes: several times the longest key, filter and list of events that can be of use."""
STOP_SECONDS = 12.0
"""A little longer than a test event may take: a call under way is finished before the server stops."""

MOST_CALLS = 4096
"""Open at once in a process, if those that are to end have not ended yet; `grpc_calls` has the limits that count."""
_SPARE = 256
"""Connections that are accepted beyond the limit until the excess is closed."""

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_REQUEST),
    ("grpc.max_metadata_size", 32 * 1024),  # the longest API key in it, and what clients add
    ("grpc.so_reuseport", 1),  # all workers share one port
    ("grpc.max_concurrent_streams", 100),  # of one connection
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 60_000),  # so much longer lives a call that never sends its request
]


@asynccontextmanager
async def serving(parts: Parts) -> AsyncIterator[None]:
    """Answers calls for as long as the block lasts, and lets those under way finish."""
    calls = Calls(parts.settings.limits)
    limits = calls.under_way.limits
    most = ("grpc.max_allowed_incoming_connections", limits.connections + _SPARE)
    handshake = ("grpc.server_handshake_timeout_ms", int(limits.header_seconds * 1000))
    server = grpc.aio.server(options=[*_OPTIONS, most, handshake], maximum_concurrent_rpcs=MOST_CALLS)
    server.add_generic_rpc_handlers((Metainfo(parts, calls).handler(),))
    connections.watch(parts.settings.api.grpc_port, calls.under_way)
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
