"""Nessie's own client for Python, in an environment of its own: it needs an older marshmallow than anybody else here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parents[1] / "pynessie-constraints.txt"
_DRIVER = Path(__file__).parent / "nessie_driver.py"


def installed(folder: Path) -> Path:
    """The environment's programs; made once for each list of versions."""
    ready = folder / "ready"
    if not ready.exists() or ready.read_text() != CONSTRAINTS.read_text():
        venv.create(folder, clear=True)
        into = ["--python", str(folder / "bin" / "python")]
        command = [sys.executable, "-m", "pip", *into, "install", "-q", "-c", str(CONSTRAINTS), "pynessie"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        ready.write_text(CONSTRAINTS.read_text())
    return folder / "bin"


class Failed(Exception):
    """What pynessie raised: the name of its class, and the error code that it understood."""

    def __init__(self, name: str, code: str, message: str) -> None:
        super().__init__(name, code, message)
        self.name = name
        self.code = code
        self.message = message


class Nessie:
    """The client in a process of its own, a line for each call; and the command, a process for each."""

    def __init__(self, programs: Path, home: Path, endpoint: str, key: str) -> None:
        self._programs = programs
        self._endpoint = endpoint
        self._key = key
        # Nothing of the developer's own settings, and nothing of what our own tests run with.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NESSIE", "PYTHONPATH"))}
        self._environment = {**kept, "HOME": str(home), "PAGER": "cat"}
        command = [str(programs / "python"), str(_DRIVER), endpoint, key]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process: Any = subprocess.Popen(command, env=self._environment, **pipes)  # type: ignore[call-overload]

    def __call__(self, name: str, *arguments: Any, **named: Any) -> Any:
        self._process.stdin.write(json.dumps([name, arguments, named]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the client has ended"
        answer = json.loads(line)
        if "raised" in answer:
            raise Failed(*answer["raised"])
        return answer["returned"]

    def run(self, *arguments: str, input: str = "") -> str:
        """The command, which must succeed."""
        done = self.tried(*arguments, input=input)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def tried(self, *arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(self._programs / "nessie"), "--endpoint", self._endpoint, "--auth-token", self._key, *arguments]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, input=input, timeout=120)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(120)
        self._process.stdout.close()
