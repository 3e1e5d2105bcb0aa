"""Genuine signed requests, made by botocore, as a server receives them; and what a server does with them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import io
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.config import Config
from botocore.credentials import Credentials
from urllib3.util.url import _encode_target

from tidings.access import policy, sigv4
from tidings.access.keys import Principal
from tidings.access.payload import Payload, decoder_for
from tidings.access.permissions import ACTIONS, Grant
from tidings.api import post
from tidings.api.request import Request as ApiRequest
from tidings.api.request import target
from tidings.errors import STATUS, CallerError

KEY, SECRET, REGION = "TIDINGSEXAMPLEKEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLESECRET", "eu-test-1"
OTHER_KEY = "ANOTHERTENANTSKEY"
SECRETS = {KEY: SECRET, OTHER_KEY: "another secret altogether"}
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Request:
    """A request as a server receives it, and the time at which it does."""

    method: str
    path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    now: datetime

    def header(self, name: str) -> bytes:
        return next(value for key, value in self.headers if key.lower() == name.encode())

    def with_header(self, name: str, value: bytes) -> Request:
        rest = tuple(pair for pair in self.headers if pair[0].lower() != name.encode())
        return replace(self, headers=(*rest, (name.encode(), value)))

    def without_header(self, name: str) -> Request:
        return replace(self, headers=tuple(pair for pair in self.headers if pair[0].lower() != name.encode()))

    def with_authorization(self, old: bytes, new: bytes) -> Request:
        authorization = self.header("authorization")
        assert old in authorization
        return self.with_header("authorization", authorization.replace(old, new, 1))

    @property
    def signed_names(self) -> list[str]:
        return self.header("authorization").partition(b"SignedHeaders=")[2].partition(b",")[0].decode().split(";")


def serve(request: Request) -> Payload:
    """What a server does with a request, from the first byte to the last."""
    signed = sigv4.parse(request.method, request.path, request.query, request.headers, request.now, REGION)
    payload = decoder_for(verified(signed), signed.headers)
    payload.feed(request.body)
    payload.finish()
    return payload


def verified(signed: sigv4.SignedRequest) -> sigv4.SigningContext:
    if signed.access_key_id not in SECRETS:
        raise CallerError("InvalidAccessKeyId", "no such key")
    return sigv4.verify(signed, SECRETS[signed.access_key_id])


def refusal(request: Request) -> CallerError:
    with pytest.raises(CallerError) as caught:
        serve(request)
    assert caught.value.code in STATUS
    assert SECRET not in repr(caught.value.args)
    return caught.value


def received(method: str, url: str, headers: Any, body: bytes) -> Request:
    """The request as it arrives: the target as urllib3 writes it, the host as an HTTP client adds it."""
    parts = urlsplit(url)
    pairs = [(as_bytes(name), as_bytes(value)) for name, value in headers.items()]
    if not any(name.lower() == b"host" for name, _ in pairs):
        pairs.append((b"Host", parts.netloc.encode()))
    target = _encode_target(parts.path + (f"?{parts.query}" if parts.query else ""))
    path, _, query = target.encode().partition(b"?")
    request = Request(method, path, query, tuple(pairs), body, datetime.now(UTC))
    in_query = query.partition(b"X-Amz-Date=")[2].partition(b"&")[0]
    return replace(request, now=datetime.fromisoformat((in_query or request.header("x-amz-date")).decode()))


def as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


class _Silence(io.BytesIO):
    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield b""


class Boto3:
    """A boto3 client that signs for real and sends nothing."""

    def __init__(self, endpoint: str, **config: Any) -> None:
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=Config(s3={"addressing_style": "path", **config.pop("s3", {})}, **config),
        )
        self.caught: Request | None = None
        self.client.meta.events.register("before-send.s3", self._catch)

    def _catch(self, request: Any, **_: Any) -> AWSResponse:
        body = request.body.read() if hasattr(request.body, "read") else request.body or b""
        self.caught = received(request.method, request.url, request.headers, as_bytes(body))
        return AWSResponse(request.url, 200, {}, _Silence())

    def sign(self, operation: str, **arguments: Any) -> Request:
        getattr(self.client, operation)(**arguments)
        assert self.caught is not None
        return self.caught

    def presign(self, operation: str, body: bytes = b"", seconds: int = 3600, **arguments: Any) -> Request:
        """A presigned URL, opened by something that adds nothing to it."""
        url = self.client.generate_presigned_url(operation, Params=arguments, ExpiresIn=seconds)
        method = {"put": "PUT", "get": "GET", "head": "HEAD", "delete": "DELETE"}[operation.partition("_")[0]]
        return received(method, url, {}, body)


def signed_by_hand(method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None, **context: Any) -> Request:
    """Signed by botocore's own S3SigV4Auth, for requests that no boto3 client makes."""
    request = AWSRequest(method=method, url=url, data=body, headers=headers or {})
    request.context.update(context)
    S3SigV4Auth(Credentials(KEY, SECRET), "s3", REGION).add_auth(request)
    prepared = request.prepare()
    return received(method, prepared.url, prepared.headers, body)


def presigned_by_hand(
    method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None, payload: str = "UNSIGNED-PAYLOAD"
) -> Request:
    """A presigned URL with signed headers, or with another kind of payload, made by botocore's own signer."""

    class Auth(S3SigV4QueryAuth):  # type: ignore[misc]
        def payload(self, _: Any) -> str:
            return payload

    request = AWSRequest(method=method, url=url, headers=headers or {})
    Auth(Credentials(KEY, SECRET), "s3", REGION, 3600).add_auth(request)
    return received(method, request.url, headers or {}, body)


def signed_in_chunks(pieces: Sequence[bytes], trailer: str | None = None, presigned: bool = False) -> Request:
    """An upload in chunks, each signed over the one before it: from the pages of the S3 API reference about them."""
    kind = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" + ("-TRAILER" if trailer else "")
    headers = {"Content-Encoding": "aws-chunked", "X-Amz-Decoded-Content-Length": str(len(b"".join(pieces)))}
    headers |= {"X-Amz-Trailer": trailer.partition(":")[0]} if trailer else {}
    url = "https://store.example/bucket/key"

    class Auth(S3SigV4Auth):  # type: ignore[misc]
        def payload(self, _: Any) -> str:
            return kind

    if presigned:
        request = presigned_by_hand("PUT", url, headers={**headers, "X-Amz-Content-SHA256": kind}, payload=kind)
        signature = request.query.rpartition(b"X-Amz-Signature=")[2].decode()
    else:
        unsigned = AWSRequest(method="PUT", url=url, headers=headers)
        Auth(Credentials(KEY, SECRET), "s3", REGION).add_auth(unsigned)
        request = received("PUT", url, unsigned.headers, b"")
        signature = request.header("authorization").rpartition(b"Signature=")[2].decode()
    stamp = request.now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{REGION}/s3/aws4_request"
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")

    def sign(word: str, *hashes: str) -> str:
        text = "\n".join([f"AWS4-HMAC-SHA256-{word}", stamp, scope, signature, *hashes])
        return hmac.digest(key, text.encode(), "sha256").hex()

    body = b""
    for piece in (*pieces, b""):
        signature = sign("PAYLOAD", EMPTY_SHA256, hashlib.sha256(piece).hexdigest())
        body += b"%x;chunk-signature=%s\r\n" % (len(piece), signature.encode())
        body += piece + b"\r\n" if piece else b""
    if trailer:
        signature = sign("TRAILER", hashlib.sha256(f"{trailer}\n".encode()).hexdigest())
        body += f"{trailer}\r\nx-amz-trailer-signature:{signature}\r\n".encode()
    return replace(request, body=body + b"\r\n")


Part = tuple[str, bytes]
"""A field's name and value; the file's name stands behind `file`, as in `file;photo.jpg`."""


@dataclass(frozen=True)
class Posted:
    """A form as a server receives it."""

    parts: tuple[Part, ...]
    now: datetime
    path: bytes = b"/bucket"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    host: bytes = b"store.example"
    boundary: bytes = b"----boundary"

    def __getitem__(self, name: str) -> bytes:
        return dict(self.parts)[name]

    def changed(self, **fields: bytes) -> Posted:
        """With these fields instead, `_` for `-`; those that are not there yet come first."""
        new = {name.replace("_", "-"): value for name, value in fields.items()}
        kept = tuple((name, new.pop(name, value)) for name, value in self.parts)
        return replace(self, parts=(*new.items(), *kept))

    def without(self, *names: str) -> Posted:
        return replace(self, parts=tuple(part for part in self.parts if part[0] not in names))

    @property
    def body(self) -> bytes:
        found = b""
        for name, value in self.parts:
            field, _, filename = name.partition(";")
            found += b"--" + self.boundary + b'\r\nContent-Disposition: form-data; name="' + field.encode() + b'"'
            found += b'; filename="%s"\r\nContent-Type: image/png' % filename.encode() if filename else b""
            found += b"\r\n\r\n" + value + b"\r\n"
        return found + b"--" + self.boundary + b"--\r\n"


def posted(
    client: Boto3,
    key: str = "folder/key",
    body: bytes = b"hello",
    fields: Mapping[str, str] | None = None,
    conditions: Sequence[Any] = (),
    filename: str = "photo.png",
) -> Posted:
    """A form as boto3 signs it. Fields are covered by conditions that name their values, if no others are given."""
    given = dict(fields or {})
    conditions = conditions or [{name: value} for name, value in given.items()]
    form = client.client.generate_presigned_post("bucket", key, given, list(conditions), ExpiresIn=3600)
    parts = [(name, value.encode()) for name, value in form["fields"].items()]
    now = datetime.fromisoformat(form["fields"]["x-amz-date"])
    return Posted((*parts, (f"file;{filename}", body)), now)


def policy_of(document: Any, posted: Posted) -> Posted:
    """The same form under a policy that its owner has signed, whatever it says."""
    encoded = b64encode(document if isinstance(document, bytes) else json.dumps(document).encode())
    stamp = posted["x-amz-date"].decode()
    key = f"AWS4{SECRET}".encode()
    for part in (stamp[:8], REGION, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return posted.changed(policy=encoded, x_amz_signature=hmac.digest(key, encoded, "sha256").hex().encode())


class Arriving:
    """The body of a request, in pieces of this size."""

    def __init__(self, body: bytes, size: int = 1 << 20) -> None:
        self._pieces = [body[at : at + size] for at in range(0, len(body), size)]
        self.left = len(self._pieces)

    @property
    def ended(self) -> bool:
        return not self._pieces

    async def next(self) -> bytes:
        return self._pieces.pop(0)


def serve_form(form: Posted, size: int = 1 << 20, domains: tuple[str, ...] = ()) -> tuple[post.PostRequest, bytes]:
    """What a server does with a form, up to the last byte of its file."""

    async def run() -> tuple[post.PostRequest, bytes]:
        content_type = (b"content-type", b"multipart/form-data; boundary=" + form.boundary)
        headers = [(b"host", form.host), *(pair for pair in form.headers), content_type]
        assert post.is_post("POST", b"", headers)
        opened = await post.opened(Arriving(form.body, size), headers)
        signed = policy.parse(opened.fields, form.now, REGION)
        signing = verified(signed)
        principal = Principal(signed.access_key_id, "project", Grant(frozenset(ACTIONS)))
        asked = target(form.path, b"", form.host.decode(), domains)
        request = ApiRequest("ID", "HOST", asked, {}, headers, principal, signing, "127.0.0.1", Arriving(b""))
        accepted = post.accepted(opened, request, "http://store.example/bucket", form.now)
        data = b"".join([piece async for piece in accepted.request.pieces(accepted.request.decoder())])
        return accepted, data

    return asyncio.run(run())


def form_refusal(form: Posted, **how: Any) -> CallerError:
    with pytest.raises(CallerError) as caught:
        serve_form(form, **how)
    assert caught.value.code in STATUS
    assert SECRET not in repr(caught.value.args)
    return caught.value
