"""What the catalog's operations take and give: values only, each checked when it is made."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from tidings.catalog.errors import bad_request

DETACHED = "DETACHED"
"""In place of a reference's name, where a hash alone says what is meant."""
ICEBERG_TABLE, NAMESPACE = "ICEBERG_TABLE", "NAMESPACE"

_SEPARATOR = "\x01"
"""Between the elements of a key as it is stored: below every character that an element can have, so keys sort by elements."""
_NAME = re.compile(r"[A-Za-z](?:(?:(?!\.\.)[A-Za-z0-9./_-])*[A-Za-z0-9._-])?")
_HASH = re.compile(r"[0-9a-fA-F]{8,64}")
_CONTROL = re.compile(r"[\x00-\x1f]")
_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
MAX_CONTENT, MAX_META = 65_536, 65_536
"""Characters, as JSON: each is in an event, of which there is a copy for each subscription on its way."""
_MAX_NAME, _MAX_ELEMENTS, _MAX_KEY, _MAX_ID = 500, 20, 500, 200


class Caller(NamedTuple):
    """Who makes a call and how it came, as its events will tell."""

    name: str = ""
    roles: tuple[str, ...] = ()
    source_ip: str = ""
    request_id: str = ""
    request_at: datetime | None = None
    trace: str | None = None


class Key(tuple[str, ...]):
    """The elements of a content's key: namespaces, and the name in them."""

    __slots__ = ()

    @classmethod
    def of(cls, elements: Any) -> Key:
        if not isinstance(elements, list | tuple) or not all(isinstance(each, str) for each in elements):
            raise bad_request("A content key is an object with a list of texts: {'elements': ['namespace', 'table']}.")
        shown = ".".join(elements)[:200]
        if not 1 <= len(elements) <= _MAX_ELEMENTS or not all(elements):
            raise bad_request(f"The content key {shown!r} must have 1 to {_MAX_ELEMENTS} elements, none of them empty.")
        if sum(len(each.encode()) + 1 for each in elements) > _MAX_KEY:
            raise bad_request(f"The content key {shown!r} is longer than {_MAX_KEY} bytes.")
        if any(_CONTROL.search(each) for each in elements):
            raise bad_request(f"The content key {shown!r} has a control character in it: leave it out.")
        return cls(elements)

    @classmethod
    def from_path(cls, text: str) -> Key:
        """As it stands in a URL: elements with dots in between, and U+001D for a dot in an element."""
        return cls.of([each.replace("\x1d", ".") for each in text.split(".")])

    @classmethod
    def stored(cls, text: str) -> Key:
        return cls(text.split(_SEPARATOR))

    @property
    def text(self) -> str:
        return _SEPARATOR.join(self)

    def to_json(self) -> dict[str, list[str]]:
        return {"elements": list(self)}

    def __str__(self) -> str:
        return ".".join(f'"{each}"' if "." in each else each for each in self)


class Content(NamedTuple):
    """A table, a view, a namespace or whatever else has a type and an id, as JSON in one form only."""

    type: str
    id: str
    text: str

    @classmethod
    def of(cls, values: Mapping[str, Any], id: str | None = None) -> Content:
        """What a caller sent; `id` is for one that came without."""
        kind = values.get("type")
        if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
            raise bad_request(f"A content must have a type, such as {ICEBERG_TABLE}: {json.dumps(kind)[:100]} is none.")
        given = values.get("id") or id
        if not isinstance(given, str) or not 1 <= len(given) <= _MAX_ID:
            raise bad_request(f"The id of a content is a text of 1 to {_MAX_ID} characters: {json.dumps(given)[:100]} is none.")
        text = compact({**values, "id": given})
        if len(text) > MAX_CONTENT:
            raise bad_request(f"A content has at most {MAX_CONTENT} characters as JSON; this one has {len(text)}.")
        return cls(kind, given, text)

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)
        return found


@dataclass(frozen=True, slots=True)
class Put:
    key: Key
    content: Mapping[str, Any]
    """As it was sent, perhaps without an id."""
    expected: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    key: Key


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Changes nothing, and is a conflict if somebody else has changed the key."""

    key: Key


Operation = Put | Delete | Unchanged


class Meta(NamedTuple):
    """What a caller says of a commit."""

    message: str = ""
    author: str | None = None
    signed_off_by: str | None = None
    author_time: str | None = None
    properties: Mapping[str, str] = {}


compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode
"""JSON in one form only. Made once: `json.dumps` with options makes an encoder for every call."""


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME or name == DETACHED or _HASH.fullmatch(name):
        raise bad_request(
            f"{name[:100]!r} is not a name for a reference: it begins with a letter, has letters, digits and . / _ - (no '..',"
            f" no '/' at the end), is not {DETACHED}, and does not look like a hash."
        )
    return name


def check_hash(text: str) -> str:
    if not _HASH.fullmatch(text):
        raise bad_request(f"{text[:100]!r} is not a hash: it has 8 to 64 hexadecimal digits.")
    return text.lower()
