"""Clients that take up all they can, beside a tenant that behaves well. `make chaos` has the long forms, with a clock."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import psutil
import psycopg
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from floods import Plan, flooding
from s3_server import REGION, Server, Signer, s3_server
from tenant import RATE, Tenant

from conftest import fresh_database
from tidings.access.keys import create_key
from tidings.access.projects import create_project
from tidings.local.postgres import Postgres
from waiting import PATIENCE_SECONDS, until

BUCKET, LARGE = "takes-much", 32 * 1024 * 1024
LISTED = 1000
"""Keys of a thousand characters, each five in the answer: five megabytes."""
GROWTH = 1.2
P99_SECONDS = 1.0


@dataclass
class Place:
    server: Server
    other: Server
    """The same server, with the key of another project."""
    tenant: Tenant

    def memory(self) -> int:
        parent = psutil.Process(self.server.process.pid)
        return sum(process.memory_info().rss for process in (parent, *parent.children(recursive=True)))

    def settles_below(self, most: float) -> bool:
        """Memory of answers goes back to the system while requests go on: the server's allocator has no thread of its own."""
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", self.server.port), 30) as client:
                client.sendall(b"GET /-/healthy HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
                while client.recv(1024):
                    pass
        return self.memory() <= most


@contextmanager
def place(postgres: Postgres, folder: Path, name: str, **environment: str) -> Iterator[Place]:
    with s3_server(fresh_database(postgres, name), folder, **environment) as server:
        with psycopg.connect(server.database_url, autocommit=True) as connection:
            project = create_project(connection, "takes much")
            access_key_id, secret = create_key(connection, project)
        other = replace(server, access_key_id=access_key_id, secret=secret, project=project)
        other.client().create_bucket(Bucket=BUCKET)
        client = other.client()
        client.put_object(Bucket=BUCKET, Key="large", Body=os.urandom(LARGE))
        with ThreadPoolExecutor(8) as threads:
            for number in range(LISTED):
                threads.submit(client.put_object, Bucket=BUCKET, Key=f"&{number:03}{'&' * 1000}", Body=b"")
        yield Place(server, other, Tenant(server))


@pytest.fixture(scope="module")
def defaults(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(postgres, tmp_path_factory.mktemp("limits"), "limits") as running:
        yield running


def head(server: Server, method: str, path: str, more: str = "", query: str = "") -> str:
    fields = Signer(server).headers(method, path, query, "UNSIGNED-PAYLOAD", {})
    target = f"{path}?{query}" if query else path
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "".join(f"{line}\r\n" for line in lines) + more + "\r\n"


def idle(here: Place, connections: int) -> Plan:
    return Plan(here.server.port, connections)


def headers(here: Place, connections: int) -> Plan:
    return Plan(here.server.port, connections, head="GET / HTTP/1.1\r\nhost: a\r\nx: ", drip="a")


def uploads(here: Place, connections: int) -> Plan:
    start = head(here.other, "PUT", f"/{BUCKET}/slow", "content-length: 1000000\r\n")
    return Plan(here.server.port, connections, head=start, drip="a")


def readers(here: Place, connections: int) -> Plan:
    return Plan(here.server.port, connections, head=head(here.other, "GET", f"/{BUCKET}/large"))


def listers(here: Place, connections: int) -> Plan:
    """Readers of answers that are made whole before they are sent."""
    return Plan(here.server.port, connections, head=head(here.other, "GET", f"/{BUCKET}", query="prefix=%26"))


@pytest.mark.parametrize(
    ("flood", "connections", "seconds"),
    [
        *((flood, 1500, 3) for flood in (idle, headers, uploads, readers)),
        pytest.param(idle, 10_000, 60, marks=pytest.mark.chaos),
        *(pytest.param(flood, 2000, 60, marks=pytest.mark.chaos) for flood in (headers, uploads, readers, listers)),
    ],
)
def test_a_tenant_gets_all_its_answers_beside_a_flood(
    defaults: Place, flood: Callable[[Place, int], Plan], connections: int, seconds: int, say: Callable[[str], None]
) -> None:
    tenant = defaults.tenant
    with tenant.at_work():
        tenant.until(3 * RATE)
    before = defaults.memory()
    with tenant.at_work(), flooding(flood(defaults, connections)) as report:
        tenant.until(len(tenant.took) + seconds * RATE)
        during = defaults.memory()
    assert tenant.failed == []
    assert report.opened >= connections
    assert set(report.answers) <= {"200", "503 SlowDown", "400 RequestTimeout"}
    if flood in (uploads, readers, listers):  # a project's share is 256 requests in each process
        assert report.answers["503 SlowDown"] > 0
    until(lambda: defaults.settles_below(GROWTH * before), "memory as before")
    say(
        f"{connections} {flood.__name__}, {len(tenant.took)} requests beside them: p50 {tenant.percentile(0.5):.3f} s, "
        f"p99 {tenant.percentile(0.99):.3f} s; most open {report.most}, closed {report.closed}, {report.answers}; memory "
        f"{before >> 20} MiB, {during >> 20} MiB, {defaults.memory() >> 20} MiB"
    )
    if seconds >= 60:
        assert tenant.percentile(0.99) < P99_SECONDS


@pytest.mark.chaos
def test_a_tenant_gets_all_its_answers_beside_a_flood_of_one_process(
    postgres: Postgres, tmp_path: Path, say: Callable[[str], None]
) -> None:
    """More than it accepts and the kernel keeps for it: new clients wait until the excess is closed."""
    with place(postgres, tmp_path, "limits_one", TIDINGS_API__WORKERS="1") as here:
        tenant = here.tenant
        with tenant.at_work(), flooding(idle(here, 10_000)) as report:
            tenant.until(len(tenant.took) + 60 * RATE)
        said = f"p50 {tenant.percentile(0.5):.3f} s, p99 {tenant.percentile(0.99):.3f} s"
        say(f"10000 idle at one process, {len(tenant.took)} requests beside them: {said}; closed {report.closed}")
        assert tenant.failed == []
        assert tenant.percentile(0.99) < P99_SECONDS


def test_an_address_with_too_many_connections_loses_the_oldest(postgres: Postgres, tmp_path: Path) -> None:
    small = {
        "TIDINGS_LIMITS__CONNECTIONS_PER_ADDRESS": "50",
        "TIDINGS_LIMITS__HEADER_SECONDS": "3600",
        "TIDINGS_API__WORKERS": "1",
    }
    with place(postgres, tmp_path, "limits_address", **small) as here:
        (worker,) = psutil.Process(here.server.process.pid).children()

        def held() -> int:
            return sum(
                each.raddr[:1] == ("127.0.1.1",) for each in worker.net_connections("tcp") if each.status == "ESTABLISHED"
            )

        with flooding(Plan(here.server.port, 300, addresses=1)) as report, here.tenant.at_work():
            until(lambda: 0 < held() <= 50, "50 connections of the address")
            here.tenant.until(2 * RATE)
        assert report.closed >= 250
        assert here.tenant.failed == []


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nhost: a\r\nx: "], ids=["nothing", "half of its headers"])
def test_a_connection_without_a_whole_request_is_closed_after_a_time(postgres: Postgres, tmp_path: Path, begun: bytes) -> None:
    with place(postgres, tmp_path, "limits_headers", TIDINGS_LIMITS__HEADER_SECONDS="1", TIDINGS_API__WORKERS="1") as here:
        with socket.create_connection(("127.0.0.1", here.server.port), PATIENCE_SECONDS) as connection:
            connection.sendall(begun)
            while connection.recv(4096):
                pass
        assert "headers in 1 s" in here.server.log, "it says what it allows"


def test_a_receive_that_waits_takes_no_request_from_its_project(postgres: Postgres, tmp_path: Path) -> None:
    small = {"TIDINGS_LIMITS__REQUESTS_PER_PROJECT": "3", "TIDINGS_LIMITS__WAITS_PER_PROJECT": "6", "TIDINGS_API__WORKERS": "1"}
    with place(postgres, tmp_path, "limits_waits", **small) as here, ThreadPoolExecutor(6) as threads:
        sqs = client(here.server, "sqs")
        queue = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        waits = [threads.submit(received, here.server, queue) for _ in range(6)]

        def refusal() -> Any:
            try:
                sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=1)
            except ClientError as error:
                waits = "receives of this project wait" in error.response["Error"]["Message"]
                return waits and error.response  # else the requests of the others have just come
            return None

        refused = until(refusal, "a refusal of the seventh")
        assert refused["ResponseMetadata"]["HTTPStatusCode"] == 503
        assert refused["Error"]["Code"].endswith("ServiceUnavailable")
        assert refused["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "1"
        assert sqs.list_queues()["QueueUrls"] == [queue]
        for _ in waits:
            sqs.send_message(QueueUrl=queue, MessageBody="a job")
        assert [wait.result() for wait in waits] == [1] * 6


def client(server: Server, service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=server.endpoint,
        region_name=REGION,
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret,
        config=Config(retries={"total_max_attempts": 1}),
    )


def received(server: Server, queue: str) -> int:
    """Messages that came, from as many calls as it took: one that is refused is made again."""
    sqs = client(server, "sqs")
    while True:
        try:
            if found := sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20).get("Messages", []):
                return len(found)
        except ClientError:
            time.sleep(0.1)


@pytest.mark.parametrize(
    "framing",
    [
        "transfer-encoding: identity, chunked\r\n",
        "transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: chunked, identity\r\n",
    ],
)
def test_a_body_whose_end_is_in_doubt_is_refused(defaults: Place, framing: str) -> None:
    with socket.create_connection(("127.0.0.1", defaults.server.port), 30) as connection:
        connection.sendall(f"POST /-/healthy HTTP/1.1\r\nhost: a\r\n{framing}\r\n0\r\n\r\n".encode())
        answer = b""
        while piece := connection.recv(4096):  # the connection is closed behind the answer
            answer += piece
    assert answer.startswith(b"HTTP/1.1 400 ")
