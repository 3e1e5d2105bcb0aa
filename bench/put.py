"""PutObject as bytes on a socket: signed beforehand, sent and answered with next to no work on this side."""

from __future__ import annotations

import hashlib
import hmac
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

BODY = bytes(range(256)) * 4
"""1 KiB, the same for every object."""
_BODY_SHA256 = hashlib.sha256(BODY).hexdigest()
_SIGNED = "host;x-amz-content-sha256;x-amz-date"
GOOD = b"HTTP/1.1 200 "


@dataclass(frozen=True)
class Signer:
    """Signature Version 4 for PUT, with the body's hash signed as SDKs do over plain HTTP."""

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
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        host = f"{self.address[0]}:{self.address[1]}"
        headers = f"host:{host}\nx-amz-content-sha256:{_BODY_SHA256}\nx-amz-date:{stamp}\n"
        canonical = f"PUT\n/{bucket}/{key}\n\n{headers}\n{_SIGNED}\n{_BODY_SHA256}"
        scope = f"{stamp[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        signing_key = f"AWS4{self.secret}".encode()
        for part in scope.split("/"):
            signing_key = _hmac(signing_key, part)
        signature = _hmac(signing_key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}").hex()
        authorization = (
            f"AWS4-HMAC-SHA256 Credential={self.access_key_id}/{scope}, SignedHeaders={_SIGNED}, Signature={signature}"
        )
        start = f"PUT /{bucket}/{key} HTTP/1.1\r\nhost: {host}\r\nauthorization: {authorization}\r\n"
        amz = f"x-amz-content-sha256: {_BODY_SHA256}\r\nx-amz-date: {stamp}\r\n"
        return f"{start}{amz}content-length: {len(BODY)}\r\n\r\n".encode() + BODY

    def connect(self) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def refusal(answer: bytes) -> str | None:
    """What an answer says if it is not a plain success; None if it is."""
    if answer.startswith(GOOD) and answer.endswith(b"\r\n\r\n"):
        return None
    return answer[:300].decode(errors="replace") or "the connection was closed"
