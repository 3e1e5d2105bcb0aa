"""The S3 server as a process of its own, clients for it, and a signer that shares no code with it."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import boto3
import psycopg
from botocore.config import Config

import canary
from tidings.access.keys import create_key
from tidings.access.projects import create_project
from tidings.db.migrate import migrate
from tidings.local.processes import free_port
from waiting import answers, until_started

REGION = "us-east-1"


@dataclass
class Server:
    database_url: str
    folder: Path
    port: int
    access_key_id: str
    secret: str = field(repr=False)
    project: str
    process: subprocess.Popen[bytes]
    grpc_port: int = 0
    _connection: psycopg.Connection | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    def client(self, service: str = "s3", **config: Any) -> Any:
        """boto3 at its default settings, but for the retries: what fails should be seen."""
        client = boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret,
            config=Config(**{"retries": {"total_max_attempts": 1}, **config}),
        )
        return canary.watched(client)

    def environment(self) -> dict[str, str]:
        """For the AWS command line, which must find nothing of the developer's own."""
        return {
            **os.environ,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        if self._connection is None or self._connection.broken:
            self._connection = psycopg.connect(self.database_url, autocommit=True)
        return self._connection.execute(sql.encode(), parameters).fetchall()

    def blobs(self) -> list[Path]:
        return [path for path in (self.folder / "blobs").glob("*/*") if path.is_file()]

    def everything(self) -> tuple[Any, ...]:
        """What is stored, for a test that says that nothing has changed."""
        tables = ("bucket_metainfos", "heads", "versions", "uploads", "parts", "changes", "bucket_eventing_configs")
        return (*(self.query(f"select * from {table} order by 1, 2, 3") for table in tables), sorted(self.blobs()))


@contextmanager
def s3_server(database_url: str, folder: Path, **environment: str) -> Iterator[Server]:
    """A migrated database with one project and key, and the server over it."""
    migrate(database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        project = create_project(connection, "tests")
        access_key_id, secret = create_key(connection, project)
    port = free_port()
    settings = {
        "TIDINGS_DATABASE__URL": database_url,
        "TIDINGS_STORE__BLOBS": f"file://{folder}/blobs",
        "TIDINGS_API__PORT": str(port),
        "TIDINGS_API__METRICS": "loopback",
        "TIDINGS_BUCKET_EVENTING__PROJECTS": "*",
        **environment,
    }
    grpc_port = int(settings.get("TIDINGS_API__GRPC_PORT", 0))
    with (folder / "server.log").open("wb") as log:
        process = start(settings, log)
    server = Server(database_url, folder, port, access_key_id, secret, project, process, grpc_port)
    try:
        wait_until_ready(server)
        canary.plant(database_url)
        yield server
        canary.plant(database_url)
    finally:
        server.process.terminate()  # a test may have started another
        server.process.wait(120)


def start(settings: Mapping[str, str], log: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tidings", "serve"], env={**os.environ, **settings}, stdout=log, stderr=log)


def wait_until_ready(server: Server) -> None:
    until_started(server.process, lambda: answers(f"{server.endpoint}/-/ready"), lambda: server.log)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, str]:
        return {element.tag: element.text or "" for element in ElementTree.fromstring(self.body)}


@dataclass
class Signer:
    """Signature Version 4, written from the S3 API reference."""

    server: Server
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    region: str = REGION

    def __post_init__(self) -> None:
        self.timestamp = self.at.strftime("%Y%m%dT%H%M%SZ")
        self.scope = f"{self.timestamp[:8]}/{self.region}/s3/aws4_request"
        self.key = f"AWS4{self.server.secret}".encode()
        for part in self.scope.split("/"):
            self.key = hmac.digest(self.key, part.encode(), "sha256")
        self.signature = ""

    def signed(self, *lines: str) -> str:
        return hmac.digest(self.key, "\n".join(lines).encode("latin-1"), "sha256").hex()

    def headers(
        self, method: str, path: str, query: str, payload_hash: str, more: Mapping[str, str], unsigned: tuple[str, ...] = ()
    ) -> dict[str, str]:
        fields = {name.lower(): value for name, value in more.items()}
        fields |= {"host": f"127.0.0.1:{self.server.port}", "x-amz-date": self.timestamp, "x-amz-content-sha256": payload_hash}
        names = sorted(name for name in fields if name not in unsigned)
        parameters = sorted(part if "=" in part else f"{part}=" for part in query.split("&")) if query else []
        canonical = "\n".join(
            [
                method,
                path,
                "&".join(parameters),
                *(f"{name}:{fields[name]}" for name in names),
                "",
                ";".join(names),
                payload_hash,
            ]
        )
        digest = hashlib.sha256(canonical.encode("latin-1")).hexdigest()
        self.signature = self.signed("AWS4-HMAC-SHA256", self.timestamp, self.scope, digest)
        fields["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.server.access_key_id}/{self.scope},"
            f"SignedHeaders={';'.join(names)},Signature={self.signature}"
        )
        return fields

    def chunked(self, *chunks: bytes) -> bytes:
        """A body in signed chunks, each over the signature before it, the empty one last."""
        body, previous, empty = b"", self.signature, hashlib.sha256(b"").hexdigest()
        for chunk in (*chunks, b""):
            digest = hashlib.sha256(chunk).hexdigest()
            previous = self.signed("AWS4-HMAC-SHA256-PAYLOAD", self.timestamp, self.scope, previous, empty, digest)
            body += b"%x;chunk-signature=%s\r\n%s\r\n" % (len(chunk), previous.encode(), chunk)
        return body


def request(
    server: Server,
    method: str,
    path: str,
    query: str = "",
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    signer: Signer | None = None,
    payload_hash: str | None = None,
    unsigned: tuple[str, ...] = (),
    after_signing: Callable[[dict[str, str]], None] = lambda _: None,
) -> Answer:
    """One request on a connection of its own, exactly as it is written here."""
    signer = signer or Signer(server)
    payload_hash = payload_hash or hashlib.sha256(body).hexdigest()
    fields = signer.headers(method, path, query, payload_hash, headers or {}, unsigned)
    after_signing(fields)
    return send(server, method, f"{path}?{query}" if query else path, fields, body)


def send(server: Server, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        length = {} if "transfer-encoding" in headers else {"content-length": str(len(body))}
        for name, value in {**length, **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body or None)
        response = connection.getresponse()
        answer = Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
        canary.answered(answer.headers, answer.body)
        return answer
    finally:
        connection.close()
