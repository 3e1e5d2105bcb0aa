"""The certificate that the server shows, checked before anything is started."""

from __future__ import annotations

import ssl
from pathlib import Path

from tidings.api.settings import ApiSettings
from tidings.errors import OperatorError


def files(settings: ApiSettings) -> tuple[Path | None, Path | None]:
    """Certificate and key, if there are any and they belong together; both None without TLS."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None and key is None:
        return None, None
    if certificate is None or key is None:
        raise OperatorError("TLS needs both TIDINGS_API__TLS_CERTIFICATE and TIDINGS_API__TLS_KEY: set the other one too.")
    _check_readable("TIDINGS_API__TLS_CERTIFICATE", certificate)
    _check_readable("TIDINGS_API__TLS_KEY", key)
    try:
        # Without a password here, OpenSSL would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        problem = "are not a PEM certificate and its own private key, not encrypted"
        raise OperatorError(f"TLS: {certificate} and {key} {problem} ({reason}).") from None
    return certificate, key


def _check_readable(setting: str, path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise OperatorError(f"{setting} names {path}, which cannot be read: {error.strerror}.") from None
