"""The key that messages are signed with, and the certificate that receivers verify them by.

A key is replaced by a new one when it is old, or when the operator says so. Each certificate has a URL of its own and stays
there: what was signed with the key before is verified as before, and processes may change to the new key one after another.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.x509.oid import NameOID

from tidings import audit
from tidings.errors import OperatorError
from tidings.secrets import keyring
from tidings.secrets.keyring import SealedColumn
from tidings.settings import Settings
from tidings.topics.settings import TopicsSettings

SIGNING_KEY = SealedColumn("signing_keys", "sealed_key", "id")
FRESH_SECONDS = 60.0
"""After which whoever signs looks again which key there is."""
_BITS = 2048
_VERIFIED_DAYS = 365
"""How long a certificate is good after its key has signed for the last time."""
_LOCK = 0x7369676E696E67
"""Of whoever makes a key ("signing" in ASCII)."""
_NEWEST: LiteralString = """
select id, sealed_key, certificate, created_at < now() - make_interval(days => %s)
from signing_keys where sealed_key is not null order by created_at desc, id limit 1"""
_HASHES: dict[int, hashes.HashAlgorithm] = {1: hashes.SHA1(), 2: hashes.SHA256()}  # noqa: S303 what SNS's version 1 is
_PATH = "/SimpleNotificationService-"
"""As at AWS, whose verifiers look for it. It has capitals, so it is nobody's bucket."""


@dataclass(frozen=True, slots=True)
class Signer:
    key: RSAPrivateKey = field(repr=False)
    certificate: bytes
    """PEM."""
    url: str
    """Where the certificate is served."""

    def sign(self, text: str, version: int) -> str:
        """The signature of a message's signed text: version 1 is RSA with SHA-1, version 2 with SHA-256; both PKCS#1 v1.5."""
        return base64.b64encode(self.key.sign(text.encode(), padding.PKCS1v15(), _HASHES[version])).decode()


def certificate_id(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()[:32]


def certificate_path(certificate: bytes) -> str:
    return f"{_PATH}{certificate_id(certificate)}.pem"


async def find_certificate(connection: psycopg.AsyncConnection[Any], path: str) -> bytes | None:
    """The certificate that is served under a path: of the key in use, or of one before it."""
    id_ = path.removeprefix(_PATH).removesuffix(".pem")
    row = await (await connection.execute("select certificate from signing_keys where id = %s", [id_])).fetchone()
    return row[0].encode() if row is not None and certificate_path(row[0].encode()) == path else None


async def load(connection: psycopg.AsyncConnection[Any], settings: Settings, known: Signer | None = None) -> Signer:
    """The signer that the files in the settings make, or the one in the database, which is made when it is first asked for.

    `known` is returned where it still is that one: to read an RSA key takes its time. Files are read once.
    """
    if settings.topics.signing_key is not None:
        if known is not None:
            return known
        private, certificate = _from_files(settings.topics)
        await connection.execute(
            "insert into signing_keys (id, certificate) values (%s, %s) on conflict do nothing",
            [certificate_id(certificate), certificate.decode()],
        )
    else:
        id_, sealed, text = await _newest(connection, settings)
        if known is not None and known.certificate == text.encode():
            return known
        certificate = text.encode()
        private = await keyring.under(settings.secrets).open_async(connection, SIGNING_KEY, id_, sealed)
    key = serialization.load_pem_private_key(private, None)
    if not isinstance(key, RSAPrivateKey):
        raise OperatorError("topics.signing_key is not an RSA key: SNS's signatures are RSA.")
    return Signer(key, certificate, settings.api.url + certificate_path(certificate))


async def replace(connection: psycopg.AsyncConnection[Any], settings: Settings) -> str:
    """A new key in place of the one in the database; returns where its certificate is. What has the old one signs with it for
    a minute yet; it is kept nowhere else."""
    if settings.topics.signing_key is not None:
        raise OperatorError("TIDINGS_TOPICS__SIGNING_KEY names the key: replace that file and its certificate, then restart.")
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
        certificate = await _insert(connection, settings)
        await audit.append_current_async(connection)
    return settings.api.url + certificate_path(certificate)


async def _newest(connection: psycopg.AsyncConnection[Any], settings: Settings) -> tuple[str, bytes, str]:
    """Id, key and certificate."""
    days = settings.topics.signing_key_days
    row = await (await connection.execute(_NEWEST, [days])).fetchone()
    if row is None or row[3] or _ends_soon(row[2]):
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
            row = await (await connection.execute(_NEWEST, [days])).fetchone()
            if row is None or row[3] or _ends_soon(row[2]):  # nobody else was first
                await _insert(connection, settings)
                row = await (await connection.execute(_NEWEST, [days])).fetchone()
        assert row is not None
    return row[0], row[1], row[2]


def _ends_soon(certificate: str) -> bool:
    """Whether what is signed now could not be verified for as long as was promised: the setting has been raised since."""
    ends = x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc
    return ends < datetime.now(UTC) + timedelta(days=_VERIFIED_DAYS)


async def _insert(connection: psycopg.AsyncConnection[Any], settings: Settings) -> bytes:
    """The private keys before it are dropped, their certificates are kept."""
    host = urlsplit(settings.api.url).hostname or "localhost"
    private, certificate = _made(host, settings.topics.signing_key_days + _VERIFIED_DAYS)
    id_ = certificate_id(certificate)
    sealed = await keyring.under(settings.secrets).seal_async(connection, SIGNING_KEY, id_, private)
    await connection.execute("update signing_keys set sealed_key = null")
    await connection.execute(
        "insert into signing_keys (id, sealed_key, certificate, created_at) values (%s, %s, %s, clock_timestamp())",
        [id_, sealed, certificate.decode()],
    )
    return certificate


def _from_files(settings: TopicsSettings) -> tuple[bytes, bytes]:
    assert settings.signing_key is not None
    assert settings.signing_certificate is not None
    try:
        private, certificate = settings.signing_key.read_bytes(), settings.signing_certificate.read_bytes()
        key = serialization.load_pem_private_key(private, None)
        public = x509.load_pem_x509_certificate(certificate).public_key()
    except (OSError, ValueError, TypeError) as error:
        raise OperatorError(f"topics.signing_key or topics.signing_certificate cannot be read: {error}") from None
    if key.public_key() != public:
        raise OperatorError("topics.signing_certificate is not the certificate of topics.signing_key.")
    return private, certificate


def _made(host: str, days: int) -> tuple[bytes, bytes]:
    """A new key, and its certificate, which it has signed itself."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, certificate.public_bytes(serialization.Encoding.PEM)
