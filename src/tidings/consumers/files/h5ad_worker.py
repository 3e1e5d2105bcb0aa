"""The process that looks for DOIs: `python -m tidings.consumers.files.h5ad_worker LIMITS`. It imports h5py and little else.

A path comes in as a line of JSON, an answer goes out as one. Each file is read in a fork of this process, with limits: no file
touches the process of another, and what one leaves behind in HDF5's memory ends with it. This process never opens a file; it
watches the clock, measures, and ends with the end of its input, which is when the validator ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, get_args

from tidings.consumers.files import h5ad

READY = b"ready\n"
_INPUT, _OUTPUT = 0, 1
_MOST_ANSWER = 64 * 1024
MAX_WORDS = 300
_DESCRIPTORS = 16
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
_ALLOCATION = re.compile("allocation failed|(unable to|can.t) allocate|for allocation|H5MM_", re.IGNORECASE)
"""How HDF5 says that it got no memory: `memory allocation failed for raw data chunk`, `image null after H5MM_realloc()`."""
Ended = Literal["", "refused", "memory", "processor", "wall", "crash"]
"""How reading a file ended; empty if it was read, or is simply no HDF5."""


class Limits(NamedTuple):
    memory_bytes: int
    processor_seconds: int
    wall_seconds: float
    chunk_bytes: int


class Answer(NamedTuple):
    doi: str | None = None
    ended: Ended = ""
    words: str = ""
    processor_seconds: float = 0.0
    peak_bytes: int = 0


def serve(limits: Limits) -> None:
    """Answer one path after another, until the validator has no more."""
    _send(_OUTPUT, READY)
    while line := sys.stdin.buffer.readline():
        _send(_OUTPUT, json.dumps(read(Path(json.loads(line)), limits)).encode() + b"\n")


def read(path: Path, limits: Limits) -> Answer:
    """What a process of its own finds in this file."""
    parent = os.getpid()
    answers, out = os.pipe()
    child = os.fork()
    if child == 0:
        _look(path, limits, parent, out)
    os.close(out)
    deadline = time.monotonic() + limits.wall_seconds
    try:
        said, in_time = _receive(answers, deadline)
    finally:
        os.close(answers)
        os.kill(child, signal.SIGKILL)  # also one that has closed its end and goes on
        _, status, used = os.wait4(child, 0)
    found = _parse(said) if in_time else Answer(ended="wall")
    if found is None:
        found = _ended_by(status)
    return found._replace(processor_seconds=used.ru_utime + used.ru_stime, peak_bytes=used.ru_maxrss * _MAXRSS_UNIT)


def _receive(answers: int, deadline: float) -> tuple[bytes, bool]:
    """All that the child says, and whether it ended in time. Input can only be its end here: the validator is gone."""
    said = b""
    while len(said) <= _MOST_ANSWER:
        ready, _, _ = select.select([answers, _INPUT], [], [], max(0.0, deadline - time.monotonic()))
        if _INPUT in ready:
            raise SystemExit(0)
        if not ready:
            return said, False
        part = os.read(answers, _MOST_ANSWER)
        if not part:
            break
        said += part
    return said, True


def _parse(said: bytes) -> Answer | None:
    """None if the child did not come to say all of it, or says what it never says: a file may have taken it over."""
    try:
        answer = Answer(*json.loads(said))
        known = answer.doi is None or h5ad.normalised(answer.doi) == answer.doi
    except (ValueError, TypeError):
        return None
    return answer if known and answer.ended in get_args(Ended) and isinstance(answer.words, str) else None


def _ended_by(status: int) -> Answer:
    if not os.WIFSIGNALED(status):
        return Answer(ended="crash", words=f"exit status {os.waitstatus_to_exitcode(status)}")
    number = os.WTERMSIG(status)
    if number == signal.SIGXCPU:
        return Answer(ended="processor")
    return Answer(ended="crash", words=signal.Signals(number).name)


def _look(path: Path, limits: Limits, parent: int, out: int) -> NoReturn:
    """In the child. Whatever happens, it never returns into the loop above."""
    status = 1
    try:
        _confine(limits, parent)
        _send(out, json.dumps(_find(path, limits.chunk_bytes)).encode())
        status = 0
    finally:
        os._exit(status)


def _find(path: Path, chunk_bytes: int) -> Answer:
    try:
        return Answer(doi=h5ad.doi(path, chunk_bytes))
    except h5ad.TooLarge as error:
        return Answer(ended="refused", words=str(error))
    except MemoryError:
        return Answer(ended="memory")
    except Exception as error:  # h5py raises whatever a file that somebody made up leads it to
        words = f"{type(error).__name__}: {error}"[:MAX_WORDS]
        return Answer(ended="memory" if _ALLOCATION.search(words) else "", words=words)


def _confine(limits: Limits, parent: int) -> None:
    """Nothing to write to, little to take, and no life beyond the parent's."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        libc.prctl(_PR_SET_DUMPABLE, 0)  # where the system pipes core dumps into a program, it ignores RLIMIT_CORE
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + limits.memory_bytes)
    if os.getppid() != parent:
        os._exit(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for each in (_INPUT, _OUTPUT, 2):
        os.dup2(nowhere, each)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NOFILE, _DESCRIPTORS)
    # The first signal is SIGXCPU; at the hard limit it would be SIGKILL, which says nothing.
    _limit(resource.RLIMIT_CPU, limits.processor_seconds, limits.processor_seconds + 1)


def _limit(which: int, soft: int, hard: int | None = None) -> None:
    """Where the system's own limit is lower already, that one stays."""
    _, most = resource.getrlimit(which)
    lower = [soft if hard is None else hard, *([] if most == resource.RLIM_INFINITY else [most])]
    resource.setrlimit(which, (min(soft, *lower), min(lower)))


def _send(to: int, data: bytes) -> None:
    while data:
        data = data[os.write(to, data) :]


if __name__ == "__main__":
    import h5py  # noqa: F401  # before the first fork, so that no file pays for it

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the validator's; this process ends with it
    with contextlib.suppress(BrokenPipeError):
        serve(Limits(*json.loads(sys.argv[1])))
