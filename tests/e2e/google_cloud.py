"""What Google runs, as far as a publisher sees it: token endpoints over HTTP, and Pub/Sub over TLS that looks at tokens."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from google.auth import jwt

from tidings.local.pubsub_broker import Broker

OURS = "tidings@operator.iam.gserviceaccount.com"
TENANTS_KNOW = "bucket-eventing@operator.iam.gserviceaccount.com"


@dataclass
class Google:
    """Its state, and what it was asked. `refusals` are (status, body) by endpoint: token or iam."""

    folder: Path
    key: rsa.RSAPrivateKey
    lifetime: float = 3600.0
    refusals: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    unknown_tokens: set[str] = field(default_factory=set)
    answers: threading.Event = field(default_factory=threading.Event)
    """While it is not set, no token endpoint answers."""
    signed_by: list[str] = field(default_factory=list)
    """Who signed the assertions that the OAuth endpoint has taken."""
    impersonations: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    """(account, authorization, body) of each request to IAM, also of those that were refused."""
    published: list[str] = field(default_factory=list)
    """The authorization of each Publish call."""
    http: str = ""
    pubsub: str = ""

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.pem"

    @property
    def key_file(self) -> Path:
        return self.folder / "service-account.json"

    def settings(self, *, impersonating: bool = True) -> dict[str, str]:
        """For a process that publishes here: Google's hosts are ours, and it trusts our certificate."""
        account = {"TIDINGS_BUCKET_EVENTING__SERVICE_ACCOUNT": TENANTS_KNOW} if impersonating else {}
        return {
            "TIDINGS_PUBSUB__ENDPOINT": self.pubsub,
            "TIDINGS_PUBSUB__CREDENTIALS_FILE": str(self.key_file),
            "TIDINGS_PUBSUB__IAM_ENDPOINT": self.http,
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self.certificate),
            **account,
        }


@contextmanager
def google_cloud(folder: Path, key: int = 1) -> Iterator[Google]:
    google = Google(folder, _key(key))
    google.answers.set()
    certificate = _certificate(google.key)
    google.certificate.write_bytes(certificate)
    endpoint = ThreadingHTTPServer(("127.0.0.1", 0), _handler(google))
    endpoint.daemon_threads = True
    google.http = f"http://127.0.0.1:{endpoint.server_port}"
    google.key_file.write_text(json.dumps(_service_account(google)))
    thread = threading.Thread(target=endpoint.serve_forever, daemon=True)
    thread.start()
    try:
        with _pubsub(google, certificate) as google.pubsub:
            yield google
    finally:
        google.answers.set()
        endpoint.shutdown()
        endpoint.server_close()
        thread.join()


@cache
def _key(_number: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _service_account(google: Google) -> dict[str, str]:
    return {
        "type": "service_account",
        "client_email": OURS,
        "private_key_id": "1",
        "private_key": _pem(google.key).decode(),
        "token_uri": f"{google.http}/token",
    }


def _certificate(key: rsa.RSAPrivateKey) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def _handler(google: Google) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            google.answers.wait(60)
            if self.path == "/token":
                self._answer(*self._token(parse_qs(body.decode())))
            else:
                self._answer(*self._impersonate(json.loads(body)))

        def _token(self, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
            if "token" in google.refusals:
                return google.refusals["token"]
            public = google.key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            claims = jwt.decode(form["assertion"][0], certs=public, audience="https://oauth2.googleapis.com/token")
            google.signed_by.append(claims["iss"])
            return 200, {"access_token": f"base-{len(google.signed_by)}", "expires_in": 3600, "token_type": "Bearer"}

        def _impersonate(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            account = self.path.removeprefix("/v1/projects/-/serviceAccounts/").removesuffix(":generateAccessToken")
            google.impersonations.append((account, self.headers["authorization"], body))
            if "iam" in google.refusals:
                return google.refusals["iam"]
            end = datetime.fromtimestamp(time.time() + google.lifetime, UTC)
            token = f"impersonated-{len(google.impersonations)}"
            return 200, {"accessToken": token, "expireTime": end.strftime("%Y-%m-%dT%H:%M:%SZ")}

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content, indent=2).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


class _Looking(grpc.aio.ServerInterceptor):
    """Keeps what Publish calls were authorised with, and refuses tokens that Google does not know any more."""

    def __init__(self, google: Google) -> None:
        self._google = google

    async def intercept_service(self, continuation: Any, call: Any) -> Any:
        if not call.method.endswith("/Publish"):
            return await continuation(call)
        token = dict(call.invocation_metadata).get("authorization", "")
        self._google.published.append(token)
        return self._refuse() if token in self._google.unknown_tokens else await continuation(call)

    def _refuse(self) -> Any:
        async def refuse(_request: bytes, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request had invalid authentication credentials.")

        return grpc.unary_unary_rpc_method_handler(refuse)


@contextmanager
def _pubsub(google: Google, certificate: bytes) -> Iterator[str]:
    """The project's own Pub/Sub behind TLS, with the topics one and two."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[Any, int]:
        server = grpc.aio.server(handlers=Broker().handlers(), interceptors=[_Looking(google)])
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(_pem(google.key), certificate)]))
        await server.start()
        return server, port

    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        _create_topics(port, certificate)
        yield f"localhost:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0.1), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _create_topics(port: int, certificate: bytes) -> None:
    from google.pubsub_v1 import PublisherClient
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

    with grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(certificate)) as channel:
        client = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        for name in ("one", "two"):
            client.create_topic(name=f"projects/tenant-project/topics/{name}")
