"""A request that has been verified: what it asks for, who asks, and its body as it arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, unquote_to_bytes

from tidings.access import payload
from tidings.access.keys import Principal
from tidings.access.sigv4 import SigningContext
from tidings.api.body import Body
from tidings.errors import CallerError
from tidings.store import names
from tidings.store.objects import Origin

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
    body: Body

    @property
    def project(self) -> str:
        return self.principal.project

    @property
    def bucket(self) -> str:
        return self.target.bucket

    @property
    def key(self) -> str:
        return self.target.key

    @property
    def origin(self) -> Origin:
        return Origin(self.principal.access_key_id, self.source_ip, self.id)

    def decoder(self) -> payload.Payload:
        return payload.decoder_for(self.signing, self.headers)

    async def pieces(self, decoder: payload.Payload) -> AsyncIterator[bytes]:
        """The decoded body. It ends normally only if the whole body came and kept every promise made about it."""
        while not self.body.ended:
            if data := decoder.feed(await self.body.next()):
                yield data
        decoder.finish()

    async def document(self) -> bytes:
        """The whole body, for a request that carries an XML document."""
        body = bytearray()
        async for piece in self.pieces(self.decoder()):
            body += piece
            if len(body) > MAX_DOCUMENT:
                message = f"The document is longer than {MAX_DOCUMENT} bytes."
                raise CallerError("EntityTooLarge", message, MaxSizeAllowed=str(MAX_DOCUMENT))
        return bytes(body)


def target(raw_path: bytes, raw_query: bytes) -> Target:
    """Read path and query, path-style: /BUCKET/KEY. Both are decoded as the signature's canonical form has them."""
    bucket, _, key = raw_path.removeprefix(b"/").partition(b"/")
    try:
        query = dict(parse_qsl(raw_query.decode("latin-1"), keep_blank_values=True, errors="strict")) if raw_query else {}
        name = unquote(bucket.decode("latin-1"), errors="strict")
    except UnicodeDecodeError:
        raise CallerError("InvalidURI", "The path or the query is not UTF-8.") from None
    if any("\0" in value for value in query.values()):
        raise CallerError("InvalidArgument", "A parameter in the query has a NUL in it.")
    if name:
        names.bucket_name(name)
    elif key:
        raise CallerError("InvalidURI", "The path has no bucket: send /BUCKET/KEY.")
    return Target(name, names.object_key(unquote_to_bytes(key)), query)
