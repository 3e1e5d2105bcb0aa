"""What a message may hold, and the digests by which a client checks that it arrived whole."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidings.queues.errors import QueueError, invalid

MAX_ATTRIBUTES = 10
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"(?!(?:aws|amazon)\.)(?!\.)(?!.*\.\.)(?!.*\.$)[A-Za-z0-9_.-]{1,256}", re.IGNORECASE)
_TYPE = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f\ud800-\udfff]{1,249})?")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)

Attribute = Mapping[str, str]
"""As the API writes it: DataType, and StringValue or BinaryValue (in base64)."""


@dataclass(frozen=True, slots=True)
class Content:
    """The body and the attributes of one message, checked."""

    body: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    trace: str | None = None
    delay: int | None = None

    def __post_init__(self) -> None:
        if not self.body:
            raise QueueError("MissingRequiredParameterException", "The request must contain the parameter MessageBody.")
        for text in (self.body, *(each.get("StringValue", "") for each in self.attributes.values()), self.trace or ""):
            if found := _NOT_ALLOWED.search(text):
                raise QueueError(
                    "InvalidMessageContents",
                    f"Invalid characters found: {found[0]!r}. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF |"
                    " #xE000 to #xFFFD | #x10000 to #x10FFFF.",
                )

    @property
    def size(self) -> int:
        """The bytes that count for the limits: the body, and names, types and values of the attributes."""
        return len(self.body.encode()) + sum(len(part) for each in _parts(self.attributes) for part in each)

    @property
    def md5(self) -> str:
        return md5_of_body(self.body)

    def check_size(self, most: int) -> None:
        if self.size > most:
            reason = f"Message must be shorter than {most} bytes; it has {self.size} with its attributes."
            raise QueueError("InvalidParameterValueException", f"One or more parameters are invalid. Reason: {reason}")


def md5_of_body(body: str) -> str:
    return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, Attribute]) -> str | None:
    """As SQS's developer guide has it: name, type and value by name, each with its length before it."""
    if not attributes:
        return None
    digest = hashlib.md5(usedforsecurity=False)
    for name, kind, value in _parts(attributes):
        for part in (name, kind):
            digest.update(len(part).to_bytes(4, "big") + part)
        digest.update((b"\2" if kind.startswith(b"Binary") else b"\1") + len(value).to_bytes(4, "big") + value)
    return digest.hexdigest()


def _parts(attributes: Mapping[str, Attribute]) -> Iterable[tuple[bytes, bytes, bytes]]:
    for name, each in sorted(attributes.items()):
        kind = each["DataType"]
        value = base64.b64decode(each["BinaryValue"]) if kind.startswith("Binary") else each["StringValue"].encode()
        yield name.encode(), kind.encode(), value


def attributes(given: Mapping[str, Any]) -> dict[str, Attribute]:
    """The attributes of a message, checked, in the one form in which they are kept."""
    if len(given) > MAX_ATTRIBUTES:
        raise invalid("MessageAttributes", len(given), f"A message has at most {MAX_ATTRIBUTES} attributes.")
    return {_name(name): _attribute(name, value) for name, value in given.items()}


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise invalid(
            "MessageAttributes",
            name,
            "A name has letters, digits, _, - and single dots inside, and no AWS. or Amazon. in front.",
        )
    return name


def _attribute(name: str, given: Any) -> Attribute:
    if not isinstance(given, dict) or not all(isinstance(value, str) for key, value in given.items() if key in _FIELDS):
        raise invalid(f"MessageAttributes.{name}", given, "Send DataType, and StringValue or BinaryValue.")
    kind, text, binary = (given.get(key) for key in _FIELDS)
    if kind is None or not _TYPE.fullmatch(kind):
        raise invalid(
            f"MessageAttributes.{name}.DataType", kind, "Must be String, Number or Binary, or one of them with a .label."
        )
    if kind.startswith("Binary"):
        return {"DataType": kind, "BinaryValue": _base64(name, binary, text)}
    if not text or binary is not None:
        raise invalid(
            f"MessageAttributes.{name}", given, f"An attribute of type {kind[:20]} needs a StringValue, and that alone."
        )
    if kind.startswith("Number") and not _NUMBER.fullmatch(text):
        raise invalid(f"MessageAttributes.{name}", text, "Must be a number.")
    return {"DataType": kind, "StringValue": text}


_FIELDS = ("DataType", "StringValue", "BinaryValue")


def _base64(name: str, binary: str | None, text: str | None) -> str:
    try:
        if binary and text is None and (value := base64.b64decode(binary, validate=True)):
            return base64.b64encode(value).decode()
    except (binascii.Error, ValueError):
        pass  # said below
    raise invalid(f"MessageAttributes.{name}", binary, "A binary attribute needs a BinaryValue in base64, and that alone.")


def chosen(attributes: Mapping[str, Attribute], wanted: Iterable[str]) -> dict[str, Attribute]:
    """The attributes that a receiver asks for: by name, by what they begin with (`a.*`), or All."""
    names, starts = set(wanted), tuple(each[:-1] for each in wanted if each.endswith(".*"))
    everything = not names.isdisjoint({"All", ".*"})
    return {
        name: value for name, value in attributes.items() if everything or name in names or (starts and name.startswith(starts))
    }
