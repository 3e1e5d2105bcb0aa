"""Cross-origin requests: what a browser may send here from a page of another site, and what that page may see.

The operator's setting holds for all buckets; rules of a bucket's own (PutBucketCors) are not served.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tidings.api.response import Response
from tidings.errors import CallerError

METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
MAX_AGE_SECONDS = 3600

_NAMES = re.compile(r"[\w!#$%&'*+.^`|~-]+([ \t]*,[ \t]*[\w!#$%&'*+.^`|~-]+)*", re.ASCII)
_MAX_NAMES = 4096


def _header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name == wanted), None)


def is_preflight(method: str, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """A browser's question. It comes without a signature and is about no object: the answer gives nothing away."""
    return method == "OPTIONS" and all(_header(headers, name) for name in (b"origin", b"access-control-request-method"))


def preflight(headers: Sequence[tuple[bytes, bytes]], origins: Sequence[str]) -> Response:
    origin, method = _header(headers, b"origin") or "", _header(headers, b"access-control-request-method")
    names = _header(headers, b"access-control-request-headers") or ""
    allowed = _allowed(origin, origins)
    if allowed is None or method not in METHODS or len(names) > _MAX_NAMES or (names and not _NAMES.fullmatch(names)):
        message = "CORSResponse: This CORS request is not allowed: the operator decides by TIDINGS_API__CORS_ORIGINS."
        raise CallerError("AccessForbidden", message, Method="OPTIONS", ResourceType="BUCKET")
    answer = {
        "access-control-allow-origin": allowed,
        "access-control-allow-methods": ", ".join(METHODS),
        "access-control-max-age": str(MAX_AGE_SECONDS),
        "vary": "Origin, Access-Control-Request-Headers, Access-Control-Request-Method",
    }
    return Response(200, {**answer, "access-control-allow-headers": names} if names else answer)


def visible(headers: Sequence[tuple[bytes, bytes]], origins: Sequence[str], answer: Iterable[str]) -> dict[str, str]:
    """What lets a page see the answer to a request of its own: all of its headers, by name."""
    origin = _header(headers, b"origin")
    allowed = _allowed(origin, origins) if origin else None
    if allowed is None:
        return {}
    exposed = {"access-control-allow-origin": allowed, "access-control-expose-headers": ", ".join(answer)}
    return exposed if allowed == "*" else {**exposed, "vary": "Origin"}


def _allowed(origin: str, origins: Sequence[str]) -> str | None:
    """What Access-Control-Allow-Origin says. Credentials (cookies) are never allowed: they mean nothing here."""
    if "*" in origins:
        return "*"
    return origin if origin in origins else None
