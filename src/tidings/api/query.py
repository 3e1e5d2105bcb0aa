"""AWS's query protocol: a form comes in, XML goes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

from tidings.api import xml
from tidings.api.response import Response
from tidings.api.xml import Node
from tidings.errors import CallerError

_MAX_FIELDS = 1000
_CODES = {"AccessDenied": "AuthorizationError", "InvalidAccessKeyId": "InvalidClientTokenId", "SlowDown": "ServiceUnavailable"}
"""What S3 and the signatures call by another name."""


def read(form: bytes) -> dict[str, str]:
    """The fields of a form, each once."""
    try:
        pairs = parse_qsl(
            form.decode("ascii"), keep_blank_values=True, strict_parsing=bool(form), errors="strict", max_num_fields=_MAX_FIELDS
        )
    except ValueError:
        raise _malformed(f"it is not a form of at most {_MAX_FIELDS} fields in UTF-8, percent-encoded") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _malformed("a field comes twice")
    if any("\0" in name or "\0" in value for name, value in pairs):
        raise _malformed("a field has a NUL in it")
    return fields


def members(fields: Mapping[str, str], name: str) -> list[str]:
    """`NAME.member.1`, `NAME.member.2`, …: the values."""
    return [fields[key] for key in _numbered(fields, f"{name}.member.") if key in fields]


def pairs(fields: Mapping[str, str], name: str, first: str, second: str) -> list[tuple[str, str]]:
    """`NAME.1.FIRST` with `NAME.1.SECOND`, and so on."""
    found = []
    for key in _numbered(fields, f"{name}."):
        if f"{key}.{first}" not in fields:
            raise CallerError("InvalidParameter", f"Invalid parameter: {key} has no {first}")
        found.append((fields[f"{key}.{first}"], fields.get(f"{key}.{second}", "")))
    return found


def _numbered(fields: Mapping[str, str], prefix: str) -> list[str]:
    numbers = {name.removeprefix(prefix).partition(".")[0] for name in fields if name.startswith(prefix)}
    if not all(number.isascii() and number.isdigit() and len(number) < 5 for number in numbers):
        raise CallerError("InvalidParameter", f"Invalid parameter: write {prefix}1, {prefix}2 and so on")
    return [f"{prefix}{number}" for number in sorted(numbers, key=int)]


def answer(namespace: str, action: str, result: Iterable[Node] | None, request_id: str) -> Response:
    """`result` is None for an action that says nothing but that it was done."""
    parts: list[Node] = [] if result is None else [(f"{action}Result", list(result))]
    parts.append(("ResponseMetadata", [("RequestId", request_id)]))
    return Response(200, {"content-type": "text/xml"}, xml.document(f"{action}Response", parts, namespace))


def refusal(namespace: str, problem: CallerError, request_id: str) -> Response:
    side = "Receiver" if problem.status >= 500 else "Sender"
    code = _CODES.get(problem.code, problem.code)
    error: list[Node] = [("Type", side), ("Code", code), ("Message", problem.message)]
    body = xml.document("ErrorResponse", [("Error", error), ("RequestId", request_id)], namespace)
    return Response(problem.status, {**problem.headers, "content-type": "text/xml"}, body)


def _malformed(problem: str) -> CallerError:
    return CallerError("InvalidParameter", f"Invalid parameter: the request cannot be read: {problem}.")
