"""The processes that read `.h5ad` files, among whatever else a process of the tests has started."""

from __future__ import annotations

import psutil


def running(under: psutil.Process | None = None) -> list[psutil.Process]:
    """Those that watch, and those that read a file just now."""
    return [each for each in (under or psutil.Process()).children(recursive=True) if _is_one(each)]


def _is_one(process: psutil.Process) -> bool:
    try:
        return "tidings.consumers.files.h5ad_worker" in process.cmdline()
    except psutil.Error:  # it has just ended
        return False
