"""AWS Signature Version 4 as the server sees it: is this request what the holder of the secret signed?

Two steps, so that the secret can be looked up in between: `parse` judges the form of a request and needs no secret,
`verify` compares the signature. Nothing of a request may be acted on before `verify` has returned.

For S3 there are three mechanisms: the `Authorization` header, the query of a presigned URL (`presigned.py`), and the policy of
a form (`policy.py`). Each has its own way to a `SignedRequest`; from there on there is one way for all. A request that
uses two of them is refused. The services beside S3 have one, the header (`parse_call`), and their signature is over the whole
body. The service is part of what is signed, and of the key that signs: a signature for one is worth nothing at another.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from urllib.parse import quote_from_bytes, unquote_to_bytes

from tidings.access import presigned
from tidings.access.scope import (
    ALGORITHM,
    MAX_SKEW,
    S3,
    TERMINATOR,
    Claim,
    Scope,
    check_day,
    moment,
    read,
    signature,
    signed_names,
    signing_key,
    stamp,
)
from tidings.errors import CallerError

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^,\s]*) ?, ?SignedHeaders=([^,\s]*) ?, ?Signature=([^,\s]*)", re.ASCII
)
_SERVICE = re.compile(rb"Credential=[^,\s/]*/[^,\s/]*/[^,\s/]*/([^,\s/]*)/")
_HEX_SHA256 = re.compile(r"[0-9a-f]{64}")
_BROKEN_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_PLAIN_PATH = re.compile(rb"/[A-Za-z0-9_.~/-]*")
_PLAIN_PARAMETER = re.compile(rb"[A-Za-z0-9_.~-]*")

_SIGNED_WHEN_PRESENT = frozenset({"content-md5", "content-type"})
# X-Amz-Date alone says nothing about who signed, and some clients send it beside the header.
_VERSION_4 = frozenset(name.lower() for name in presigned.MECHANISM if name != "X-Amz-Date")
_VERSION_2 = frozenset({"awsaccesskeyid", "signature"})
_PRIVATE = re.compile(r"(?mi)((?:^|&)(?:x-amz-security-token|x-amz-[a-z0-9-]*customer-key)[:=])[^&\n]*")


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
    `from_query` are those of them that stood in the query of a presigned URL, as they came; `spent` names every
    parameter that was there for the signature or as a header, and asks for nothing more.
    """

    scope: Scope
    timestamp: str
    signature: str
    payload: PayloadKind
    payload_hash: str
    string_to_sign: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    canonical_request: str = field(repr=False, default="")
    from_query: tuple[tuple[bytes, bytes], ...] = field(repr=False, default=())
    spent: frozenset[str] = frozenset()

    @property
    def access_key_id(self) -> str:
        return self.scope.access_key_id


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
    from_query: list[tuple[bytes, bytes]] = []
    spent: frozenset[str] = frozenset()
    if _in_query(fields, parameters):
        claim = presigned.read(parameters, now, region)
        _check_coverage(fields, claim)
        standing = presigned.headers(parameters, fields)
        from_query = [(name.encode(), value) for name, value in standing.values() if presigned.counts(name, value)]
        spent = presigned.MECHANISM.union(standing)
        payload, payload_hash = _payload({"x-amz-content-sha256": PayloadKind.UNSIGNED.value, **fields, **_fold(from_query)})
    else:
        claim = _authorization(fields, now, region)
        _check_coverage(fields, claim, *(["date"] if "x-amz-date" not in fields else []))
        payload, payload_hash = _payload(fields)
    query = "&".join([f"{name}={value}" for name, value in sorted(parameters.items()) if name != presigned.SIGNATURE])
    lines = "".join([f"{name}:{fields[name]}\n" for name in claim.names])
    canonical = f"{method}\n{_canonical_path(raw_path)}\n{query}\n{lines}\n{';'.join(claim.names)}\n{payload_hash}"
    digest = hashlib.sha256(canonical.encode("latin-1")).hexdigest()
    return SignedRequest(
        claim.scope,
        claim.timestamp,
        claim.signature,
        payload,
        payload_hash,
        string_to_sign=f"{ALGORITHM}\n{claim.timestamp}\n{claim.scope}\n{digest}",
        headers={**fields, **_fold(from_query)} if from_query else fields,
        canonical_request=canonical,
        from_query=tuple(from_query),
        spent=spent,
    )


def service_of(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The service that a request says it was signed for, which tells what front to ask; nothing is verified yet."""
    value = next((value for name, value in headers if name == b"authorization"), b"")
    found = _SERVICE.search(value)
    return found[1].decode("latin-1") if found else ""


@dataclass(frozen=True, slots=True)
class Call:
    """A well-formed signed request to a service beside S3, but for its body, which the signature is over."""

    claim: Claim
    headers: Mapping[str, str] = field(repr=False)
    _before_the_hash: str = field(repr=False)

    @property
    def access_key_id(self) -> str:
        return self.claim.scope.access_key_id

    def over(self, body: bytes) -> SignedRequest:
        """The same with its body, for `verify`."""
        payload_hash = hashlib.sha256(body).hexdigest()
        if self.headers.get("x-amz-content-sha256", payload_hash) != payload_hash:
            raise CallerError(
                "XAmzContentSHA256Mismatch",
                "x-amz-content-sha256 is not the body's SHA-256 in lower-case hexadecimal: send that, or leave it out.",
            )
        canonical = self._before_the_hash + payload_hash
        digest = hashlib.sha256(canonical.encode("latin-1")).hexdigest()
        return SignedRequest(
            self.claim.scope,
            self.claim.timestamp,
            self.claim.signature,
            PayloadKind.HASHED,
            payload_hash,
            string_to_sign=f"{ALGORITHM}\n{self.claim.timestamp}\n{self.claim.scope}\n{digest}",
            headers=self.headers,
            canonical_request=canonical,
        )


def parse_call(
    method: str,
    raw_path: bytes,
    raw_query: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    now: datetime,
    region: str,
    service: str,
) -> Call:
    """As `parse`, for a service beside S3: before the body is read, so that no stranger can make us read one."""
    fields = _fold(headers)
    parameters = _parameters(raw_query)
    if _in_query(fields, parameters):
        raise CallerError("InvalidRequest", f"A signature in the query is not served for {service}: send it as a header.")
    claim = _authorization(fields, now, region, service)
    _check_coverage(fields, claim, *(["date"] if "x-amz-date" not in fields else []))
    query = "&".join([f"{name}={value}" for name, value in sorted(parameters.items())])
    lines = "".join([f"{name}:{fields[name]}\n" for name in claim.names])
    path = _canonical_call_path(raw_path)
    return Call(claim, fields, f"{method}\n{path}\n{query}\n{lines}\n{';'.join(claim.names)}\n")


def verify(signed: SignedRequest, secret: str) -> SigningContext:
    """Compare the signature, in constant time, with the one that `secret` gives."""
    key = signing_key(secret, signed.scope.date, signed.scope.region, signed.scope.service)
    expected = hmac.digest(key, signed.string_to_sign.encode(), "sha256").hex()
    if not hmac.compare_digest(expected, signed.signature):
        shown = {"CanonicalRequest": _PRIVATE.sub(r"\1(not shown)", signed.canonical_request)}
        raise CallerError(
            "SignatureDoesNotMatch",
            "The signature is not the one that this request and the secret of this access key give. "
            "Compare CanonicalRequest and StringToSign with what the client signed, then check the secret.",
            AWSAccessKeyId=signed.access_key_id,
            SignatureProvided=signed.signature,
            StringToSign=signed.string_to_sign,
            **(shown if signed.canonical_request else {}),
        )
    return SigningContext(
        access_key_id=signed.access_key_id,
        signing_key=key,
        seed_signature=signed.signature,
        timestamp=signed.timestamp,
        scope=str(signed.scope),
        payload=signed.payload,
        payload_hash=signed.payload_hash,
    )


def _fold(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1").lower()
        # Split as bytes: for str, 0x85 and 0xA0 are white space too, and they occur inside UTF-8.
        value = b" ".join(raw_value.split()).decode("latin-1")
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    return fields


def _parameters(raw_query: bytes) -> dict[str, str]:
    """The query, each part in its one canonical encoding."""
    if not raw_query:
        return {}
    _check_percent(raw_query)
    pairs = [part.partition(b"=") for part in raw_query.split(b"&") if part]
    parameters = {_canonical_parameter(name): _canonical_parameter(value) for name, _, value in pairs}
    if len(parameters) != len(pairs):
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


def _canonical_call_path(raw_path: bytes) -> str:
    """As every service but S3 has it: what was sent, encoded once more. Paths that would have to be normalised name nothing."""
    if _PLAIN_PATH.fullmatch(raw_path) and b"//" not in raw_path and b"/." not in raw_path:
        return raw_path.decode("ascii")
    _check_percent(raw_path)
    if not raw_path.startswith(b"/") or b"//" in raw_path or b"/." in raw_path:
        raise CallerError("InvalidURI", f"The path {raw_path[:100]!r} names nothing here: send the request to /.")
    return quote_from_bytes(raw_path, safe="/~")


def _check_percent(raw: bytes) -> None:
    if _BROKEN_PERCENT.search(raw):
        raise CallerError("InvalidURI", f"{raw[:100]!r} has a % that two hexadecimal digits do not follow: send %25.")


def _in_query(fields: Mapping[str, str], parameters: Mapping[str, str]) -> bool:
    """Whether the signature is in the query; if not, it is in the header. Two mechanisms, or none, are refused."""
    version_4 = [name for name in parameters if name.lower() in _VERSION_4]
    version_2 = [name for name in parameters if name.lower() in _VERSION_2]
    in_query = [*version_4, *version_2]
    if in_query and "authorization" in fields:
        raise CallerError(
            "InvalidArgument",
            f"The request is signed by the Authorization header and by {in_query[0]} in the query: use one of them.",
            ArgumentName=in_query[0],
        )
    if version_2:
        raise CallerError(
            "InvalidArgument" if version_4 else "InvalidRequest",
            f"{version_2[0]} in the query is of Signature Version 2, which is not served: sign with {ALGORITHM} "
            "(for version 1 of the AWS CLI: aws configure set default.s3.signature_version s3v4).",
        )
    if not version_4 and "authorization" not in fields:
        raise CallerError(
            "AccessDenied", f"The request is not signed: send an Authorization header with the mechanism {ALGORITHM}."
        )
    return bool(version_4)


def _authorization(fields: Mapping[str, str], now: datetime, region: str, service: str = S3) -> Claim:
    # The messages quote single fields only: the header of another mechanism may hold a password or a token.
    value = fields["authorization"]
    if value.partition(" ")[0] != ALGORITHM:
        raise CallerError("InvalidRequest", f"The authorization mechanism is not supported: use {ALGORITHM}.")
    match = _AUTHORIZATION.fullmatch(value)
    if match is None:
        raise _malformed(
            f"write {ALGORITHM} Credential=KEY/YYYYMMDD/{region}/{service}/{TERMINATOR}, SignedHeaders=A;B, Signature=HEX."
        )
    made_for = read(match[1], region, _malformed, service)
    names = signed_names(match[2], _malformed)
    given = signature(match[3], _malformed)
    when, timestamp = _moment(fields)
    check_day(made_for, timestamp, _malformed)
    _check_skew(when, timestamp, now)
    return Claim(made_for, timestamp, names, given)


def _malformed(problem: str, **elements: str) -> CallerError:
    return CallerError("AuthorizationHeaderMalformed", f"The authorization header is malformed: {problem}", **elements)


def _moment(fields: Mapping[str, str]) -> tuple[datetime, str]:
    """When the request says that it was signed, and the same as it stands in what was signed."""
    try:
        if "x-amz-date" not in fields:
            when = parsedate_to_datetime(fields["date"])
            when = when if when.tzinfo else when.replace(tzinfo=UTC)  # "-0000" is UTC from an unknown place
            return when, stamp(when)
        if (sent := moment(fields["x-amz-date"])) is not None:
            return sent, fields["x-amz-date"]
    except (KeyError, ValueError, OverflowError):
        pass  # said below, in one sentence for all of them
    raise CallerError("AccessDenied", "The request has no valid date: send x-amz-date as YYYYMMDDTHHMMSSZ, or Date.")


def _check_skew(when: datetime, there: str, now: datetime) -> None:
    if abs(now - when) > MAX_SKEW:
        here = stamp(now)
        raise CallerError(
            "RequestTimeTooSkewed",
            f"The request was signed at {there} and the time here is {here}, more than "
            f"{MAX_SKEW.seconds // 60} minutes apart: set the client's clock and sign again.",
            RequestTime=there,
            ServerTime=here,
            MaxAllowedSkewMilliseconds=str(MAX_SKEW.seconds * 1000),
        )


def _check_coverage(fields: Mapping[str, str], claim: Claim, *more: str) -> None:
    # An x-amz-* header changes what a request means; one that anybody could have added must not count.
    required = {name for name in fields if name.startswith("x-amz-") or name in _SIGNED_WHEN_PRESENT}
    required.update(("host", *more))
    if not required.issubset(claim.names):
        listed = ", ".join(sorted(required.difference(claim.names)))[:500]
        raise CallerError(
            "AccessDenied", f"Headers that must be signed are not: {listed}. Sign them too.", HeadersNotSigned=listed
        )
    missing = [name for name in claim.names if name not in fields]
    if missing:
        raise CallerError(
            "SignatureDoesNotMatch",
            f"The signed header {missing[0][:100]!r} is not in the request: it was not sent, or was lost on the way.",
            AWSAccessKeyId=claim.scope.access_key_id,
            SignatureProvided=claim.signature,
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
