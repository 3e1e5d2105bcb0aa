"""The forms in which a pair of access key id and secret signs a call, and the door that gets it."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth, S3SigV4PostAuth, S3SigV4QueryAuth, SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from credential_operations import BUCKET, DONE, MULTIPART, Call
from s3_server import REGION, Server, Signer

import canary

_CODE = re.compile(rb'<Code>(\w+)</Code>|"__type": ?"com.amazonaws.sqs#(\w+)"|"(?:errorC|c)ode": ?"(\w+)"')
_LENGTH = re.compile(r"(?i)\r\ncontent-length: *([0-9]+)")
_SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
PAYLOADS = (
    *("UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
    *(_SIGNED_CHUNKS, f"{_SIGNED_CHUNKS}-TRAILER"),
)
"""Of a body whose SHA-256 is not among what the headers' signature is over."""


class Pair(NamedTuple):
    name: str
    access_key_id: str
    secret: str


@dataclass
class Door:
    """An HTTP server, asked on one connection. It reads answers by itself: `http.client` takes longer than the server."""

    url: str
    _connection: socket.socket | None = field(default=None, repr=False)

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> str:
        """Status and code. Nothing that is sent here may be a fault of the server."""
        host = urlsplit(self.url).netloc
        fields = {"host": host, **{name.lower(): value for name, value in headers.items()}, "content-length": str(len(body))}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        head, content = self._exchanged("\r\n".join([*lines, "", ""]).encode("latin-1") + body, method == "HEAD")
        canary.answered(head, content)
        status = int(head[9:12])
        assert status < 500, (status, content[:300])
        code = _CODE.search(content) if status >= 400 else None
        return f"{status} {code[code.lastindex or 0].decode()}" if code else str(status)

    def opens(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> bool:
        """Whether the request was served."""
        return self.answer(method, target, headers, body) in DONE

    def _exchanged(self, request: bytes, has_no_body: bool) -> tuple[str, bytes]:
        if self._connection is not None:
            try:
                return self._read(self._connection, request, has_no_body)
            except ConnectionError:  # it was idle for too long
                self.close()
        host, _, port = urlsplit(self.url).netloc.partition(":")
        self._connection = socket.create_connection((host, int(port)), 60)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._read(self._connection, request, has_no_body)

    def _read(self, connection: socket.socket, request: bytes, has_no_body: bool) -> tuple[str, bytes]:
        connection.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more(connection)
        raw, _, content = data.partition(b"\r\n\r\n")
        head = raw.decode("latin-1")
        length = _LENGTH.search(head)
        expected = 0 if has_no_body or length is None else int(length[1])
        while len(content) < expected:
            content += self._more(connection)
        assert len(content) == expected, (head, content[:300])
        if "\r\nconnection: close" in head.lower():
            self.close()
        return head, content

    def _more(self, connection: socket.socket) -> bytes:
        if data := connection.recv(65536):
            return data
        raise ConnectionError("the server closed the connection")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def signed(door: Door, pair: Pair, call: Call) -> str:
    request = AWSRequest(call.method, f"{door.url}{call.target}", headers=dict(call.headers), data=call.body)
    signer = S3SigV4Auth if call.service == "s3" else SigV4Auth
    signer(Credentials(pair.access_key_id, pair.secret), call.service, REGION).add_auth(request)
    return door.answer(call.method, call.target, dict(request.headers), call.body)


def signature(pair: Pair, call: Call) -> dict[str, str]:
    """The headers of a signature alone, in the small letters of gRPC's metadata."""
    request = AWSRequest(call.method, f"http://127.0.0.1{call.target}", data=call.body)
    S3SigV4Auth(Credentials(pair.access_key_id, pair.secret), call.service, REGION).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def presigned(door: Door, pair: Pair, call: Call) -> str:
    request = AWSRequest(call.method, f"{door.url}{call.target}", headers=dict(call.headers))  # S3 signs no body here
    signer = S3SigV4QueryAuth if call.service == "s3" else SigV4QueryAuth
    signer(Credentials(pair.access_key_id, pair.secret), call.service, REGION, 600).add_auth(request)
    return door.answer(call.method, request.url.removeprefix(door.url), dict(request.headers), call.body)


def streamed(server: Server, door: Door, pair: Pair, call: Call, payload: str, chunks: Pair) -> str:
    """`pair` signs the headers; `chunks` signs what is signed of the body."""
    path, _, query = call.target.partition("?")
    head = Signer(replace(server, access_key_id=pair.access_key_id, secret=pair.secret))
    checksum = base64.b64encode(zlib.crc32(call.body).to_bytes(4, "big")).decode()
    more = {}
    if payload.startswith("STREAMING-"):
        more = {"content-encoding": "aws-chunked", "x-amz-decoded-content-length": str(len(call.body))}
    if payload.endswith("-TRAILER"):
        more["x-amz-trailer"] = "x-amz-checksum-crc32"
    headers = head.headers(call.method, path, query, payload, more)
    tail = Signer(replace(server, access_key_id=chunks.access_key_id, secret=chunks.secret), head.at)
    tail.signature = head.signature
    body = call.body
    if payload.startswith(_SIGNED_CHUNKS):
        body = tail.chunked(call.body)
    elif payload.startswith("STREAMING-"):
        body = b"%x\r\n%s\r\n0\r\n" % (len(call.body), call.body)
    if payload.endswith("-TRAILER"):
        line = f"x-amz-checksum-crc32:{checksum}"
        body = body.removesuffix(b"\r\n") + f"\r\n{line}\r\n".encode()
        if payload.startswith(_SIGNED_CHUNKS):
            last = body.rpartition(b"chunk-signature=")[2][:64].decode()
            digest = hashlib.sha256(f"{line}\n".encode()).hexdigest()
            signature = tail.signed("AWS4-HMAC-SHA256-TRAILER", tail.timestamp, tail.scope, last, digest)
            body += f"x-amz-trailer-signature:{signature}\r\n".encode()
        body += b"\r\n"
    return door.answer(call.method, call.target, headers, body)


def posted(door: Door, pair: Pair) -> bool:
    """A browser's form with a signed policy."""
    until = (datetime.now(UTC) + timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
    request = AWSRequest("POST", f"{door.url}/{BUCKET}")
    policy = {"expiration": until, "conditions": [{"bucket": BUCKET}, {"key": "form"}]}
    request.context = {"s3-presign-post-fields": {"key": "form"}, "s3-presign-post-policy": policy}
    S3SigV4PostAuth(Credentials(pair.access_key_id, pair.secret), "s3", REGION).add_auth(request)
    fields = request.context["s3-presign-post-fields"]
    parts = [f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    body = "".join([*parts, '--b\r\ncontent-disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n']).encode()
    return door.opens("POST", f"/{BUCKET}", MULTIPART, body)
