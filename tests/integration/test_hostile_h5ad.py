"""Hostile `.h5ad` files: each ends within its limits, and the next good file is read. `make chaos` has thousands of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import h5ad_processes
import hostile_hdf5
from conftest import Say
from tidings.consumers.files.h5ad_pool import H5adPool, Reading
from tidings.consumers.files.settings import FilesSettings
from traffic import seeded

SHORT, LONG = 200, 2_500
SETTINGS = FilesSettings(h5ad_memory_bytes=128 << 20, h5ad_processor_seconds=1, h5ad_wall_seconds=60)
_GROWTH = 24 << 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TICK = 0.5
"""The kernel looks at processor time now and then."""


@pytest.mark.parametrize("number", [SHORT, pytest.param(LONG, marks=pytest.mark.chaos)])
def test_every_hostile_file_ends_within_its_limits_and_the_next_file_is_read(number: int, tmp_path: Path, say: Say) -> None:
    seed = seeded()
    print(f"SEED={seed}")
    names = stored(hostile_hdf5.corpus(seed, number), tmp_path)
    good = tmp_path / "good.h5ad"
    good.write_bytes(hostile_hdf5.good())
    readings = []
    with H5adPool(SETTINGS) as pool:
        alone = pool.read(good)
        validator, [worker] = psutil.Process(), h5ad_processes.running()
        before = validator.memory_info().rss
        for place, name in enumerate(names):
            reading = pool.read(tmp_path / f"{place}.h5ad")
            check(name, reading, alone)
            readings.append(reading)
            assert pool.read(good).doi == hostile_hdf5.DOI, f"after {name}"
        grown = validator.memory_info().rss - before
        assert h5ad_processes.running() == [worker], "no file touches the process that watches"
        assert worker.memory_info().rss < alone.peak_bytes + _GROWTH
    assert grown < _GROWTH
    say(f"seed {seed}: {summary(readings)}")
    ended = {reading.problem.partition(" (")[0] for reading in readings if reading.stopped}
    assert {"it wants more than 134217728 bytes of memory", "it takes more than 1 s of processor time"} <= ended


def stored(files: Iterator[hostile_hdf5.Hostile], folder: Path) -> list[str]:
    """Their names; each is in a file with its number."""
    names = []
    for place, (name, body) in enumerate(files):
        (folder / f"{place}.h5ad").write_bytes(body)
        names.append(name)
    return names


def check(name: str, reading: Reading, alone: Reading) -> None:
    assert reading.processor_seconds <= SETTINGS.h5ad_processor_seconds + _TICK, name
    assert reading.peak_bytes <= alone.peak_bytes + SETTINGS.h5ad_memory_bytes, name
    assert reading.doi is None or not _CONTROL.search(reading.doi), name
    assert "WALL" not in reading.problem, f"{name}: processor time or memory end it, however busy the machine is"


def summary(readings: list[Reading]) -> str:
    kinds = Counter("read" if not each.problem else "damaged" if not each.stopped else "stopped" for each in readings)
    worst = max(each.processor_seconds for each in readings), max(each.peak_bytes for each in readings)
    spent = sum(each.processor_seconds for each in readings)
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"{len(readings)} files: {counted}; at most {worst[0]:.2f} s and {worst[1] >> 20} MiB for one; {spent:.1f} s in all"
