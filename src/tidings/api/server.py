"""The HTTP server: granian, with the application in as many worker processes as the settings say."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import socket
import sys
from functools import partial

from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from starlette.types import ASGIApp

from tidings import log, metrics
from tidings.api import tls
from tidings.api.app import create_app
from tidings.errors import OperatorError
from tidings.rules.lookup import cache_for
from tidings.settings import Settings
from tidings.store.blobs import Blobs

STOP_SECONDS = 30
"""How long requests under way may take to finish once the server is told to stop."""
_PR_SET_PDEATHSIG = 1
GRANIAN_LOG = {"formatters": {}, "handlers": {}, "loggers": {"_granian": {"handlers": [], "propagate": True}}}
"""Its lines go the way of ours."""


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; then finish what is under way, and return. Call it from the main thread."""
    log.to_stderr(settings)
    host, port = settings.api.host, settings.api.port
    if port == 0:
        raise OperatorError("The server cannot choose a port by itself: set TIDINGS_API__PORT to a free one.")
    check_free(host, port, "TIDINGS_API__PORT")
    if settings.api.grpc_port:
        check_free(host, settings.api.grpc_port, "TIDINGS_API__GRPC_PORT")
    _check_settings(settings)
    certificate, key = tls.files(settings.api)
    server = Granian(
        "tidings",
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        workers=settings.api.workers,
        loop=Loops.uvloop,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=30_000),
        websockets=False,
        respawn_failed_workers=True,
        workers_kill_timeout=STOP_SECONDS,
        log_level=LogLevels.warning,
        log_access=False,
        log_dictconfig=GRANIAN_LOG,
        ssl_cert=certificate,
        ssl_key=key,
        ssl_protocol_min=SSLProtocols.tls12,  # older SDKs have no TLS 1.3
    )
    # The loader carries the settings into the workers. An import string would send them through the environment, and
    # would put the current folder in front of the module path.
    with metrics.shared():
        server.serve(target_loader=partial(_load, settings), wrap_loader=False)


def _check_settings(settings: Settings) -> None:
    """What is wrong is said here, once and in a sentence, rather than by every worker in a traceback."""
    _ = settings.database_url
    Blobs(settings.store.blobs)
    if settings.bucket_eventing.lookup == "redis" and not settings.bucket_eventing.redis_url.get_secret_value():
        raise OperatorError("lookup = redis needs a server: set TIDINGS_BUCKET_EVENTING__REDIS_URL.")
    cache_for(settings.bucket_eventing)


def _load(settings: Settings) -> ASGIApp:
    """What runs first in each worker."""
    die_with_parent()
    log.to_stderr(settings)
    app = create_app(settings)
    # A request leaves next to nothing for the collector of cycles: it need not come often, nor look at all that is loaded.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)
    return app


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


def check_free(host: str, port: int, setting: str) -> None:
    """Workers share their port (SO_REUSEPORT), so a second server on it would start, and get half of the requests."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        problem = f"Cannot listen on {host}:{port}: {error.strerror}. Set TIDINGS_API__HOST and {setting}."
        raise OperatorError(problem) from None
