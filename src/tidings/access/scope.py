"""What a signature says about itself, wherever it stands: whose key, for which day, region and service, over what.

The three mechanisms (header, query, form) carry the same parts and are held to the same rules here. Each brings its own
way to refuse, for S3 has a code of its own for each.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from tidings.errors import CallerError

ALGORITHM = "AWS4-HMAC-SHA256"
TERMINATOR = "aws4_request"
S3 = "s3"
MAX_SKEW = timedelta(minutes=15)
LONGEST = 604_800
"""Seconds that a signature made beforehand can be good for: seven days, as long as S3 keeps a signing key."""

_CREDENTIAL = re.compile(r"([\w.~+=:@-]{1,128})/([^/,\s]*)/([^/,\s]*)/([^/,\s]*)/([^/,\s]*)", re.ASCII)
_SIGNED_HEADERS = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+(;[a-z0-9!#$%&'*+.^_`|~-]+)*")
_HEX_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIMESTAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z")

Refuse = Callable[..., CallerError]
"""Makes the error of one mechanism from the problem and further elements."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a signing key is good for. Region and service are ours: `read` lets no other pass."""

    access_key_id: str
    date: str
    region: str
    service: str = S3

    def __str__(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/{TERMINATOR}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A signature that is still to be verified, and what it says it covers."""

    scope: Scope
    timestamp: str
    names: tuple[str, ...]
    signature: str


# What a client sends hardly changes from one request to the next: reading it again costs as much as the signature.
@lru_cache(maxsize=4096)
def read(credential: str, region: str, refuse: Refuse, service: str = S3) -> Scope:
    """The scope that a credential names, if it is one for here, and for this service."""
    match = _CREDENTIAL.fullmatch(credential)
    if match is None:
        raise refuse(f"the credential must be KEY/YYYYMMDD/{region}/{service}/{TERMINATOR}.")
    key_id, date, scope_region, scope_service, terminator = match.groups()
    if scope_region != region:
        raise refuse(f"the region {scope_region[:100]!r} is wrong; expecting {region!r}.", Region=region)
    if scope_service != service:
        raise refuse(f"the service {scope_service[:100]!r} is wrong; expecting {service!r}.")
    if terminator != TERMINATOR:
        raise refuse(f"the scope ends in {terminator[:100]!r}; expecting {TERMINATOR!r}.")
    return Scope(key_id, date, region, service)


@lru_cache(maxsize=1024)
def signed_names(text: str, refuse: Refuse) -> tuple[str, ...]:
    """The names of the signed headers. There is one way to write them, so nobody can write another."""
    names = tuple(text.split(";"))
    if not _SIGNED_HEADERS.fullmatch(text) or list(names) != sorted(set(names)):
        raise refuse("SignedHeaders must be lower-case names, sorted, each once, with ';' in between.")
    return names


def signature(text: str, refuse: Refuse) -> str:
    if not _HEX_SHA256.fullmatch(text):
        raise refuse("Signature must be 64 lower-case hexadecimal digits.")
    return text


def check_day(scope: Scope, timestamp: str, refuse: Refuse) -> None:
    if scope.date != timestamp[:8]:
        raise refuse(f"the scope's date {scope.date[:100]!r} is not the day of the request's own date, {timestamp!r}.")


@lru_cache(maxsize=1024)
def moment(timestamp: str) -> datetime | None:
    """The time that a timestamp names, or None if it is not one."""
    try:
        return datetime.fromisoformat(timestamp) if _TIMESTAMP.fullmatch(timestamp) else None
    except ValueError:
        return None


def stamp(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


@lru_cache(maxsize=4096)
def signing_key(secret: str, date: str, region: str, service: str = S3) -> bytes:
    """Four HMACs that are the same for a whole day. Keyed by the secret itself: a changed one never meets an old key."""
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
