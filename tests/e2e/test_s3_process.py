"""The server as a process: how it stops, and what it says while its database is away."""

from __future__ import annotations

import hashlib
import resource
import signal
import socket
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from s3_server import Server, Signer, request, s3_server, start

from tidings.local.postgres import Postgres
from tidings.local.processes import free_port
from waiting import PATIENCE_SECONDS


def test_a_request_under_way_is_finished_before_the_server_stops(database_url: str, tmp_path: Path) -> None:
    with s3_server(database_url, tmp_path) as server:
        assert request(server, "PUT", "/bucket").status == 200
        body = bytes(100_000)
        fields = Signer(server).headers("PUT", "/bucket/key", "", hashlib.sha256(body).hexdigest(), {})
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(f"PUT /bucket/key HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode())
            connection.sendall(body[:50_000])
            time.sleep(0.2)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            connection.sendall(body[50_000:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert server.process.wait(120) == 0
        assert server.query("select size from heads") == [(100_000,)]


def test_workers_do_not_outlive_a_server_that_is_killed(database_url: str, tmp_path: Path) -> None:
    with s3_server(database_url, tmp_path, TIDINGS_API__WORKERS="2") as server:
        workers = psutil.Process(server.process.pid).children()
        assert len(workers) == 2
        server.process.kill()
        gone, alive = psutil.wait_procs(workers, 10)
        assert (len(gone), alive) == (2, [])


def test_a_second_server_on_the_same_port_is_refused(database_url: str, tmp_path: Path) -> None:
    with s3_server(database_url, tmp_path) as server:
        settings = {
            "TIDINGS_DATABASE__URL": database_url,
            "TIDINGS_STORE__BLOBS": f"file://{tmp_path}/blobs",
            "TIDINGS_API__PORT": str(server.port),
        }
        with (tmp_path / "second.log").open("wb") as log:
            assert start(settings, log).wait(120) != 0
        assert "Cannot listen" in (tmp_path / "second.log").read_text()
        assert server.process.poll() is None


@pytest.fixture
def own_postgres(tmp_path: Path) -> Postgres:
    """One that may be stopped."""
    return Postgres(tmp_path / "postgres", free_port())


def healthy(server: Server, path: str) -> int:
    try:
        return int(urllib.request.urlopen(f"{server.endpoint}{path}", timeout=60).status)
    except urllib.error.HTTPError as error:
        return error.code


def test_without_its_database_the_server_asks_to_be_called_again_and_recovers(own_postgres: Postgres, tmp_path: Path) -> None:
    own_postgres.start()
    try:
        with s3_server(own_postgres.url, tmp_path) as server:
            assert request(server, "PUT", "/bucket").status == 200
            own_postgres.stop()
            answer = request(server, "PUT", "/bucket/key", body=b"x")
            assert (answer.status, answer.error["Code"]) == (503, "SlowDown")
            assert (healthy(server, "/-/ready"), healthy(server, "/-/healthy")) == (503, 200)
            own_postgres.start()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while (status := request(server, "PUT", "/bucket/key", body=b"x").status) != 200:
                assert status == 503
                assert time.monotonic() < deadline
                time.sleep(0.1)
            while healthy(server, "/-/ready") != 200:  # each process finds its own way back
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert server.query("select count(*) from changes") == [(1,)]
            assert "Traceback" not in server.log
    finally:
        own_postgres.stop()


def test_a_disk_that_takes_no_more_is_a_clear_error_and_leaves_nothing(database_url: str, tmp_path: Path) -> None:
    """The kernel itself refuses the writes: no file of the server may grow beyond 1 MiB."""
    with s3_server(database_url, tmp_path) as server:
        assert request(server, "PUT", "/bucket").status == 200
        small, large, larger = bytes(1000), bytes(800_000), bytes(3 << 20)
        assert request(server, "PUT", "/bucket/key", body=large).status == 200
        upload = request(server, "POST", "/bucket/parts", "uploads").body.split(b"<UploadId>")[1].split(b"<")[0].decode()
        before = server.everything()
        for child in psutil.Process(server.process.pid).children():
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        for path, query in [("/bucket/key", ""), ("/bucket/new", ""), ("/bucket/parts", f"partNumber=1&uploadId={upload}")]:
            answer = request(server, "PUT", path, query, larger)
            assert (answer.status, answer.error["Code"]) == (500, "InternalError")
        assert server.everything() == before
        assert "File too large" in server.log
        assert request(server, "PUT", "/bucket/small", body=small).status == 200
        assert request(server, "GET", "/bucket/key").body == large


def test_a_server_on_a_public_address_warns_of_what_is_meant_for_one_machine(database_url: str, tmp_path: Path) -> None:
    allowed = {"TIDINGS_OUTGOING__ALLOW": '["127.0.0.0/8"]', "TIDINGS_OUTGOING__ALLOW_HTTP": "true"}
    with s3_server(database_url, tmp_path, TIDINGS_API__HOST="0.0.0.0", **allowed) as server:
        log = (server.folder / "server.log").read_text()
    for words in (
        "on 0.0.0.0 without TLS",
        "webhooks may call this machine itself (127.0.0.0/8)",
        "TIDINGS_OUTGOING__ALLOW_HTTP",
    ):
        assert log.count(words) == 1, words
