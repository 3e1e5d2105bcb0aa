"""The data folder is its owner's alone: other users of the machine can read nothing in it."""

from __future__ import annotations

import os
from pathlib import Path

_OWNERS_BITS = 0o700
_OTHERS = 0o067
"""What the folder never gives. Its group may go through it: see `Postgres`."""


def close_to_others(folder: Path) -> None:
    """Take all rights from everybody else. A folder that was open is an old one: then all in it is closed too, once."""
    if not folder.stat().st_mode & _OTHERS:
        return
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            _close(Path(parent, name))
    _close(folder)  # last: a pass that was broken off is taken again


def _close(path: Path) -> None:
    if not path.is_symlink():
        path.chmod(path.stat().st_mode & _OWNERS_BITS)
