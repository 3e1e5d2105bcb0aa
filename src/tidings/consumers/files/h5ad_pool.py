"""The processes in which `.h5ad` files are looked at (`h5ad_worker.py`): as many as there are threads that ask at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tidings.consumers.files import h5ad_worker
from tidings.consumers.files.h5ad_worker import MAX_WORDS, Answer, Limits
from tidings.consumers.files.settings import FilesSettings
from tidings.errors import OperatorError

_MODULE = "tidings.consumers.files.h5ad_worker"
_PASSED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "SYSTEMROOT", "VIRTUAL_ENV")
"""What a Python needs of the environment. There are secrets in the rest."""
_SET = {
    "OPENBLAS_NUM_THREADS": "1",  # a process with threads cannot be forked safely
    "OMP_NUM_THREADS": "1",
    "HDF5_PLUGIN_PRELOAD": "::",  # HDF5 loads no filters that a file names from libraries of this machine
}
_END_SECONDS = 5.0


class Reading(NamedTuple):
    """What came of one file. `problem` says why it was not read to its end; `stopped`, that it was made to end."""

    doi: str | None
    problem: str
    stopped: bool
    processor_seconds: float
    peak_bytes: int


class H5adPool:
    """Use it in a `with`: its processes end there. They end by themselves if this one is killed."""

    def __init__(self, settings: FilesSettings) -> None:
        self._limits = Limits(
            settings.h5ad_memory_bytes,
            settings.h5ad_processor_seconds,
            settings.h5ad_wall_seconds,
            settings.h5ad_chunk_bytes,
        )
        self._idle: deque[_Worker] = deque()

    def __enter__(self) -> H5adPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._idle:
            self._idle.pop().end()

    def read(self, path: Path) -> Reading:
        """The DOI in this file, within the limits. OperatorError if no process for it can be started."""
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _Worker(self._limits)
        answer = worker.ask(path)
        if answer is None:
            worker.end()
            answer = Answer(ended="crash", words="the process that watches it was killed")
        else:
            self._idle.append(worker)
        return Reading(
            answer.doi, _problem(answer, self._limits), bool(answer.ended), answer.processor_seconds, answer.peak_bytes
        )


class _Worker:
    def __init__(self, limits: Limits) -> None:
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        command = [sys.executable, "-P", "-m", _MODULE, json.dumps(limits)]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=passed | _SET)
        except OSError as error:
            raise OperatorError(
                f"No process can be started to read .h5ad files: {error.strerror}. Give this machine more memory or processes."
            ) from None
        if self._line() != h5ad_worker.READY:
            self.end()
            raise OperatorError(
                f"The process that reads .h5ad files does not start (exit status {self._process.returncode}): "
                f"its error is above; {sys.executable} -c 'import h5py' must work."
            )

    def ask(self, path: Path) -> Answer | None:
        """None if the process is gone."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(str(path)).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self._line()
        return Answer(*json.loads(line)) if line.endswith(b"\n") else None

    def _line(self) -> bytes:
        assert self._process.stdout
        return self._process.stdout.readline()

    def end(self) -> None:
        """The end of its input is the end of it."""
        try:
            self._process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def _problem(answer: Answer, limits: Limits) -> str:
    """What the log says, with the setting that moves the limit; empty where the file was read."""
    memory, processor, wall = limits.memory_bytes, limits.processor_seconds, limits.wall_seconds
    used = f"{answer.processor_seconds:.1f} s of processor time and {answer.peak_bytes >> 20} MiB"
    return {
        "": answer.words[:MAX_WORDS],
        "refused": answer.words[:MAX_WORDS],
        "memory": f"it wants more than {memory} bytes of memory (TIDINGS_FILES__H5AD_MEMORY_BYTES)",
        "processor": f"it takes more than {processor} s of processor time (TIDINGS_FILES__H5AD_PROCESSOR_SECONDS)",
        "wall": f"it takes more than {wall:g} s (TIDINGS_FILES__H5AD_WALL_SECONDS)",
        "crash": f"HDF5 crashed over it after {used}: {answer.words[:MAX_WORDS]}",
    }[answer.ended]
