"""What the body of a verified request must satisfy, checked while it passes through.

Decoded bytes are handed on as they come, before all of them are proven, so that memory stays bounded whatever the size
of the object. Therefore nothing may be committed before `finish` has returned.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Protocol

from tidings.access import checksums
from tidings.access.digests import Beside
from tidings.access.sigv4 import PayloadKind, SigningContext
from tidings.errors import CallerError

MAX_SIGNED_CHUNK = 16 * 1024 * 1024
"""What passes on before its signature is checked. Unsigned chunks have no such limit: the AWS SDK for Go sends one
chunk for the whole object; they are held to x-amz-decoded-content-length instead."""
MAX_CHUNK_LINE = 256
MAX_TRAILER = 4096

_CHUNK_LINE = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?")
_NUMBER = re.compile(r"[0-9]{1,18}")
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_TRAILER_SIGNATURE = "x-amz-trailer-signature"
_WITH_TRAILER = (PayloadKind.UNSIGNED_TRAILER, PayloadKind.SIGNED_CHUNKS_TRAILER)
_WHOLE = (PayloadKind.HASHED, PayloadKind.UNSIGNED)


def decoder_for(context: SigningContext, headers: Mapping[str, str]) -> Payload:
    """The decoder for one body. `headers` are those of the `SignedRequest`; what they say wrongly is refused here."""
    kind = context.payload
    trailer = checksums.trailer_names(headers)
    if trailer and kind not in _WITH_TRAILER:
        raise CallerError("InvalidRequest", f"A payload of {context.payload_hash!r} has no trailer: drop x-amz-trailer.")
    promise = checksums.promised(headers)
    if kind in _WHOLE:
        return Payload(_Whole(context.payload_hash if kind is PayloadKind.HASHED else None), headers, promise)
    if "x-amz-decoded-content-length" not in headers:
        raise CallerError(
            "MissingContentLength",
            "A body in chunks needs x-amz-decoded-content-length: send the object's length in it.",
        )
    chain = None if kind is PayloadKind.UNSIGNED_TRAILER else _Chain(context)
    return Payload(_Chunks(chain, kind in _WITH_TRAILER, trailer), headers, promise)


class Payload:
    """One body on its way in. `length` and `md5_hex` are of the decoded bytes; `checksums` is filled by `finish`."""

    def __init__(self, framing: _Framing, headers: Mapping[str, str], promise: checksums.Promise | None) -> None:
        self._framing = framing
        self._promise = promise
        self._expected_md5 = _content_md5(headers)
        self._expected_received = _number(headers, "content-length")
        self._expected_length = _number(headers, "x-amz-decoded-content-length")
        self._md5 = Beside(hashlib.md5(usedforsecurity=False))
        self._checksum = promise.algorithm.start() if promise else None
        self._received = 0
        self.length = 0
        self.checksums: dict[str, str] = {}

    @property
    def md5_hex(self) -> str:
        return self._md5.digest().hex()

    def feed(self, data: bytes) -> bytes:
        """The decoded bytes of the next piece of the body, however the body is cut."""
        self._received += len(data)
        if self._expected_received is not None and self._received > self._expected_received:
            raise _incomplete("Content-Length", self._expected_received, "more")
        decoded = self._framing.decode(data)
        if decoded:
            self.length += len(decoded)
            if self._expected_length is not None and self.length > self._expected_length:
                raise _incomplete("x-amz-decoded-content-length", self._expected_length, "more")
            self._md5.update(decoded)
            if self._checksum is not None:
                self._checksum.update(decoded)
        return decoded

    def finish(self) -> None:
        """The body has ended: refuse it unless every promise about it is kept."""
        if self._expected_received is not None and self._received != self._expected_received:
            raise _incomplete("Content-Length", self._expected_received, str(self._received))
        trailer = self._framing.end()
        if self._expected_length is not None and self.length != self._expected_length:
            raise _incomplete("x-amz-decoded-content-length", self._expected_length, str(self.length))
        if self._expected_md5 is not None and self._expected_md5 != self._md5.digest():
            raise _bad_digest("Content-MD5")
        if self._promise is not None and self._checksum is not None:
            algorithm = self._promise.algorithm
            digest = self._checksum.digest()
            expected = self._promise.expected
            if digest != (algorithm.decode(trailer[algorithm.header]) if expected is None else expected):
                raise _bad_digest(algorithm.name)
            self.checksums[algorithm.header] = base64.b64encode(digest).decode()


class _Framing(Protocol):
    """How the object lies in the body."""

    def decode(self, data: bytes) -> bytes: ...

    def end(self) -> Mapping[str, str]:
        """The trailer, once the body has ended where it should."""
        ...


class _Whole:
    """The body is the object. `expected` is its SHA-256, or None where the payload is not signed."""

    def __init__(self, expected: str | None) -> None:
        self._expected = expected
        self._sha256 = hashlib.sha256()

    def decode(self, data: bytes) -> bytes:
        if self._expected is not None:
            self._sha256.update(data)
        return data

    def end(self) -> Mapping[str, str]:
        if self._expected is not None and self._expected != self._sha256.hexdigest():
            raise CallerError(
                "XAmzContentSHA256Mismatch",
                "The body does not have the SHA-256 that x-amz-content-sha256 says: send it again.",
                ClientComputedContentSHA256=self._expected,
                S3ComputedContentSHA256=self._sha256.hexdigest(),
            )
        return {}


class _Chain:
    """The signatures of chunks and trailer, each over the one before it; the first over that of the request."""

    def __init__(self, context: SigningContext) -> None:
        self._context = context
        self._previous = context.seed_signature

    def check(self, algorithm: str, signature: str, *hashes: str) -> None:
        context = self._context
        string_to_sign = "\n".join([algorithm, context.timestamp, context.scope, self._previous, *hashes])
        expected = hmac.digest(context.signing_key, string_to_sign.encode(), "sha256").hex()
        # As bytes: what came in may not be ASCII, and compare_digest takes no other str.
        if not hmac.compare_digest(expected.encode(), signature.encode("latin-1")):
            raise CallerError(
                "SignatureDoesNotMatch",
                "The signature of a chunk or of the trailer is not the one that its bytes give: sign and send again.",
                AWSAccessKeyId=context.access_key_id,
                SignatureProvided=signature,
                StringToSign=string_to_sign,
            )
        self._previous = signature


class _Chunks:
    """The aws-chunked form: size line, data, line end, and again; a chunk of size 0 is the last; then the trailer.

    `_line` gathers a line that is cut, `_left` counts the data still to come in the chunk, `_in_chunk` stays true until
    the line end behind the data, `_tail` gathers what follows the last chunk (None before it).
    """

    def __init__(self, chain: _Chain | None, has_trailer: bool, announced: frozenset[str]) -> None:
        self._chain = chain
        self._has_trailer = has_trailer
        self._announced = announced
        self._line = bytearray()
        self._left = 0
        self._in_chunk = False
        self._signature = ""
        self._sha256 = hashlib.sha256()
        self._tail: bytearray | None = None

    def decode(self, data: bytes) -> bytes:
        decoded = []
        at = 0
        while at < len(data):
            if self._tail is not None:
                self._tail += _bounded(self._tail, data[at:], MAX_TRAILER, "trailer")
                break
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if self._chain is not None:
                    self._sha256.update(piece)
                decoded.append(piece)
            else:
                at = self._gather_line(data, at)
        return decoded[0] if len(decoded) == 1 else b"".join(decoded)

    def _gather_line(self, data: bytes, start: int) -> int:
        end = data.find(b"\n", start) + 1
        self._line += _bounded(self._line, data[start : end or len(data)], MAX_CHUNK_LINE, "line before a chunk")
        if not end:
            return len(data)
        line = bytes(self._line)
        self._line.clear()
        if not line.endswith(b"\r\n"):
            raise _misshapen(f"the line {line[:100]!r} does not end in CR LF")
        if self._in_chunk:
            self._close_chunk(line)
        else:
            self._open_chunk(line)
        return end

    def _open_chunk(self, line: bytes) -> None:
        match = _CHUNK_LINE.fullmatch(line[:-2])
        if match is None or (match[2] is None) != (self._chain is None):
            form = "SIZE" if self._chain is None else "SIZE;chunk-signature=SIGNATURE"
            raise _misshapen(f"a chunk starts with {line[:100]!r} where this kind of payload has {form}")
        self._left = int(match[1], 16)
        if self._chain is not None:
            if self._left > MAX_SIGNED_CHUNK:
                raise _misshapen(f"a signed chunk has {self._left} bytes, more than {MAX_SIGNED_CHUNK}")
            self._signature = match[2].decode()
        if self._left:
            self._in_chunk = True
        else:
            self._check_signature()
            self._tail = bytearray()

    def _close_chunk(self, line: bytes) -> None:
        if line != b"\r\n":
            raise _misshapen(f"a chunk goes on past its size with {line[:100]!r}")
        self._check_signature()
        self._in_chunk = False

    def _check_signature(self) -> None:
        if self._chain is not None:
            self._chain.check("AWS4-HMAC-SHA256-PAYLOAD", self._signature, _EMPTY_SHA256, self._sha256.hexdigest())
            self._sha256 = hashlib.sha256()

    def end(self) -> Mapping[str, str]:
        if self._tail is None:
            raise CallerError("IncompleteBody", "The body ended before its last chunk, that of size 0: send it again.")
        if self._tail and not self._tail.endswith(b"\n"):
            raise CallerError("IncompleteBody", "The body ended inside its trailer: send it again.")
        trailer = _trailer(bytes(self._tail))
        if self._chain is not None and self._has_trailer:
            signature = trailer.pop(_TRAILER_SIGNATURE, "")
            lines = "".join([f"{name}:{value}\n" for name, value in trailer.items()]).encode("latin-1")
            self._chain.check("AWS4-HMAC-SHA256-TRAILER", signature, hashlib.sha256(lines).hexdigest())
        if trailer.keys() != self._announced:
            has, announced = (", ".join(sorted(names))[:200] or "nothing" for names in (trailer, self._announced))
            raise _misshapen(f"the trailer has {has} where x-amz-trailer announces {announced}")
        return trailer


def _trailer(tail: bytes) -> dict[str, str]:
    # Blank lines count for nothing: AWS's own page and its SDKs differ in where they put them.
    trailer: dict[str, str] = {}
    for line in tail.decode("latin-1").split("\n"):
        if not (line := line.strip(" \t\r")):
            continue
        name, colon, value = line.partition(":")
        name = name.strip().lower()
        if not colon or name in trailer:
            raise _misshapen(f"the trailer has the line {line[:100]!r}, which is no NAME:VALUE or comes twice")
        trailer[name] = value.strip(" \t")
    return trailer


def _bounded(gathered: bytearray, more: bytes, limit: int, what: str) -> bytes:
    if len(gathered) + len(more) > limit:
        raise _misshapen(f"a {what} is longer than {limit} bytes")
    return more


def _content_md5(headers: Mapping[str, str]) -> bytes | None:
    value = headers.get("content-md5")
    if value is None:
        return None
    digest = checksums.from_base64(value, 16)
    if digest is None:
        raise CallerError("InvalidDigest", f"Content-MD5 is {value[:100]!r}: send the base64 of the MD5's 16 bytes.")
    return digest


def _number(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not _NUMBER.fullmatch(value):
        raise CallerError("InvalidRequest", f"The header {name} is {value[:100]!r}: send one decimal number.")
    return int(value)


def _incomplete(header: str, expected: int, got: str) -> CallerError:
    return CallerError("IncompleteBody", f"{header} says {expected} bytes and the body has {got}: send it again.")


def _bad_digest(name: str) -> CallerError:
    return CallerError("BadDigest", f"The {name} that was sent is not that of the bytes that arrived: send them again.")


def _misshapen(problem: str) -> CallerError:
    return CallerError("InvalidRequest", f"The body is not well-formed aws-chunked: {problem}.")
