"""What every HTTP server of ours needs around granian: a port that is free, and workers that end with their parent."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import sys

from tidings.errors import OperatorError

STOP_SECONDS = 30
"""How long requests under way may take to finish once the server is told to stop."""
GRANIAN_LOG = {"formatters": {}, "handlers": {}, "loggers": {"_granian": {"handlers": [], "propagate": True}}}
"""Its lines go the way of ours."""
_PR_SET_PDEATHSIG = 1


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
