"""AWS Signature Version 4 as the server sees it: is this request what the holder of the secret signed?

Two steps, so that the secret can be looked up in between: `parse` judges the form of a request and needs no secret,
`verify` compares the signature. Nothing of a request may be acted on before `verify` has returned.

The mechanism is the `Authorization` header. Another one that ends in a canonical request and a signature (the query of
a presigned URL) needs only its own way to a `SignedRequest`; `verify` stays as it is.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import lru_cache
from urllib.parse import quote_from_bytes, unquote_to_bytes

from tidings.errors import CallerError

ALGORITHM = "AWS4-HMAC-SHA256"
MAX_SKEW = timedelta(minutes=15)

_TERMINATOR = "aws4_request"
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([\w.~+=:@-]{1,128})/([^/,\s]*)/([^/,\s]*)/([^/,\s]*)/([^/,\s]*)"
    r" ?, ?SignedHeaders=([^,\s]*) ?, ?Signature=([^,\s]*)",
    re.ASCII,
)
_SIGNED_HEADERS = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+(;[a-z0-9!#$%&'*+.^_`|~-]+)*")
_HEX_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIMESTAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_BROKEN_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_PLAIN_PATH = re.compile(rb"/[A-Za-z0-9_.~/-]*")
_PLAIN_PARAMETER = re.compile(rb"[A-Za-z0-9_.~-]*")

_SIGNED_WHEN_PRESENT = frozenset({"content-md5", "content-type"})
_QUERY_MECHANISMS = frozenset(
    {"x-amz-algorithm", "x-amz-credential", "x-amz-expires", "x-amz-signature", "x-amz-signedheaders"}  # version 4
    | {"awsaccesskeyid", "signature"}  # version 2
)
_PRIVATE_LINE = re.compile(r"(?m)^(x-amz-security-token|x-amz-[a-z0-9-]*customer-key):.*$")


class PayloadKind(Enum):
    """What `x-amz-content-sha256` says about the body: its SHA-256, or one of these words."""

    HASHED = None
    UNSIGNED = "UNSIGNED-PAYLOAD"
    UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    SIGNED_CHUNKS_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"


_KINDS = {kind.value: kind for kind in PayloadKind if kind.value}


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A well-formed signed request whose signature is still to be verified.

    `headers` holds all headers in the form that is signed: names in lower case, values trimmed, inner spaces collapsed,
    repeated headers joined with a comma, bytes as latin-1. Who reads a header here reads what the signature covers.
    """

    access_key_id: str
    date: str
    region: str
    timestamp: str
    signed_headers: tuple[str, ...]
    signature: str
    payload: PayloadKind
    payload_hash: str
    headers: Mapping[str, str] = field(repr=False)
    canonical_request: str = field(repr=False)

    @property
    def scope(self) -> str:
        return f"{self.date}/{self.region}/s3/{_TERMINATOR}"


@dataclass(frozen=True, slots=True)
class SigningContext:
    """A verified request, with what the chain of chunk signatures goes on from."""

    access_key_id: str
    signing_key: bytes = field(repr=False)
    seed_signature: str
    timestamp: str
    scope: str
    payload: PayloadKind
    payload_hash: str


def parse(
    method: str,
    raw_path: bytes,
    raw_query: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    now: datetime,
    region: str,
) -> SignedRequest:
    """Every check that needs no secret. `raw_path` and `raw_query` are as they were sent; `now` knows its time zone."""
    fields = _fold(headers)
    parameters = _parameters(raw_query)
    _one_mechanism(fields, parameters)
    key_id, date, names, signature = _authorization(fields["authorization"], region)
    timestamp = _timestamp(fields, date, now)
    _check_coverage(fields, names)
    missing = [name for name in names if name not in fields]
    if missing:
        raise CallerError(
            "SignatureDoesNotMatch",
            f"The signed header {missing[0][:100]!r} is not in the request: it was not sent, or was lost on the way.",
            AWSAccessKeyId=key_id,
            SignatureProvided=signature,
        )
    payload, payload_hash = _payload(fields)
    query = "&".join([f"{name}={value}" for name, value in sorted(parameters)])
    lines = "".join([f"{name}:{fields[name]}\n" for name in names])
    canonical = f"{method}\n{_canonical_path(raw_path)}\n{query}\n{lines}\n{';'.join(names)}\n{payload_hash}"
    return SignedRequest(
        key_id, date, region, timestamp, names, signature, payload, payload_hash, fields, canonical_request=canonical
    )


def verify(signed: SignedRequest, secret: str) -> SigningContext:
    """Compare the signature, in constant time, with the one that `secret` gives."""
    digest = hashlib.sha256(signed.canonical_request.encode("latin-1")).hexdigest()
    scope = signed.scope
    string_to_sign = f"{ALGORITHM}\n{signed.timestamp}\n{scope}\n{digest}"
    key = _signing_key(secret, signed.date, signed.region)
    if not hmac.compare_digest(hmac.digest(key, string_to_sign.encode(), "sha256").hex(), signed.signature):
        raise CallerError(
            "SignatureDoesNotMatch",
            "The signature is not the one that this request and the secret of this access key give. "
            "Compare CanonicalRequest and StringToSign with what the client signed, then check the secret.",
            AWSAccessKeyId=signed.access_key_id,
            SignatureProvided=signed.signature,
            StringToSign=string_to_sign,
            CanonicalRequest=_PRIVATE_LINE.sub(r"\1:(not shown)", signed.canonical_request),
        )
    return SigningContext(
        access_key_id=signed.access_key_id,
        signing_key=key,
        seed_signature=signed.signature,
        timestamp=signed.timestamp,
        scope=scope,
        payload=signed.payload,
        payload_hash=signed.payload_hash,
    )


@lru_cache(maxsize=4096)
def _signing_key(secret: str, date: str, region: str) -> bytes:
    # Four HMACs that are the same for a whole day. Keyed by the secret itself: a changed secret never meets an old key.
    key = f"AWS4{secret}".encode()
    for part in (date, region, "s3", _TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _fold(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1").lower()
        # Split as bytes: for str, 0x85 and 0xA0 are white space too, and they occur inside UTF-8.
        value = b" ".join(raw_value.split()).decode("latin-1")
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    return fields


def _parameters(raw_query: bytes) -> list[tuple[str, str]]:
    """The query, each part in its one canonical encoding."""
    if not raw_query:
        return []
    _check_percent(raw_query)
    pairs = [part.partition(b"=") for part in raw_query.split(b"&") if part]
    parameters = [(_canonical_parameter(name), _canonical_parameter(value)) for name, _, value in pairs]
    names = [name for name, _ in parameters]
    if len(set(names)) != len(names):
        # The canonical form is sorted: with a name that comes twice, anybody could swap its values.
        raise CallerError("InvalidArgument", f"A parameter comes twice in the query {raw_query[:100]!r}: send it once.")
    return parameters


def _canonical_parameter(part: bytes) -> str:
    if _PLAIN_PARAMETER.fullmatch(part):
        return part.decode("ascii")
    # `+` is a space here because it is one for whoever reads the query after us: both must read the same.
    return quote_from_bytes(unquote_to_bytes(part.replace(b"+", b" ")), safe="")


def _canonical_path(raw_path: bytes) -> str:
    # Decoded and encoded once, never normalised: `//` and `..` are parts of a key, and `%7E` is the same key as `~`.
    if _PLAIN_PATH.fullmatch(raw_path):
        return raw_path.decode("ascii")
    if not raw_path.startswith(b"/"):
        raise CallerError("InvalidURI", f"The path {raw_path[:100]!r} does not start with a slash: send /BUCKET/KEY.")
    _check_percent(raw_path)
    return quote_from_bytes(unquote_to_bytes(raw_path), safe="/")


def _check_percent(raw: bytes) -> None:
    if _BROKEN_PERCENT.search(raw):
        raise CallerError("InvalidURI", f"{raw[:100]!r} has a % that two hexadecimal digits do not follow: send %25.")


def _one_mechanism(fields: Mapping[str, str], parameters: list[tuple[str, str]]) -> None:
    in_query = [name for name, _ in parameters if name.lower() in _QUERY_MECHANISMS]
    if in_query and "authorization" in fields:
        raise CallerError(
            "InvalidArgument",
            f"The request is signed by the Authorization header and by {in_query[0]} in the query: use one of them.",
            ArgumentName=in_query[0],
        )
    if in_query:
        raise CallerError(
            "NotImplemented",
            f"{in_query[0]} in the query: presigned URLs are not served. Sign with the Authorization header.",
        )
    if "authorization" not in fields:
        raise CallerError(
            "AccessDenied", f"The request is not signed: send an Authorization header with the mechanism {ALGORITHM}."
        )


def _authorization(value: str, region: str) -> tuple[str, str, tuple[str, ...], str]:
    # The messages quote single fields only: the header of another mechanism may hold a password or a token.
    if value.partition(" ")[0] != ALGORITHM:
        raise CallerError("InvalidRequest", f"The authorization mechanism is not supported: use {ALGORITHM}.")
    match = _AUTHORIZATION.fullmatch(value)
    if match is None:
        raise _malformed(
            f"write {ALGORITHM} Credential=KEY/YYYYMMDD/{region}/s3/{_TERMINATOR}, SignedHeaders=A;B, Signature=HEX."
        )
    key_id, date, scope_region, service, terminator, signed_headers, signature = match.groups()
    if scope_region != region:
        raise _malformed(f"the region {scope_region[:100]!r} is wrong; expecting {region!r}.", Region=region)
    if service != "s3":
        raise _malformed(f"the service {service[:100]!r} is wrong; expecting 's3'.")
    if terminator != _TERMINATOR:
        raise _malformed(f"the scope ends in {terminator[:100]!r}; expecting {_TERMINATOR!r}.")
    names = tuple(signed_headers.split(";"))
    if not _SIGNED_HEADERS.fullmatch(signed_headers) or list(names) != sorted(set(names)):
        raise _malformed("SignedHeaders must be lower-case names, sorted, each once, with ';' in between.")
    if not _HEX_SHA256.fullmatch(signature):
        raise _malformed("Signature must be 64 lower-case hexadecimal digits.")
    return key_id, date, names, signature


def _malformed(problem: str, **elements: str) -> CallerError:
    return CallerError("AuthorizationHeaderMalformed", f"The authorization header is malformed: {problem}", **elements)


def _timestamp(fields: Mapping[str, str], date: str, now: datetime) -> str:
    moment, timestamp = _moment(fields)
    if date != timestamp[:8]:
        raise _malformed(f"the scope's date {date[:100]!r} is not the day of the request's own date, {timestamp!r}.")
    if abs(now - moment) > MAX_SKEW:
        here = _stamp(now)
        raise CallerError(
            "RequestTimeTooSkewed",
            f"The request was signed at {timestamp} and the time here is {here}, more than "
            f"{MAX_SKEW.seconds // 60} minutes apart: set the client's clock and sign again.",
            RequestTime=timestamp,
            ServerTime=here,
            MaxAllowedSkewMilliseconds=str(MAX_SKEW.seconds * 1000),
        )
    return timestamp


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def _moment(fields: Mapping[str, str]) -> tuple[datetime, str]:
    value = fields.get("x-amz-date")
    try:
        if value is None:
            moment = parsedate_to_datetime(fields["date"])
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)  # "-0000" is UTC from an unknown place
            return moment, _stamp(moment)
        if _TIMESTAMP.fullmatch(value):
            return datetime.fromisoformat(value), value
    except (KeyError, ValueError, OverflowError):
        pass  # said below, in one sentence for all of them
    raise CallerError("AccessDenied", "The request has no valid date: send x-amz-date as YYYYMMDDTHHMMSSZ, or Date.")


def _check_coverage(fields: Mapping[str, str], names: tuple[str, ...]) -> None:
    # An x-amz-* header changes what a request means; one that anybody could have added must not count.
    required = {name for name in fields if name.startswith("x-amz-") or name in _SIGNED_WHEN_PRESENT}
    required.add("host")
    if "x-amz-date" not in fields:
        required.add("date")
    if not required.issubset(names):
        listed = ", ".join(sorted(required.difference(names)))[:500]
        raise CallerError(
            "AccessDenied", f"Headers that must be signed are not: {listed}. Sign them too.", HeadersNotSigned=listed
        )


def _payload(fields: Mapping[str, str]) -> tuple[PayloadKind, str]:
    value = fields.get("x-amz-content-sha256")
    if value is None:
        raise CallerError("InvalidRequest", "x-amz-content-sha256 is missing: send the SHA-256 of the body in it.")
    if _HEX_SHA256.fullmatch(value):
        return PayloadKind.HASHED, value
    if value in _KINDS:
        return _KINDS[value], value
    if value.startswith("STREAMING-AWS4-ECDSA-"):
        raise CallerError("NotImplemented", f"Payloads of the kind {value[:100]!r} are not served: use {ALGORITHM}.")
    raise CallerError(
        "InvalidRequest",
        f"x-amz-content-sha256 is {value[:100]!r}: send the body's SHA-256 in lower-case hexadecimal, or one of "
        f"{', '.join(_KINDS)}.",
    )
