"""The form mechanism of SigV4: a policy that says what a form may upload, signed, and sent as a field of the form.

The signature is over the policy alone. So every field that means something must be covered by a condition of the policy:
a field that nobody signed must not count.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tidings.access import scope
from tidings.access.sigv4 import PayloadKind, SignedRequest
from tidings.errors import CallerError

FIELDS = frozenset({"policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"})
"""The fields that carry the signature."""

_VERSION_2 = ("awsaccesskeyid", "signature")
_UNCOVERED = frozenset({"x-amz-signature", "file", "policy"})
_IGNORED = "x-ignore-"
_EXPIRATION = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z")
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Condition:
    """What one field must be, or start with."""

    operator: str
    field: str
    value: str

    def holds(self, value: str) -> bool:
        if self.operator == "eq":
            return value == self.value
        # A list of content types must fit as a whole: "Creating a POST policy" of the S3 API reference.
        values = re.split(r",[ \t]*", value) if self.field == "content-type" else [value]
        return all(each.startswith(self.value) for each in values)

    def __str__(self) -> str:
        return json.dumps([self.operator, f"${self.field}", self.value])


@dataclass(frozen=True, slots=True)
class Policy:
    """What a form may upload, and until when. `smallest` and `largest` bound the file; None leaves it open."""

    expiration: datetime
    conditions: tuple[Condition, ...]
    smallest: int = 0
    largest: int | None = None

    def check(self, fields: Mapping[str, str], bucket: str, now: datetime) -> None:
        """Refuse a form that is too late, breaks a condition, or has a field that no condition covers."""
        if now > self.expiration:
            raise _denied("Policy expired.")
        values = {**fields, "bucket": bucket}
        for condition in self.conditions:
            if not condition.holds(values.get(condition.field, "")):
                raise _denied(f"Policy Condition failed: {str(condition)[:300]}")
        covered = _UNCOVERED.union(condition.field for condition in self.conditions)
        extra = sorted(name for name in values if name not in covered and not name.startswith(_IGNORED))
        if extra:
            raise _denied(f"Extra input fields: {', '.join(extra)[:300]}")


def parse(fields: Mapping[str, str], now: datetime, region: str) -> SignedRequest:
    """Every check of the signature's fields that needs no secret. Names are in lower case."""
    if any(name in fields for name in _VERSION_2):
        message = f"The form is signed with Signature Version 2, which is not served: use {scope.ALGORITHM}."
        raise CallerError("InvalidRequest", message)
    missing = sorted(FIELDS.difference(fields))
    if missing:
        message = f"The form is not signed: it has no field {', '.join(missing)} in front of the file."
        raise CallerError("AccessDenied", message)
    if fields["x-amz-algorithm"] != scope.ALGORITHM:
        raise _refuse(f"x-amz-algorithm must be {scope.ALGORITHM}.")
    made_for = scope.read(fields["x-amz-credential"], region, _refuse)
    timestamp = fields["x-amz-date"]
    when = scope.moment(timestamp)
    if when is None:
        raise _refuse("x-amz-date must be a time, written YYYYMMDDTHHMMSSZ.")
    scope.check_day(made_for, timestamp, _refuse)
    if when - now > scope.MAX_SKEW:
        raise _denied("the policy is not valid yet.")
    if now - when > timedelta(seconds=scope.LONGEST):
        raise _denied(f"Policy expired: it was signed more than {scope.LONGEST} s ago.")
    return SignedRequest(
        made_for,
        timestamp,
        scope.signature(fields["x-amz-signature"], _refuse),
        PayloadKind.UNSIGNED,
        PayloadKind.UNSIGNED.value,
        string_to_sign=fields["policy"],
        headers={},
    )


def read(encoded: str) -> Policy:
    """The policy in a form's field, after its signature has been verified."""
    try:
        text = base64.b64decode(encoded, validate=True).decode()
        document = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise _invalid("it is not the base64 of a JSON document in UTF-8, or names something twice.") from None
    if not isinstance(document, dict) or document.keys() != {"expiration", "conditions"}:
        raise _invalid("it must be an object with expiration and conditions, and nothing else.")
    expiration, conditions = document["expiration"], document["conditions"]
    if not isinstance(conditions, list):
        raise _invalid("conditions must be a list.")
    found: list[Condition] = []
    smallest, largest = 0, None
    for condition in conditions:
        match condition:
            case {**fields} if fields:
                found += [_condition("eq", f"${name}", value) for name, value in fields.items()]
            case ["eq" | "starts-with" as operator, name, value]:
                found.append(_condition(operator, name, value))
            case ["content-length-range", lowest, highest]:
                smallest = max(smallest, _length(lowest))
                largest = min(_length(highest), _length(highest) if largest is None else largest)
            case _:
                raise _invalid(f"{json.dumps(condition)[:200]} is not a condition.")
    return Policy(_expiration(expiration), tuple(found), smallest, largest)


def _condition(operator: str, name: Any, value: Any) -> Condition:
    if not isinstance(name, str) or not name.startswith("$") or not isinstance(value, str):
        raise _invalid(f"{json.dumps([operator, name, value])[:200]} must name a $field and a text.")
    return Condition(operator, name[1:].lower(), value)


def _length(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or not _NUMBER.fullmatch(str(value)):
        raise _invalid("content-length-range needs two numbers of bytes.")
    return int(value)


def _expiration(value: Any) -> datetime:
    try:
        if isinstance(value, str) and _EXPIRATION.fullmatch(value):
            return datetime.fromisoformat(value)
    except ValueError:
        pass  # said below
    raise _invalid("expiration must be a time, written YYYY-MM-DDTHH:MM:SS.000Z.")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _refuse(problem: str, **elements: str) -> CallerError:
    return CallerError("InvalidArgument", f"The signature of the form is malformed: {problem}", **elements)


def _denied(problem: str) -> CallerError:
    return CallerError("AccessDenied", f"Invalid according to Policy: {problem}")


def _invalid(problem: str) -> CallerError:
    return CallerError("InvalidPolicyDocument", f"Invalid Policy: {problem}")
