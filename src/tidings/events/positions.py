"""A position is (window, seq): small, totally ordered, the same for the stream, its lanes and every reader."""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """Everything up to and including `seq` of window `window` lies at or before this position."""

    window: int
    seq: int

    def __str__(self) -> str:
        return f"{self.window}/{self.seq}"

    @property
    def just_before(self) -> Position:
        """The last position that does not include this one."""
        return Position(self.window, self.seq - 1)


START = Position(0, 0)
"""Before every change: windows count from 1."""
