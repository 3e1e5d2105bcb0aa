"""A backlog and a stream that drains it: PostgreSQL, a destination's server and `tidings stream`, nothing else.

The stream stands still (SIGSTOP) while changes are written, which are committed all at once. When it goes on they are its
backlog: it reads, routes, renders and sends them in its own rounds, as after a night in which it was not running.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg

from bench.changes import BUCKETS, INSERT, PREFIX, database
from bench.measure import CannotMeasure, Progress
from tidings.access.projects import create_project
from tidings.changestream import reader, windows
from tidings.changestream.retention import keep_up
from tidings.changestream.settings import ChangestreamSettings
from tidings.events.arn import Address
from tidings.events.positions import Position
from tidings.local.processes import die_with_parent, end
from tidings.rules import table
from tidings.rules.model import KeyFilter, Rule

_START_SECONDS = 180.0
_STOP_SECONDS = 60.0
_STUCK_SECONDS = 120.0
_POLL_SECONDS = 0.01
_SMALL_ROUND = 40
"""Changes; from fifty on the stream gathers between rounds."""


@dataclass(frozen=True)
class Backlog:
    """Changes that are committed: where they are, and where they end."""

    rows: int
    slices: tuple[reader.Slice, ...]
    end: Position


@dataclass
class Streaming:
    """A running stream with a database of its own."""

    url: str
    database: psycopg.Connection
    project: str
    environment: dict[str, str] = field(default_factory=dict)
    """How the stream, and whoever else needs it, learns of its servers."""
    _stream: subprocess.Popen[bytes] | None = None

    def buckets(self, name: str, destination: Address) -> None:
        """Ten buckets `name`0 to `name`9, each with a rule that sends everything below PREFIX to the destination."""
        names = [f"{name}{number}" for number in range(BUCKETS)]
        self.database.execute(
            "insert into bucket_metainfos (project_id, name) select id, unnest(%s::text[]) from projects where public_id = %s",
            [names, self.project],
        )
        asyncio.run(self._set_rules(names, destination))

    async def _set_rules(self, buckets: list[str], destination: Address) -> None:
        rule = Rule("bench", destination, ("s3:ObjectCreated:*",), KeyFilter(prefix=PREFIX))
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            for bucket in buckets:
                await table.replace(connection, self.project, bucket, [rule])

    @contextmanager
    def stream(self, folder: Path, progress: Progress) -> Iterator[None]:
        """`tidings stream`, warm, until the block ends."""
        progress("starting the stream")
        ready, log = folder / "stream.json", folder / "stream.log"
        command = [sys.executable, "-m", "tidings", "stream", "--ready-file", str(ready)]
        with log.open("wb") as out:
            self._stream = process = subprocess.Popen(
                command, stdout=out, stderr=out, env=os.environ | self.environment, preexec_fn=die_with_parent()
            )
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    lines = log.read_text(errors="replace").strip().splitlines()
                    raise CannotMeasure(f"The stream did not start: {lines[-1] if lines else 'it said nothing'}")
                time.sleep(0.1)
            yield
        finally:
            if process.poll() is None:
                self.go_on()
            end(process, _STOP_SECONDS)

    @property
    def pid(self) -> int:
        assert self._stream is not None
        return self._stream.pid

    def stand_still(self) -> None:
        """Between two rounds: an open transaction of a process that stands still would hold back the whole database."""
        for _ in range(100):
            self._signal(signal.SIGSTOP)
            time.sleep(0.1)
            (busy,) = self.row(
                "select count(*) from pg_stat_activity where application_name like 'tidings %' and state <> 'idle'"
            )
            if not busy:
                return
            self.go_on()
            time.sleep(0.05)
        raise CannotMeasure("The stream does not come to rest.")

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        driver = psutil.Process(self.pid)
        for process in (driver, *driver.children(recursive=True)):
            with suppress(psutil.Error):  # a worker that ended just now
                process.send_signal(number)

    def warm_up(self, name: str, rounds: int, progress: Progress) -> None:
        """So many small rounds, one after the other, as a stream has had that runs for a minute.

        Before that the JVM spends more on compiling the rounds' path, and on running what is not compiled, than on the rounds.
        """
        for number in range(rounds):
            if number % 20 == 0:
                progress(f"warming up: {number} of {rounds} rounds")
            self._insert(name, _SMALL_ROUND)
            (last,) = self.row("select last_value from change_seq")
            deadline = time.monotonic() + _STUCK_SECONDS
            while self.row("select seq from stream")[0] < last:
                if time.monotonic() > deadline:
                    raise CannotMeasure("The stream does not get warm: it delivers nothing.")
                time.sleep(_POLL_SECONDS)

    def _insert(self, name: str, rows: int) -> None:
        wanted = {"project": self.project, "rows": rows, "name": name, "buckets": BUCKETS, "prefix": PREFIX}
        self.database.execute(INSERT, wanted)

    def fill(self, name: str, rows: int) -> Backlog:
        """So many changes of the buckets `name`0 to `name`9, committed at once, in one window, while the stream stands still.

        Whoever reads a row first would pay for the marks that say that it is committed: nobody who is measured does.
        """
        start = windows.latest(self.database)
        self._insert(name, rows)
        self.database.execute("vacuum analyze changes")
        self.database.execute("checkpoint")
        end = windows.latest(self.database)
        return Backlog(rows, tuple(reader.slices(self.database, start, end)), end)

    def wait_for(self, backlog: Backlog) -> None:
        """Until the stream and all lanes have passed the backlog."""
        seen, deadline = None, time.monotonic() + _STUCK_SECONDS
        behind = "select min((l.win, l.seq)) from lanes l where l.state not in ('live', 'closed')"
        query = f"select s.win, s.seq, ({behind}) from stream s"
        while True:
            win, seq, slowest = now = self.row(query)
            if Position(win, seq) >= backlog.end and slowest is None:
                return
            if now != seen:
                seen, deadline = now, time.monotonic() + _STUCK_SECONDS
            if time.monotonic() > deadline:
                lanes = self.database.execute("select id, state, win, seq, error from lanes").fetchall()
                raise CannotMeasure(f"The stream has come to {win}/{seq} of {backlog.end} and does not get further: {lanes}")
            time.sleep(_POLL_SECONDS)

    def row(self, query: str) -> tuple[Any, ...]:
        row = self.database.execute(query.encode()).fetchone()
        assert row is not None
        return row


@contextmanager
def streaming(progress: Progress) -> Iterator[Streaming]:
    """A database with a project; the stream is started by `stream`, when what it should find is there."""
    with database(progress) as url, psycopg.connect(url, autocommit=True) as connection:
        keep_up(connection, ChangestreamSettings())
        project = create_project(connection, "bench")
        yield Streaming(url, connection, project, {"TIDINGS_DATABASE__URL": url})


@contextmanager
def pubsub(progress: Progress) -> Iterator[str]:
    """host:port of our Pub/Sub server, in a process of its own."""
    progress("starting Pub/Sub")
    command = [sys.executable, "-m", "tidings.local.pubsub", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=die_with_parent()) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise CannotMeasure("The Pub/Sub server did not start.")
            yield f"127.0.0.1:{json.loads(line)['port']}"
        finally:
            end(process, 5)
