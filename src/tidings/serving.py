"""What every HTTP server of ours is: granian, on a port that is free, with workers that end with their parent."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from starlette.types import ASGIApp

from tidings.api import connections
from tidings.api.limits import Door, LimitSettings, UnderWay
from tidings.errors import OperatorError

_log = logging.getLogger(__name__)

_BACKLOG = 4096
"""Connections that wait to be accepted; the kernel may allow fewer (net.core.somaxconn)."""
_SPARE = 1024
"""Accepted beyond the limit until the excess is closed: new clients do not wait for that."""
_FILES = 512
"""Files that a process opens beside its connections."""
_BUFFER = 128 * 1024
"""Bytes of headers that are read, and about as many of an answer that wait for the client."""
_STOP_SECONDS = 30
"""How long requests under way may take to finish once the server is told to stop."""
_LOG = {"formatters": {}, "handlers": {}, "loggers": {"_granian": {"handlers": [], "propagate": True}}}
"""Its lines go the way of ours."""
_PR_SET_PDEATHSIG = 1


def run(
    load: Callable[[], ASGIApp],
    host: str,
    port: int,
    workers: int,
    limits: LimitSettings,
    certificate: Path | None = None,
    key: Path | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; then finish what is under way, and return. Call it from the main thread.

    `load` makes the application in each worker, and carries the settings there. An import string would send them through the
    environment, and would put the current folder in front of the module path.
    """
    limits = _within_descriptors(limits)
    server = Granian(
        "tidings",
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        workers=workers,
        loop=Loops.uvloop,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=int(limits.header_seconds * 1000), max_buffer_size=_BUFFER),
        websockets=False,
        backlog=_BACKLOG,
        backpressure=limits.connections + _SPARE,
        respawn_failed_workers=True,
        workers_kill_timeout=_STOP_SECONDS,
        log_level=LogLevels.warning,
        log_access=False,
        log_dictconfig=_LOG,
        ssl_cert=certificate,
        ssl_key=key,
        ssl_protocol_min=SSLProtocols.tls12,  # older SDKs have no TLS 1.3
    )
    _log.info("limits %s", limits.describe(workers))
    server.serve(target_loader=partial(_behind_door, load, port, limits), wrap_loader=False)


def _behind_door(load: Callable[[], ASGIApp], port: int, limits: LimitSettings) -> ASGIApp:
    """What each worker runs: the application, with its limits in front."""
    under_way = UnderWay(limits)
    connections.watch(port, under_way)
    return Door(load(), under_way)


def _within_descriptors(limits: LimitSettings) -> LimitSettings:
    """A process may open as many files as the system lets it. Without a file for each connection no limit could be kept."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    room = max((hard - _SPARE - _FILES) * 4 // 5, 16)  # a fifth is for gRPC
    if hard == resource.RLIM_INFINITY or room >= limits.connections:
        return limits
    words = "a process may open %d files, too few for %d connections: %d are served. Raise `ulimit -Hn`"
    _log.warning(words, hard, limits.connections, room)
    return limits.model_copy(update={"connections": room})


def die_with_parent() -> None:
    """A worker whose parent was killed would go on serving, and share the port with whatever is started next.

    Linux can prevent that. Elsewhere such a worker has to be stopped by hand. It is killed rather than told to stop: a
    worker that is still starting may lose a SIGTERM, and whoever kills the server has chosen not to wait.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it died before we asked
        sys.exit(1)


def check_free(host: str, port: int, host_setting: str, port_setting: str) -> None:
    """Workers share their port (SO_REUSEPORT), so a second server on it would start, and get half of the requests."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        problem = f"Cannot listen on {host}:{port}: {error.strerror}. Set {host_setting} and {port_setting}."
        raise OperatorError(problem) from None
