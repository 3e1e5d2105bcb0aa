"""Child processes that end when we do, and ports that nobody uses."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_STEP_BACK = 10


def die_with_parent(how: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """For `preexec_fn`: the kernel sends the child a signal when its parent dies, even by kill -9. Linux only."""
    if sys.platform != "linux":
        return lambda: None
    libc = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(how))

    return ask


def step_back() -> None:
    """For `preexec_fn`: this process and its children get the processor when nobody else wants it as much.

    Where the kernel shares processors by session first, nice counts only within a session: then say it there as well.
    """
    os.nice(_STEP_BACK)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_STEP_BACK))


def end(process: subprocess.Popen[bytes] | None, seconds: float) -> None:
    """Tell a child to stop, also one that stands still, and kill it if it has not done so in time."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# Below the range from which systems take ports for outgoing connections (Linux 32768, others 49152): one of those would
# else take the port before its server does.
_PORTS = range(20_000, 32_000)
_chance = random.SystemRandom()


def free_port() -> int:
    """A port on which nobody listens now."""
    while True:
        port = _chance.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
