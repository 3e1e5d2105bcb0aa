"""The server of one machine, killed: it can be started again at once, whatever its sessions were doing."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tidings.local.postgres import Postgres
from tidings.local.processes import free_port
from waiting import until

BUSY = "select count(*) from generate_series(1, 20000000) where random() < 2"
_RUNNING = "select from pg_stat_activity where query = %s and state = 'active'"


def test_who_may_do_everything_in_the_database_reads_none_of_our_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_SECRETS__MASTER_KEY", "master key in a variable")
    server = Postgres(tmp_path / "postgres", free_port())
    server.start()
    try:
        with psycopg.connect(server.url) as connection:
            connection.execute("create temporary table environment (variable text)")
            connection.execute("copy environment from program 'env' with (delimiter E'\\x01')")
            names = [row[0].partition("=")[0] for row in connection.execute("select variable from environment")]
        assert "PATH" in names
        assert [name for name in names if name.startswith("TIDINGS_")] == []
    finally:
        server.stop()


def test_a_server_that_was_killed_starts_again_while_a_session_of_it_is_busy(tmp_path: Path) -> None:
    server = Postgres(tmp_path / "postgres", free_port())
    server.start()

    def work() -> None:
        with suppress(psycopg.OperationalError), psycopg.connect(server.url) as connection:
            connection.execute(BUSY)

    working = threading.Thread(target=work)
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            working.start()
            until(lambda: connection.execute(_RUNNING, [BUSY]).rowcount, "the session is busy")
        os.kill(server.pid, signal.SIGKILL)
        assert server.process is not None
        server.process.wait(120)
        assert working.is_alive()
        server.start()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
    finally:
        server.stop()
        working.join(120)
