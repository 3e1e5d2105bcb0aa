"""How long a round waits for one answer. Everybody waits with it, so it is no longer than answers have given reason for."""

from __future__ import annotations

from collections.abc import Iterable

from tidings.delivery.reports import Report

_SMALL = 1000
"""Messages: what was sent in larger numbers says nothing of how quick an answer is."""
_LEAST = 0.15
"""Of the setting."""
_TIMES = 3.0
_FORGET = 0.8


class Patience:
    """Three times the longest answer of late, at most the setting; at first the setting itself.

    It grows at once with an answer that took longer, and shrinks slowly. A lane that was given up on for that goes on beside
    the stream; if its answers come within the setting after all they count too, and the next round waits for them.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._usual = most

    def seconds(self, rows: int) -> float:
        """For a round of so many changes."""
        return self._most if rows > _SMALL else min(self._most, max(_LEAST * self._most, _TIMES * self._usual))

    def learn(self, reports: Iterable[Report]) -> None:
        """From a round, or from catch-up: what was delivered to the end."""
        took = [report.seconds for report in reports if report.cursor is None and 0 < report.sent <= _SMALL]
        within = [seconds for seconds in took if seconds <= self._most]
        if within:
            self._usual = max(max(within), self._usual * _FORGET)
