"""Waiting for what must come to pass."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from tidings.local.processes import Starting

PATIENCE_SECONDS = 240.0
"""Long enough for a machine that is busy with other things: who waits for a condition pays only what it takes."""


def until(condition: Callable[[], Any], what: str, every: float = 0.05, seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait until the condition holds, and return what it said."""
    deadline = time.monotonic() + seconds
    while not (said := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(every)
    return said


def until_started(process: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Callable[[], str]) -> None:
    """Wait for a process for as long as it works at its start."""
    starting = Starting(process, 120)
    while not is_ready():
        assert process.poll() is None, f"it ended: {log()}"
        assert not starting.is_stuck(), f"it is not ready: {log()}"
        time.sleep(0.05)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True
