"""The query mechanism of SigV4: a URL that carries its own signature and is good until a time that it names.

Here a query parameter can stand for an `x-amz-*` header, as the AWS SDK for JavaScript writes them. The query is signed
as a whole, so such a parameter is as good as a signed header; a request that has both is refused, for only one counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from urllib.parse import unquote_to_bytes

from tidings.access import scope
from tidings.access.scope import Claim
from tidings.errors import CallerError

SIGNATURE = "X-Amz-Signature"
"""The one parameter that is not part of what is signed."""
MECHANISM = frozenset({"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", SIGNATURE})

_BY_LOWER_CASE = {name.lower(): name for name in MECHANISM}
_NUMBER = re.compile(r"[0-9]{1,6}")
_HEADER_NAME = re.compile(r"x-amz-[a-z0-9-]+")
_HEADER_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_CRC32_OF_NOTHING = b"AAAAAA=="


def read(parameters: Mapping[str, str], now: datetime, region: str) -> Claim:
    """What the query says about its signature. Names and values are in their canonical encoding."""
    for name in parameters:
        known = _BY_LOWER_CASE.get(name.lower())
        if known is not None and known != name:
            raise _refuse(f"{name} must be written {known}.")
    missing = MECHANISM.difference(parameters)
    if missing:
        raise _refuse(f"the query has no {', '.join(sorted(missing))}; a presigned URL has {', '.join(sorted(MECHANISM))}.")
    values = {name: unquote_to_bytes(parameters[name]).decode("latin-1") for name in MECHANISM}
    if values["X-Amz-Algorithm"] != scope.ALGORITHM:
        raise _refuse(f"X-Amz-Algorithm must be {scope.ALGORITHM}.")
    made_for = scope.read(values["X-Amz-Credential"], region, _refuse)
    timestamp = values["X-Amz-Date"]
    _check_time(timestamp, values["X-Amz-Expires"], now)
    scope.check_day(made_for, timestamp, _refuse)
    names = scope.signed_names(values["X-Amz-SignedHeaders"], _refuse)
    return Claim(made_for, timestamp, names, scope.signature(values[SIGNATURE], _refuse))


def _check_time(timestamp: str, expires: str, now: datetime) -> None:
    start = scope.moment(timestamp)
    if start is None:
        raise _refuse("X-Amz-Date must be a time, written YYYYMMDDTHHMMSSZ.")
    if not _NUMBER.fullmatch(expires) or not 1 <= int(expires) <= scope.LONGEST:
        raise _refuse(f"X-Amz-Expires is {expires[:100]!r}; write a number of seconds from 1 to {scope.LONGEST}.")
    if start - now > scope.MAX_SKEW:
        message = "Request is not valid yet"
        raise CallerError("AccessDenied", message, **{"X-Amz-Date": timestamp, "ServerTime": _iso(now)})
    end = start + timedelta(seconds=int(expires))
    if now > end:
        elements = {"X-Amz-Expires": expires, "Expires": _iso(end), "ServerTime": _iso(now)}
        raise CallerError("AccessDenied", "Request has expired", **elements)


def _iso(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def headers(parameters: Mapping[str, str], sent: Mapping[str, str]) -> dict[str, tuple[str, bytes]]:
    """The parameters that stand for headers: the parameter's name to the header's name and value."""
    found: dict[str, tuple[str, bytes]] = {}
    for parameter, encoded in parameters.items():
        name = parameter.lower()
        if parameter in MECHANISM or not _HEADER_NAME.fullmatch(name):
            continue
        value = unquote_to_bytes(encoded)
        if name in sent or name in [other for other, _ in found.values()]:
            raise _refuse(f"{name} comes twice, in the query and as a header or in another spelling; send it once.")
        if not _HEADER_VALUE.fullmatch(value):
            raise _refuse(f"{name} is {value[:100]!r}, which a header cannot have.")
        found[parameter] = (name, value.strip(b" \t"))
    return found


def counts(name: str, value: bytes) -> bool:
    """Whether a header that stands in the query says anything about the request.

    The AWS SDK for JavaScript signs a URL before there is a body, and puts the checksum of nothing in. S3 passes over it;
    any other checksum is held to. The name of an algorithm alone promises nothing.
    """
    return name != "x-amz-sdk-checksum-algorithm" and (name, value) != ("x-amz-checksum-crc32", _CRC32_OF_NOTHING)


def _refuse(problem: str, **elements: str) -> CallerError:
    message = f"The authorization in the query is malformed: {problem}"
    return CallerError("AuthorizationQueryParametersError", message, **elements)
