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
import time
from collections.abc import Callable
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_STEP_BACK = 10
_WORKS = 0.02
"""The share of a processor that a process uses at least while it starts; an idle JVM uses less."""


def die_with_parent(how: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """For `preexec_fn`: the kernel sends the child a signal when its parent dies, even by kill -9. Linux only."""
    if sys.platform != "linux":
        return lambda: None
    libc = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(how))

    return ask


def without_settings() -> dict[str, str]:
    """The environment for a server that is not ours: none of our settings, the master key may be among them.

    Who may do everything in PostgreSQL can also read its environment.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")}


def step_back(pid: int) -> None:
    """This process and its children get the processor when nobody else wants it as much.

    Linux gives each thread its own niceness. Where it shares processors by session first, nice counts only within a
    session: then say it there as well.
    """
    for process in _family(pid):
        with contextlib.suppress(OSError, psutil.Error):
            for thread in process.threads():
                os.setpriority(os.PRIO_PROCESS, thread.id, _STEP_BACK)
            Path(f"/proc/{process.pid}/autogroup").write_text(str(_STEP_BACK))


class Starting:
    """How long to wait for a process that starts: so many seconds, and again so many while it works.

    On a busy machine a start is slow. One that is stuck uses no processor time.
    """

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        self.seconds = seconds
        self._pid = process.pid
        self._used = 0.0
        self._deadline = time.monotonic() + seconds

    def is_stuck(self) -> bool:
        if time.monotonic() <= self._deadline:
            return False
        used = sum(map(_processor_seconds, _family(self._pid)))
        if used - self._used < self.seconds * _WORKS:
            return True
        self._used, self._deadline = used, time.monotonic() + self.seconds
        return False


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _processor_seconds(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.Error:
        return 0.0


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
