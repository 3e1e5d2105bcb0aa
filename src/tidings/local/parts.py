"""The child processes that a stack is made of."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tidings.local.processes import die_with_parent, end, step_back

_STOP_SECONDS = 30.0


@dataclass
class Part:
    """One child process: how to start it, and how to tell that it is ready."""

    role: str
    command: list[str]
    ready: Callable[[], bool]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    steps_back: bool = False
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    started_at: float = 0.0
    ready_file: Path | None = None
    _stepped_back: bool = False

    def start(self) -> None:
        self.started_at = time.monotonic()
        self._stepped_back = False
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C reaches us alone: we stop the parts in order
                preexec_fn=die_with_parent(),
            )

    def settle(self) -> None:
        """Once it is ready it leaves the processor to the others; until then everybody waits for it."""
        if self.steps_back and not self._stepped_back and self.process is not None and self.ready():
            step_back(self.process.pid)
            self._stepped_back = True

    def stop(self) -> None:
        end(self.process, _STOP_SECONDS)

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'it said nothing'} (see {self.log})"


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 a part of ours
            return bool(response.status == 200)
    except OSError:
        return False
