"""What every figure needs: a bar, interleaved repeats, and the processor time of a tree of processes by kind."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import psutil

Progress = Callable[[str], None]
"""Called with what is being done now."""


class CannotMeasure(Exception):
    """There is no figure to report: something did not run, or what it gave was wrong."""


@dataclass(frozen=True)
class Bar:
    """What a figure must reach, or stay below."""

    sign: Literal[">=", "<="]
    limit: float

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.sign == ">=" else value <= self.limit

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}"


@dataclass(frozen=True)
class Figure:
    """One line of the report. `range` is the lowest and the highest of the repeats."""

    name: str
    value: float
    bar: Bar
    range: tuple[float, float]
    unit: str
    note: str

    @property
    def holds(self) -> bool:
        return self.bar.holds(self.value)

    @classmethod
    def median(cls, name: str, values: Sequence[float], bar: Bar, unit: str, note: str) -> Figure:
        return cls(name, statistics.median(values), bar, (min(values), max(values)), unit, note)


def interleaved(
    runs: Mapping[str, Callable[[], float]], repeats: int, warm_ups: int, progress: Progress
) -> dict[str, list[float]]:
    """Run each in turn, again and again, and keep what it returns.

    Whatever else the machine does meanwhile falls on all of them. Every other round goes backwards, so that none always
    has the place after the same neighbour.
    """
    kept: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(-warm_ups, repeats):
        for name in list(runs)[:: 1 if number % 2 == 0 else -1]:
            progress(f"{name}: " + (f"repeat {number + 1} of {repeats}" if number >= 0 else "warming up"))
            value = runs[name]()
            if number >= 0:
                kept[name].append(value)
    return kept


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Pair by pair: neighbours in time had the same machine."""
    return [a / b for a, b in zip(above, below, strict=True)]


_KINDS = {
    "/java": "JVM",  # first: its command line names the daemon of its workers
    "pyspark.daemon": "Python workers",
    "worker_daemon": "Python workers",
    "/postgres": "PostgreSQL",
    "tidings.local.pubsub": "Pub/Sub",
    "tidings.local.kafka": "Kafka brokers",
    "bench.relay": "relay",
    "bench.endpoint": "endpoint",
    "tidings serve": "API",
    "tidings stream": "driver",
}
"""What a command line holds, and how the process is called here. Others count with their parent."""


def cpu_seconds(root: int) -> Counter[str]:
    """The processor time so far of everything below the process `root`, by kind, those that have ended included."""
    # user, system, and both of the children that have ended
    return _summed(root, lambda process: sum(process.cpu_times()[:4]))


def memory(root: int) -> Counter[str]:
    """The memory of everything below the process `root` in bytes, by kind; what processes share counts once for all of them."""
    return _summed(root, lambda process: float(process.memory_full_info().pss))


def _summed(root: int, of: Callable[[psutil.Process], float]) -> Counter[str]:
    found: Counter[str] = Counter()

    def add(process: psutil.Process, inherited: str) -> None:
        try:
            command = " ".join(process.cmdline())
            kind = next((kind for part, kind in _KINDS.items() if part in command), inherited)
            found[kind] += of(process)  # type: ignore[assignment]  # a Counter's values may be fractions
            children = process.children()
        except psutil.Error:
            return  # it ended just now
        for child in children:
            add(child, kind)

    for child in psutil.Process(root).children():
        add(child, "other")
    return found


def said(spent: Mapping[str, float], per: float = 1.0) -> str:
    """The processor time in words, largest first; what is less than a hundredth of all is left out."""
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    least = sum(spent.values()) / 100
    return ", ".join(f"{kind} {seconds / per:.2g} s" for kind, seconds in ordered if seconds > least)
