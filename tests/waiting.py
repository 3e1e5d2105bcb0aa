"""Waiting for what must come to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float, what: str, every: float = 0.05) -> Any:
    """Wait until the condition holds, and return what it said."""
    deadline = time.monotonic() + seconds
    while not (said := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(every)
    return said
