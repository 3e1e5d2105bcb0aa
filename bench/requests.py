"""PutObject and GetObject as bytes on a socket: signed beforehand, sent and answered with next to no work on this side."""

from __future__ import annotations

import hashlib
import hmac
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bench.measure import CannotMeasure

BODY = bytes(range(256)) * 4
"""1 KiB, the same for every small object."""
_SIGNED = "host;x-amz-content-sha256;x-amz-date"


@dataclass(frozen=True)
class Signer:
    """Signature Version 4, with the body's hash signed as SDKs do over plain HTTP."""

    address: tuple[str, int]
    region: str
    access_key_id: str
    secret: str

    @classmethod
    def of(cls, ready: dict[str, Any]) -> Signer:
        host, _, port = ready["s3"].removeprefix("http://").partition(":")
        return cls((host, int(port)), ready["region"], ready["access_key_id"], ready["secret_access_key"])

    def put(self, bucket: str, key: str) -> bytes:
        """The whole request, good for a quarter of an hour. The key must need no escaping."""
        return self.head("PUT", bucket, key, BODY) + BODY

    def get(self, bucket: str, key: str) -> bytes:
        return self.head("GET", bucket, key, b"")

    def head(self, method: str, bucket: str, key: str, body: bytes, payload: str | None = None) -> bytes:
        """The request without its body, which is signed unless `payload` says otherwise."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        host = f"{self.address[0]}:{self.address[1]}"
        payload = payload or hashlib.sha256(body).hexdigest()
        headers = f"host:{host}\nx-amz-content-sha256:{payload}\nx-amz-date:{stamp}\n"
        canonical = f"{method}\n/{bucket}/{key}\n\n{headers}\n{_SIGNED}\n{payload}"
        scope = f"{stamp[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        signing_key = f"AWS4{self.secret}".encode()
        for part in scope.split("/"):
            signing_key = _hmac(signing_key, part)
        signature = _hmac(signing_key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}").hex()
        authorization = (
            f"AWS4-HMAC-SHA256 Credential={self.access_key_id}/{scope}, SignedHeaders={_SIGNED}, Signature={signature}"
        )
        start = f"{method} /{bucket}/{key} HTTP/1.1\r\nhost: {host}\r\nauthorization: {authorization}\r\n"
        amz = f"x-amz-content-sha256: {payload}\r\nx-amz-date: {stamp}\r\n"
        length = f"content-length: {len(body)}\r\n" if body else ""
        return f"{start}{amz}{length}\r\n".encode()

    def connect(self) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


class Refused(CannotMeasure):
    """An answer that is no plain success."""


def missing(answer: bytes) -> int | None:
    """How many bytes an answer still lacks; None while its head is not whole."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = answer[: end + 2].lower()
    if not head.startswith(b"http/1.1 200 "):
        raise Refused(f"A request was refused: {answer[:300].decode(errors='replace')}")
    at = head.find(b"\r\ncontent-length:")
    length = 0 if at < 0 else int(head[at + 17 : head.index(b"\r\n", at + 17)])
    return end + 4 + length - len(answer)


def closes(answer: bytes) -> bool:
    """Whether the server ends the connection with this answer."""
    return b"\r\nconnection: close\r\n" in answer[: answer.find(b"\r\n\r\n") + 2].lower()


def receive(connection: socket.socket) -> bytes:
    """What has come; it waits for something."""
    piece = connection.recv(65536)
    if not piece:
        raise Refused("The connection was closed before an answer had come.")
    return piece


def await_answer(connection: socket.socket) -> None:
    """Read one answer to its end."""
    answer = b""
    while missing(answer) != 0:
        answer += receive(connection)
