"""Waiting for what must come to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 240.0
"""Long enough for a machine that is busy with other things: who waits for a condition pays only what it takes."""


def until(condition: Callable[[], Any], what: str, every: float = 0.05, seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait until the condition holds, and return what it said."""
    deadline = time.monotonic() + seconds
    while not (said := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(every)
    return said
