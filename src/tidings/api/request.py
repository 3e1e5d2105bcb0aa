"""A request that has been verified: what it asks for, who asks, and its body as it arrives."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import parse_qsl, unquote, unquote_to_bytes

from tidings.access import payload
from tidings.access.keys import Principal
from tidings.access.sigv4 import SigningContext
from tidings.api import hosts
from tidings.api.body import Incoming
from tidings.errors import CallerError
from tidings.store import names
from tidings.store.model import Place

MAX_DOCUMENT = 256 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about. An empty bucket is the whole service, an empty key the bucket itself."""

    bucket: str
    key: str
    query: Mapping[str, str]

    @property
    def level(self) -> str:
        return "object" if self.key else "bucket" if self.bucket else "service"


@dataclass(frozen=True, slots=True)
class Request:
    """`headers` are in the form that was signed; `raw_headers` are as they came."""

    id: str
    host_id: str
    target: Target
    headers: Mapping[str, str]
    raw_headers: Sequence[tuple[bytes, bytes]]
    principal: Principal
    signing: SigningContext
    source_ip: str
    body: Incoming
    at: datetime | None = None
    trace: str | None = None
    """What its changes carry, if it is in a trace."""

    @property
    def project(self) -> str:
        return self.principal.project

    @property
    def bucket(self) -> str:
        return self.target.bucket

    @property
    def key(self) -> str:
        return self.target.key

    def require(self, action: str, bucket: str | None, prefix: str | None = None) -> None:
        """Refuse what the key does not allow: see `Grant.allows`."""
        if not self.principal.grant.allows(action, bucket, prefix, time.time()):
            raise CallerError("AccessDenied", f"Access Denied: the key does not allow {action} here.")

    @property
    def place(self) -> Place:
        return Place(self.project, self.bucket, self.key)

    def decoder(self) -> payload.Payload:
        return payload.decoder_for(self.signing, self.headers)

    async def pieces(self, decoder: payload.Payload) -> AsyncIterator[bytes]:
        """The decoded body. It ends normally only if the whole body came and kept every promise made about it."""
        while not self.body.ended:
            if data := decoder.feed(await self.body.next()):
                yield data
        decoder.finish()

    async def document(self, most: int = MAX_DOCUMENT, unchecked: frozenset[str] = frozenset()) -> bytes:
        """The whole body, for a request that carries an XML document. `unchecked` headers are not about the document."""
        body = bytearray()
        about = {name: value for name, value in self.headers.items() if name not in unchecked}
        async for piece in self.pieces(payload.decoder_for(self.signing, about)):
            body += piece
            if len(body) > most:
                message = f"The document is longer than {most} bytes."
                raise CallerError("EntityTooLarge", message, MaxSizeAllowed=str(most))
        return bytes(body)


def target(
    raw_path: bytes,
    raw_query: bytes,
    host: str = "",
    domains: tuple[str, ...] = (),
    spent: frozenset[str] = frozenset(),
) -> Target:
    """Read path and query: /BUCKET/KEY, or /KEY where the host names the bucket.

    Both are decoded as the signature's canonical form has them. `spent` are the parameters that belonged to the signature.
    """
    if not raw_query.isascii():  # as a signature's canonical form it could be read in two ways
        raise CallerError("InvalidURI", "The query has bytes in it that are not ASCII: percent-encode them.")
    in_host = hosts.bucket(host, domains)
    bucket, _, key = raw_path.removeprefix(b"/").partition(b"/") if in_host is None else (b"", b"", raw_path[1:])
    try:
        query = dict(parse_qsl(raw_query.decode("latin-1"), keep_blank_values=True, errors="strict")) if raw_query else {}
        name = unquote(bucket.decode("latin-1"), errors="strict") if in_host is None else in_host
    except UnicodeDecodeError:
        raise CallerError("InvalidURI", "The path or the query is not UTF-8.") from None
    if spent:
        query = {parameter: value for parameter, value in query.items() if parameter not in spent}
    if any("\0" in value for value in query.values()):
        raise CallerError("InvalidArgument", "A parameter in the query has a NUL in it.")
    if name or in_host is not None:
        names.bucket_name(name)
    elif key:
        raise CallerError("InvalidURI", "The path has no bucket: send /BUCKET/KEY.")
    return Target(name, names.object_key(unquote_to_bytes(key)), query)
