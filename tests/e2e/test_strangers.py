"""What somebody without a key can take from those who have one: nothing that they notice."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from floods import Plan, flooding
from metainfo_server import TOPIC, Front, metainfo_server
from s3_server import REGION, s3_server
from sqs_clients import sqs
from test_metainfo import connections

from files_registry import event, files_webhook, trusted_topic
from tidings.access import api_keys
from tidings.access.keys import create_key
from tidings.access.projects import create_project
from tidings.api import metainfo_pb2 as pb
from tidings.api.grpc_calls import MAX_PER_PROJECT
from tidings.client import NoSuchBucket
from tidings.db.migrate import migrate
from waiting import PATIENCE_SECONDS, until

GET, PUT = (f"/tidings.metainfo.Metainfo/{verb}BucketNotificationConfiguration" for verb in ("Get", "Put"))
IDLE, SLOW = "TIDINGS_LIMITS__HEADER_SECONDS", "TIDINGS_LIMITS__IDLE_SECONDS"


@pytest.fixture
def front(database_url: str, tmp_path: Path) -> Iterator[Front]:
    patient = {IDLE: "3600", SLOW: "3600"}
    with metainfo_server(database_url, tmp_path, TIDINGS_LIMITS__CONNECTIONS="256", **patient) as running:
        yield running


def test_calls_that_are_opened_and_send_nothing_end_for_newer_ones(front: Front) -> None:
    over, bucket = threading.Event(), front.bucket()

    def nothing() -> Iterator[bytes]:
        over.wait(120)
        yield from ()

    with ExitStack() as open_, front.client() as client:
        channels = connections(front, open_, 12)
        calls = [channel.stream_unary(GET).future(nothing()) for channel in channels for _ in range(100)]
        try:
            told = until(lambda: len(done := [call for call in calls if call.done()]) >= 600 and done, "the oldest are ended")
            assert {call.code() for call in told} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            for _ in range(20):
                assert client.get_bucket_notification_configuration(bucket) is None
        finally:
            over.set()
            for call in calls:
                call.cancel()


def test_idle_connections_to_the_grpc_port_are_closed_for_others(front: Front) -> None:
    bucket = front.bucket()
    with front.client() as before, flooding(Plan(front.server.grpc_port, 1000)) as report:
        for _ in range(20):
            with front.client() as client:
                assert client.get_bucket_notification_configuration(bucket) is None
            assert before.get_bucket_notification_configuration(bucket) is None
    assert report.closed >= 500


def test_calls_of_one_project_leave_room_for_others(front: Front) -> None:
    bucket = front.bucket()
    header = pb.RequestHeader(api_key=front.key().api_key.encode())
    configuration = pb.NotificationConfiguration(topic_name=TOPIC, events=["s3:ObjectCreated:*"])
    request = pb.PutBucketNotificationConfigurationRequest(header=header, name=bucket.encode(), configuration=configuration)
    front.pubsub.set_fault(TOPIC, "hang")
    with ExitStack() as open_, front.client(front.key(project=project(front, "another")).api_key) as other:
        methods = [channel.unary_unary(PUT) for channel in connections(front, open_, 2)]
        calls = [method.future(request.SerializeToString(), timeout=60) for method in methods for _ in range(90)]
        beyond = len(calls) - MAX_PER_PROJECT
        told = until(lambda: len(done := [c for c in calls if c.done()]) >= beyond and done, "those beyond the share are told")
        assert {call.code() for call in told} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        with pytest.raises(NoSuchBucket):  # it is answered, though it has no such bucket
            other.get_bucket_notification_configuration(bucket)
        for call in calls:
            call.cancel()
    front.pubsub.set_fault(TOPIC, None)


def test_answers_that_a_client_does_not_let_out_shut_the_port_for_nobody(front: Front) -> None:
    bucket, theirs = front.bucket(), front.key(project=project(front, "another"))
    own = front.bucket(theirs)
    with front.client() as client, ExitStack() as open_:
        starved = []
        for _ in range(42):  # with 99 calls each these are more than the port has open at once
            starved.append(open_.enter_context(Starved(front)))
            starved[-1].get(theirs.api_key, own, calls=99)
            assert client.get_bucket_notification_configuration(bucket) is None
        until(lambda: sum(each.is_reset() for each in starved) >= 30, "the oldest are reset")
        assert not starved[-1].is_reset()
        assert client.get_bucket_notification_configuration(bucket) is None


def test_a_client_that_does_not_let_its_answer_out_is_reset(database_url: str, tmp_path: Path) -> None:
    with metainfo_server(database_url, tmp_path, **{SLOW: "1"}) as front, Starved(front) as starved:
        starved.get(front.key().api_key, front.bucket(), calls=1)
        until(starved.is_reset, "the connection is reset")


class Starved:
    """A connection on which the server may send headers and no data: SETTINGS_INITIAL_WINDOW_SIZE is 0 (RFC 9113, 6.9.2)."""

    def __init__(self, front: Front) -> None:
        self._socket = socket.create_connection(("127.0.0.1", front.server.grpc_port), PATIENCE_SECONDS)
        self._received = self._socket.makefile("rb")
        settings, acknowledged = frame(4, 0, 0, struct.pack(">HI", 4, 0)), frame(4, 1, 0)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + acknowledged)

    def __enter__(self) -> Starved:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def get(self, api_key: str, bucket: str, calls: int) -> None:
        """Make calls, no more at once than a project may have, until each has its answer or the connection ends."""
        header = pb.RequestHeader(api_key=api_key.encode())
        request = pb.GetBucketNotificationConfigurationRequest(header=header, name=bucket.encode()).SerializeToString()
        data = struct.pack(">BI", 0, len(request)) + request
        names = {":method": "POST", ":scheme": "http", ":path": GET, ":authority": "a", "te": "trailers"}
        fields = b"".join(map(literal, [*names.items(), ("content-type", "application/grpc")]))
        streams = range(1, 2 * calls, 2)
        with suppress(ConnectionError):
            for first in range(0, calls, MAX_PER_PROJECT):
                some = streams[first : first + MAX_PER_PROJECT]
                self._socket.sendall(b"".join(frame(1, 4, each, fields) + frame(0, 1, each, data) for each in some))
                for _ in some:
                    self._headers()

    def _headers(self) -> None:
        """Wait for the headers of an answer, which need no window."""
        kind = 0
        while kind != 1:
            size, kind, _, _ = struct.unpack(">IBBI", b"\0" + self._read(9))
            self._read(size)

    def _read(self, number: int) -> bytes:
        if len(data := self._received.read(number)) < number:
            raise ConnectionError
        return data

    def is_reset(self) -> bool:
        try:
            return closed(self._socket)
        except ConnectionError:
            return True


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(field: tuple[str, str]) -> bytes:
    """A header field in HPACK: literal, without a place in the table."""
    name, value = (each.encode() for each in field)
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def project(front: Front, name: str) -> str:
    with psycopg.connect(front.server.database_url, autocommit=True) as connection:
        return create_project(connection, name)


def test_the_id_of_a_key_makes_nobody_hold_more_than_its_share_of_bodies(database_url: str, tmp_path: Path) -> None:
    small = {"TIDINGS_LIMITS__UNPROVEN_BYTES": str(8 << 20), "TIDINGS_API__WORKERS": "1"}
    with s3_server(database_url, tmp_path, **small) as server, ExitStack() as open_:
        credential = f"{server.access_key_id}/{{day}}/{REGION}/sqs/aws4_request"
        signed = sqs(server)
        queue = signed.create_queue(QueueName="jobs")["QueueUrl"]

        def begun() -> socket.socket:
            at = datetime.now(UTC)
            client = open_.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
            fields = (
                f"POST / HTTP/1.1\r\nhost: a\r\nx-amz-date: {at:%Y%m%dT%H%M%SZ}\r\ncontent-length: 1900000\r\n"
                f"authorization: AWS4-HMAC-SHA256 Credential={credential.format(day=f'{at:%Y%m%d}')}, "
                f"SignedHeaders=host;x-amz-date, Signature={'0' * 64}\r\n\r\n"
            )
            with suppress(ConnectionError):  # it may be refused and closed before all is sent
                client.sendall(fields.encode() + bytes(1_500_000))
            return client

        def refused(client: socket.socket) -> bytes:
            client.settimeout(0.2)
            try:
                return client.recv(4096)
            except (TimeoutError, ConnectionError):
                return b""

        clients = [begun() for _ in range(4)]
        answers = until(lambda: [answer for client in clients if (answer := refused(client))], "a refusal")
        assert all(answer.startswith(b"HTTP/1.1 503") for answer in answers)
        signed.send_message(QueueUrl=queue, MessageBody="small ones go on")
        open_.close()
        until(lambda: send(signed, queue, "x" * 250_000), "room again")


def test_a_key_that_is_revoked_while_the_body_comes_opens_nothing(database_url: str, tmp_path: Path) -> None:
    with s3_server(database_url, tmp_path) as server:
        content = b'{"QueueName": "jobs"}'
        request = AWSRequest("POST", f"{server.endpoint}/", {"x-amz-target": "AmazonSQS.CreateQueue"}, content)
        SigV4Auth(Credentials(server.access_key_id, server.secret), "sqs", REGION).add_auth(request)
        fields = {"host": f"127.0.0.1:{server.port}", "content-length": str(len(content)), **dict(request.headers)}
        head = "POST / HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as client:
            client.sendall(head.encode() + content[:-1])
            assert sqs(server).list_queues().get("QueueUrls", []) == []
            with psycopg.connect(server.database_url, autocommit=True) as connection:
                api_keys.revoke(connection, server.access_key_id)
            time.sleep(5.5)  # for so long a process may know a key
            client.sendall(content[-1:])
            answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 403"), answer
        assert server.query("select count(*) from queues") == [(0,)]


def test_a_key_that_is_revoked_while_a_call_waits_or_its_body_comes_gets_nothing(database_url: str, tmp_path: Path) -> None:
    """A receive that waits for a message, and a subscription to the catalog whose body is on its way."""
    with s3_server(database_url, tmp_path) as server, ThreadPoolExecutor(1) as threads:
        with psycopg.connect(server.database_url, autocommit=True) as connection:
            key = api_keys.create(connection, server.project)
            queue = sqs(server).create_queue(QueueName="jobs")["QueueUrl"]
            theirs = sqs(replace(server, access_key_id=key.access_key_id, secret=key.secret))
            waiting = threads.submit(theirs.receive_message, QueueUrl=queue, WaitTimeSeconds=20)
            body = b'{"destination": "arn:gcp:pubsub::p:t"}'
            head = (
                f"PUT /-/catalog/subscriptions/late HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key.api_key}\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as client:
                client.sendall(head.encode() + body[:-1])
                until(lambda: trees(server.port, key.api_key) == 200, "the key is known")
                api_keys.revoke(connection, key.api_key)
                until(lambda: trees(server.port, key.api_key) == 401, "the key is known to be revoked")
                time.sleep(5.5)  # in the process that has the calls as well
                sqs(server).send_message(QueueUrl=queue, MessageBody="not for them")
                client.sendall(body[-1:])
                answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 401"), answer
        with pytest.raises(ClientError, match="revoked while the request waited"):
            waiting.result()
        [message] = sqs(server).receive_message(QueueUrl=queue, WaitTimeSeconds=20)["Messages"]
        assert message["Body"] == "not for them"


def send(client: Any, queue: str, text: str) -> bool:
    try:
        client.send_message(QueueUrl=queue, MessageBody=text)
    except client.exceptions.ClientError:
        return False
    return True


def test_who_needs_no_key_for_a_catalog_takes_nothing_from_its_project(database_url: str, tmp_path: Path) -> None:
    migrate(database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        open_project = create_project(connection, "open")
        key = create_key(connection, open_project)
    small = {"TIDINGS_LIMITS__REQUESTS_PER_PROJECT": "2", "TIDINGS_API__WORKERS": "1"}
    with s3_server(database_url, tmp_path, TIDINGS_CATALOG__ANONYMOUS_PROJECT=open_project, **small) as server:
        server.access_key_id, server.secret = key
        with ExitStack() as open_:

            def is_used_up() -> bool:
                client = open_.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
                client.sendall(b"POST /-/catalog/api/v1/trees/tree HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{")
                return trees(server.port) == 429

            until(is_used_up, "the share of those without a key is used up")
            assert server.client().list_buckets()["Buckets"] == []
        until(lambda: trees(server.port) == 200, "room again")


def trees(port: int, api_key: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    proof = {"authorization": f"Bearer {api_key}"} if api_key else {}
    connection.request("GET", "/-/catalog/api/v1/trees", headers={"connection": "close", **proof})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_a_connection_that_brought_a_genuine_message_is_not_closed_for_idle_ones(database_url: str, tmp_path: Path) -> None:
    migrate(database_url)
    small = {"TIDINGS_LIMITS__CONNECTIONS_PER_ADDRESS": "16", IDLE: "3600"}
    with trusted_topic() as topic, files_webhook(database_url, tmp_path, topic.url, **small) as webhook:
        port = int(webhook.url.rpartition(":")[2])
        sender = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"content-type": "text/plain"}

        def post() -> int:
            sender.request("POST", "/api/sns", json.dumps(topic.message(event())).encode(), headers)
            answer = sender.getresponse()
            answer.read()
            return answer.status

        assert post() < 300
        end = sender.sock.getsockname()
        idle = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(40)]
        until(lambda: sum(map(closed, idle)) >= 25, "the excess is closed")
        assert sender.sock.getsockname() == end
        assert not closed(sender.sock)
        assert post() < 300
        for each in idle:
            each.close()


def closed(client: socket.socket) -> bool:
    patience = client.gettimeout()
    client.setblocking(False)
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    finally:
        client.settimeout(patience)
