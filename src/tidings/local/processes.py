"""Child processes that end when we do, and ports that nobody uses."""

from __future__ import annotations

import ctypes
import signal
import socket
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(how: signal.Signals = signal.SIGTERM) -> Callable[[], None] | None:
    """For `preexec_fn`: the kernel sends the child a signal when its parent dies, even by kill -9. Linux only."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(how))

    return ask


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
