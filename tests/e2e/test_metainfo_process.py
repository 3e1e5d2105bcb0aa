"""The gRPC front in the server's processes: its port, its certificate, its workers, how it stops, a database that is away."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import grpc
import psutil
import pytest
from metainfo_server import CREATED, REMOVED, TOPIC, Front, metainfo_server
from s3_server import start

from tidings.client import Metainfo, Unavailable
from tidings.local.postgres import Postgres
from tidings.local.processes import free_port
from waiting import until


def connections(front: Front, number: int = 30) -> Counter[int]:
    """How many of so many new connections each worker has got."""
    own = [("grpc.use_local_subchannel_pool", 1)]  # else they would all share one
    channels = [grpc.insecure_channel(front.target, options=own) for _ in range(number)]
    try:
        for channel in channels:
            grpc.channel_ready_future(channel).result(20)
        found: Counter[int] = Counter()
        for worker in psutil.Process(front.server.process.pid).children():
            for connection in worker.net_connections("tcp"):
                if connection.laddr.port == front.server.grpc_port and connection.status == psutil.CONN_ESTABLISHED:
                    found[worker.pid] += 1
        return found
    finally:
        for channel in channels:
            channel.close()


def test_all_workers_answer_a_killed_one_is_replaced_and_stopping_is_quick(database_url: str, tmp_path: Path) -> None:
    with metainfo_server(database_url, tmp_path, TIDINGS_API__WORKERS="2") as front:
        bucket = front.bucket()
        first = until(lambda: len(found := connections(front)) == 2 and found, "both workers answer")
        killed = min(first)
        psutil.Process(killed).kill()
        second = until(lambda: len(found := connections(front)) == 2 and killed not in found and found, "two again")
        assert len(second | first) == 3
        key = front.key().api_key
        for number in range(10):
            with front.client(key) as client:
                client.put_bucket_notification_configuration(bucket, (CREATED, REMOVED)[number % 2])
                assert client.get_bucket_notification_configuration(bucket) == (CREATED, REMOVED)[number % 2]
        with front.client(key) as idle:
            idle.get_bucket_notification_configuration(bucket)
            front.server.process.send_signal(signal.SIGTERM)
            assert front.server.process.wait(120) == 0, "an idle connection holds nobody up"
        assert "Traceback" not in front.server.log


def test_a_call_under_way_is_finished_before_the_server_stops(database_url: str, tmp_path: Path) -> None:
    with metainfo_server(database_url, tmp_path) as front:
        bucket = front.bucket()
        said: list[object] = []

        def put() -> None:
            with front.client() as client:
                said.append(client.put_bucket_notification_configuration(bucket, CREATED))

        front.pubsub.set_fault(TOPIC, "hang")
        calling = threading.Thread(target=put)
        calling.start()
        time.sleep(2)
        front.server.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert (said, front.server.process.poll()) == ([], None)
        front.pubsub.set_fault(TOPIC, None)
        assert front.server.process.wait(120) == 0
        calling.join(120)
        assert said == [None]
        assert [row[1] for row in front.table() if row[2]] == [CREATED.id]


def test_with_a_certificate_grpc_speaks_tls_alone(database_url: str, tmp_path: Path) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    chain, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run([*command, *subject, "-keyout", str(key), "-out", str(chain)], check=True, capture_output=True)
    # The HTTP port speaks TLS as well: a second server, over the database of a first one that tests can talk to.
    with metainfo_server(database_url, tmp_path) as front:
        bucket, api_key, port = front.bucket(), front.key().api_key, free_port()
        settings = {
            "TIDINGS_DATABASE__URL": database_url,
            "TIDINGS_STORE__BLOBS": f"file://{tmp_path}/blobs",
            "TIDINGS_API__PORT": str(free_port()),
            "TIDINGS_API__GRPC_PORT": str(port),
            "TIDINGS_API__WORKERS": "1",
            "TIDINGS_API__TLS_CERTIFICATE": str(chain),
            "TIDINGS_API__TLS_KEY": str(key),
            "TIDINGS_BUCKET_EVENTING__PROJECTS": "*",
            "TIDINGS_PUBSUB__EMULATOR_HOST": front.pubsub.address,
        }
        with (tmp_path / "tls.log").open("wb") as log:
            process = start(settings, log)
        try:
            with Metainfo(f"127.0.0.1:{port}", api_key, tls=chain) as client:
                grpc.channel_ready_future(client._channel).result(30)
                client.put_bucket_notification_configuration(bucket, CREATED)
                assert client.get_bucket_notification_configuration(bucket) == CREATED
            for trusted in (False, True):  # in the clear, and with the authorities of this machine
                with Metainfo(f"127.0.0.1:{port}", api_key, tls=trusted) as client, pytest.raises(Unavailable):
                    client.get_bucket_notification_configuration(bucket)
        finally:
            process.terminate()
            process.wait(120)


def test_a_port_that_is_taken_is_one_sentence(database_url: str, tmp_path: Path) -> None:
    with metainfo_server(database_url, tmp_path) as front:
        settings = {
            "TIDINGS_DATABASE__URL": database_url,
            "TIDINGS_STORE__BLOBS": f"file://{tmp_path}/blobs",
            "TIDINGS_API__PORT": str(free_port()),
        }
        for port in (front.server.grpc_port, int(settings["TIDINGS_API__PORT"])):
            with (tmp_path / "second.log").open("wb") as log:
                assert start({**settings, "TIDINGS_API__GRPC_PORT": str(port)}, log).wait(120) != 0
            (said,) = (tmp_path / "second.log").read_text().splitlines()
            assert str(port) in said
            assert "grpc_port" in said.lower()
        with front.client() as client:
            assert client.get_bucket_notification_configuration(front.bucket()) is None


def test_without_a_port_there_is_no_grpc_in_the_process(database_url: str, tmp_path: Path) -> None:
    with metainfo_server(database_url, tmp_path, TIDINGS_API__GRPC_PORT="0") as front:
        front.bucket()
        (worker,) = psutil.Process(front.server.process.pid).children()
        assert not any("cygrpc" in each.path for each in worker.memory_maps())


def test_without_its_database_the_service_is_unavailable_and_recovers(tmp_path: Path) -> None:
    postgres = Postgres(tmp_path / "postgres", free_port())
    postgres.start()
    try:
        with metainfo_server(postgres.url, tmp_path) as front, front.client() as client:
            bucket = front.bucket()
            client.put_bucket_notification_configuration(bucket, CREATED)
            postgres.stop()
            with pytest.raises(Unavailable, match="try again"):
                client.put_bucket_notification_configuration(bucket, REMOVED)
            with pytest.raises(Unavailable, match="try again"):
                client.get_bucket_notification_configuration(bucket)
            postgres.start()
            until(lambda: _gets(client, bucket), "it answers again")
            assert client.get_bucket_notification_configuration(bucket) == CREATED
            assert "Traceback" not in front.server.log
    finally:
        postgres.stop()


def _gets(client: Metainfo, bucket: str) -> bool:
    try:
        return client.get_bucket_notification_configuration(bucket) is not None
    except Unavailable:
        return False
