"""The key that messages are signed with, and the certificate that receivers verify them by."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.x509.oid import NameOID

from tidings.errors import OperatorError
from tidings.settings import Settings
from tidings.topics.settings import TopicsSettings

_BITS = 2048
_YEARS = 10
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


def certificate_path(certificate: bytes) -> str:
    return f"{_PATH}{hashlib.sha256(certificate).hexdigest()[:32]}.pem"


async def load(connection: psycopg.AsyncConnection[Any], settings: Settings) -> Signer:
    """The signer that the files in the settings make, or the one in the database, which is made when it is first asked for."""
    if settings.topics.signing_key is not None:
        private, certificate = _from_files(settings.topics)
    else:
        row = await (await connection.execute("select private_key, certificate from signing_key")).fetchone()
        if row is None:
            made = _made(urlsplit(settings.api.url).hostname or "localhost")
            await connection.execute(
                "insert into signing_key (private_key, certificate) values (%s, %s) on conflict do nothing", made
            )
            row = await (await connection.execute("select private_key, certificate from signing_key")).fetchone()
            assert row is not None
        private, certificate = row[0].encode(), row[1].encode()
    key = serialization.load_pem_private_key(private, None)
    if not isinstance(key, RSAPrivateKey):
        raise OperatorError("topics.signing_key is not an RSA key: SNS's signatures are RSA.")
    return Signer(key, certificate, settings.api.url + certificate_path(certificate))


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


def _made(host: str) -> tuple[str, str]:
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
        .not_valid_after(now + timedelta(days=365 * _YEARS))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return private, certificate.public_bytes(serialization.Encoding.PEM).decode()
