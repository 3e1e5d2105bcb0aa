"""The Redis of one machine: a server that gets fixes is taken where there is one, and said to be missing where not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import redis

from tidings.local.processes import free_port
from tidings.local.redis import Redis, find_server


def stand_in(folder: Path, name: str, version: str, real: Path) -> Path:
    """A program that says that it is this version, and serves as the real one does."""
    program = folder / name
    program.write_text(
        f"""#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit\nexport -p > environment\nexec {real} "$@"\n"""
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The wheel's server, found while nothing is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return find_server()


def test_a_maintained_server_of_the_machine_is_taken(
    bundled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_SECRETS__MASTER_KEY", "master key in a variable")
    stand_in(tmp_path, "redis-server", "Redis server v=7.2.4 sha=00000000:0", bundled)
    valkey = stand_in(tmp_path, "valkey-server", "Valkey server v=8.1.0 sha=00000000:0", bundled)
    caplog.clear()
    assert find_server() == valkey
    valkey.unlink()
    assert find_server() == tmp_path / "redis-server"
    server = Redis(tmp_path / "data", free_port())
    server.start()
    try:
        assert server.process is not None
        assert server.process.args == [tmp_path / "redis-server", "redis.conf"]
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        environment = (tmp_path / "data" / "environment").read_text()
        assert "PATH=" in environment
        assert "TIDINGS_" not in environment
    finally:
        server.stop()
    assert caplog.records == []


@pytest.mark.parametrize("version", ["Redis server v=6.0.16 sha=00000000:0", "something else"])
def test_an_old_server_of_the_machine_is_not_taken_and_the_one_of_the_wheel_is_said_to_be_old(
    bundled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    stand_in(tmp_path, "redis-server", version, bundled)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert find_server() == bundled
    [record] = caplog.records
    assert "no security fixes" in record.getMessage()
    assert "6.2" in record.getMessage()
