"""`.h5ad` files are read in processes with limits: each limit ends the reading of its file, and the next one is read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import h5ad_processes
import hostile_hdf5
from tidings.consumers.files.h5ad_pool import H5adPool
from tidings.consumers.files.settings import FilesSettings
from tidings.errors import OperatorError
from waiting import until

SETTINGS = FilesSettings(h5ad_memory_bytes=96 << 20, h5ad_processor_seconds=1)
KNOWN = {each.name: each.body for each in hostile_hdf5.known()}


@pytest.fixture
def pool() -> Iterator[H5adPool]:
    with H5adPool(SETTINGS) as running:
        yield running


def written(folder: Path, body: bytes, name: str = "file.h5ad") -> Path:
    path = folder / name
    path.write_bytes(body)
    return path


def hanging(folder: Path) -> Path:
    """Whoever opens a FIFO waits for somebody to write to it."""
    path = folder / "hanging.h5ad"
    os.mkfifo(path)
    return path


def finds_the_next(pool: H5adPool, folder: Path) -> bool:
    return pool.read(written(folder, hostile_hdf5.good(), "good.h5ad")).doi == hostile_hdf5.DOI


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deflate-twice", "uns/doi has the same filter more than once: 1, 1"),
        ("shuffle-32", "uns/doi has 32 filters, and 3 are the most"),
        ("huge-chunk", r"uns/doi has chunks of 268435456 bytes, more than 65536 \(TIDINGS_FILES__H5AD_CHUNK_BYTES\)"),
        ("deflate-once", "uns/doi has a chunk with [0-9]+ stored bytes, more than 65536"),
        ("string-of-4-gib", r"it wants more than 100663296 bytes of memory \(TIDINGS_FILES__H5AD_MEMORY_BYTES\)"),
        ("long-text", "it wants more than 100663296 bytes of memory"),
        ("heap-object-size-loop", r"it takes more than 1 s of processor time \(TIDINGS_FILES__H5AD_PROCESSOR_SECONDS\)"),
        ("chunk-of-0-bytes", "HDF5 crashed over it after .*: SIG"),
    ],
)
def test_a_file_that_asks_for_too_much_is_stopped_and_the_next_is_read(
    pool: H5adPool, tmp_path: Path, name: str, words: str
) -> None:
    stopped = pool.read(written(tmp_path, KNOWN[name]))
    assert (stopped.doi, stopped.stopped) == (None, True)
    assert re.search(words, stopped.problem)
    assert stopped.processor_seconds < SETTINGS.h5ad_processor_seconds + 1
    assert stopped.peak_bytes < SETTINGS.h5ad_memory_bytes + (64 << 20)
    assert finds_the_next(pool, tmp_path)


def test_a_file_that_hangs_is_stopped_by_the_clock(tmp_path: Path) -> None:
    with H5adPool(SETTINGS.model_copy(update={"h5ad_wall_seconds": 0.3})) as pool:
        stopped = pool.read(hanging(tmp_path))
        assert (stopped.stopped, stopped.problem) == (True, "it takes more than 0.3 s (TIDINGS_FILES__H5AD_WALL_SECONDS)")
    with H5adPool(SETTINGS) as pool:
        assert finds_the_next(pool, tmp_path)


def test_what_is_simply_no_hdf5_is_not_counted_as_stopped(pool: H5adPool, tmp_path: Path) -> None:
    for body in (b"", b"no HDF5", hostile_hdf5.good()[:100]):
        reading = pool.read(written(tmp_path, body))
        assert (reading.doi, reading.stopped, reading.problem[:8]) == (None, False, "OSError:")
    assert pool.read(tmp_path / "nowhere.h5ad").problem[:18] == "FileNotFoundError:"
    assert finds_the_next(pool, tmp_path)


@pytest.mark.parametrize(
    ("name", "doi"),
    [
        ("nul-in-doi", "10.1234/nul"),  # PostgreSQL takes no NUL
        ("wide-earliest", hostile_hdf5.DOI),
        ("wide-latest", hostile_hdf5.DOI),
        ("hard-ring", None),
        ("external-passwd", None),
        ("virtual-itself", None),
        ("many-small-chunks", None),
    ],
)
def test_odd_files_are_read_all_the_same(pool: H5adPool, tmp_path: Path, name: str, doi: str | None) -> None:
    reading = pool.read(written(tmp_path, KNOWN[name]))
    assert (reading.doi, reading.problem, reading.stopped) == (doi, "", False)


def test_the_process_of_a_file_can_take_little_and_knows_no_secret(
    pool: H5adPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_FILES__S3_SECRET", "hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(pool.read, hanging(tmp_path))
        [_, child] = until(lambda: confined(h5ad_processes.running()), "a process that is confined")
        limits = {name: child.rlimit(getattr(psutil, f"RLIMIT_{name}")) for name in ("FSIZE", "CORE", "NOFILE", "CPU", "AS")}
        environment = child.environ()
        child.kill()
        assert re.match("HDF5 crashed over it after .*: SIGKILL", reading.result().problem)
    memory = limits.pop("AS")[0]
    assert limits == {"FSIZE": (0, 0), "CORE": (0, 0), "NOFILE": (16, 16), "CPU": (1, 2)}
    assert SETTINGS.h5ad_memory_bytes < memory < SETTINGS.h5ad_memory_bytes + (2 << 30)
    assert "hush" not in environment.values()
    assert not any(name.startswith(("TIDINGS_", "AWS_")) for name in environment)


def confined(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The process that watches and the one that reads, once the last of its limits is set."""
    ready = len(processes) == 2 and processes[1].rlimit(psutil.RLIMIT_CPU)[0] == SETTINGS.h5ad_processor_seconds
    return processes if ready else []


def test_threads_have_a_process_each_and_all_end_with_the_pool(tmp_path: Path) -> None:
    good, looping = written(tmp_path, hostile_hdf5.good()), written(tmp_path, KNOWN["heap-object-size-loop"], "looping.h5ad")
    with H5adPool(SETTINGS) as pool, ThreadPoolExecutor(3) as threads:
        readings = list(threads.map(pool.read, [good, looping, *[good] * 20]))
        assert [each.doi for each in readings].count(hostile_hdf5.DOI) == 21
        assert 1 <= len(h5ad_processes.running()) <= 3
    assert h5ad_processes.running() == []


def test_the_processes_end_when_the_validator_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tidings.consumers.files.h5ad_pool import H5adPool\n"
        "from tidings.consumers.files.settings import FilesSettings\n"
        "H5adPool(FilesSettings(h5ad_wall_seconds=3600)).read(Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(hanging(tmp_path))]) as validator:
        process = psutil.Process(validator.pid)
        children = until(lambda: both(h5ad_processes.running(process)), "a process that reads")
        validator.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(children, 60)[1] == []


def both(processes: list[psutil.Process]) -> list[psutil.Process]:
    return processes if len(processes) == 2 else []


def test_a_process_that_is_killed_is_replaced(pool: H5adPool, tmp_path: Path) -> None:
    assert finds_the_next(pool, tmp_path)
    [worker] = h5ad_processes.running()
    worker.kill()
    lost = pool.read(tmp_path / "good.h5ad")
    assert (lost.doi, lost.stopped) == (None, True)
    assert finds_the_next(pool, tmp_path)


def test_an_installation_without_h5py_is_the_operator_s_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h5py.py").write_text("raise ImportError('libhdf5.so: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with H5adPool(SETTINGS) as pool, pytest.raises(OperatorError, match=r"does not start .*import h5py"):
        pool.read(tmp_path / "any.h5ad")
    assert h5ad_processes.running() == []
