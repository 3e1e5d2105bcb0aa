"""What one notification of format `cos` says about the inventory (seed 001). Nothing here reads, writes or looks at a clock.

A notification speaks of exactly one version of one key. That is enough, because the null version is a version like any other
here: its row has the id `null`, and a key has at most one.

    event type                                     its version is      the row becomes
    Object:Write                                   new, or null        this object; a null version that was there is gone
    Object:CreateDeleteMarker                      new, or null        a delete marker
    Object:CreateDeleteMarker:NullVersionDeleted   null                a delete marker; the null version that was there is gone
    Object:Delete                                  the one deleted     a tombstone

Where versioning was never enabled no version is named, and the null version is meant. Which version of a key is the latest is
nobody's word: it is the one whose row has the highest sequencer and is no tombstone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

WRITE = "Object:Write"
DELETE = "Object:Delete"
MARKER = "Object:CreateDeleteMarker"
NULL_DELETED = "Object:CreateDeleteMarker:NullVersionDeleted"
NULL = "null"
"""The id of the version of objects that were written without versioning."""

_FORMAT = "2.0"
_SEQUENCER = re.compile("[0-9A-F]{16}")
_MOST_LENGTH = 2**63 - 1
_MOST_BYTES = 1024
"""Of a key, which is S3's limit, and of a version's id. PostgreSQL's indexes would not take both much larger."""
_MOST_NAME_BYTES = 255
_MISSING: Any = object()


class Row(NamedTuple):
    """What a version's row becomes, if its sequencer is higher than the row's. The columns of the table, in this order.

    `size` of a tombstone is that of what was deleted. `event_at` is the time of the request, as text in ISO 8601.
    """

    bucket: str
    bucket_id: str
    key: str
    version_id: str
    sequencer: str
    event_type: str
    delete_marker: bool
    tombstone: bool
    size: int
    etag: str | None
    content_type: str | None
    event_at: str


class Refused(NamedTuple):
    """A message that says nothing that can be used."""

    reason: str


@dataclass(frozen=True)
class TestEvent:
    """The test event of a new notification configuration: there is nothing to keep."""


TEST_EVENT = TestEvent()


def read(body: bytes | None, sequencer: str | None) -> Row | Refused | TestEvent:
    """What a message says; `sequencer` is its header of that name."""
    if body is None:
        return Refused("the message has no body")
    try:
        said = json.loads(body.decode())  # bytes might be any of the UTFs, and the guess costs time
    except (ValueError, RecursionError):
        return Refused("the body is not JSON")
    if not isinstance(said, dict):
        return Refused("the body is not a JSON object")
    if said.get("Event") == "s3:TestEvent":
        return TEST_EVENT
    try:
        return _row(said, sequencer)
    except ValueError as wrong:
        return Refused(str(wrong))


def _row(said: dict[str, Any], sequencer: str | None) -> Row:
    if said.get("format") != _FORMAT:
        raise ValueError(f"the format is {_shown(said.get('format'))}, not {_FORMAT!r}")
    event_type = said.get("event_type")
    if event_type not in (WRITE, DELETE, MARKER, NULL_DELETED):
        raise ValueError(f"the event type {_shown(event_type)} is not known")
    if sequencer is None:
        raise ValueError("there is no header sequencer, so nobody knows what came before it")
    if not _SEQUENCER.fullmatch(sequencer):
        raise ValueError(f"the sequencer {_shown(sequencer)} is not 16 hexadecimal digits")
    version_id = _version(said, event_type)
    length = said.get("object_length")
    if type(length) is not int or not 0 <= length <= _MOST_LENGTH:
        raise ValueError(f"object_length is {_shown(length)}, not a number of bytes")
    written, deleted = event_type == WRITE, event_type == DELETE
    return Row(
        _text(said, "bucket_name", _MOST_NAME_BYTES),
        _text(said, "bucket_uuid", _MOST_NAME_BYTES),
        _text(said, "object_name", _MOST_BYTES),
        version_id,
        sequencer,
        event_type,
        delete_marker=not written and not deleted,
        tombstone=deleted,
        # NullVersionDeleted tells the length of what the marker took the place of, which is not its own.
        size=length if written or deleted else 0,
        etag=_text(said, "object_etag") if written else None,
        content_type=_optional_text(said, "content_type") if written or deleted else None,
        event_at=_time(said.get("request_time")),
    )


def _version(said: dict[str, Any], event_type: str) -> str:
    """The seed says that it is "null" where versioning is suspended: the text or JSON's null."""
    found = said.get("object_version", _MISSING)
    if found is _MISSING and event_type in (MARKER, NULL_DELETED):
        raise ValueError(f"{event_type} has no object_version: there are no delete markers without versioning")
    version_id = NULL if found is _MISSING or found is None else _text(said, "object_version", _MOST_BYTES)
    if event_type == NULL_DELETED and version_id != NULL:
        raise ValueError(f"{event_type} has the object_version {_shown(version_id)}, not null")
    return version_id


def _text(said: dict[str, Any], name: str, most_bytes: int | None = None) -> str:
    value = said.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {_shown(value)}, not a text")
    if "\x00" in value:
        raise ValueError(f"{name} holds a NUL")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds half of a surrogate pair") from None
    if most_bytes is not None and size > most_bytes:
        raise ValueError(f"{name} has {size} bytes, and {most_bytes} are the most")
    return value


def _optional_text(said: dict[str, Any], name: str) -> str | None:
    return _text(said, name) if said.get(name) else None


def _time(value: Any) -> str:
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is not None and 1970 <= moment.year < 9999:
            return moment.astimezone(UTC).isoformat()  # PostgreSQL does not take every zone that ISO 8601 can say
    except (TypeError, ValueError):
        pass
    raise ValueError(f"request_time is {_shown(value)}, not a time with its zone in ISO 8601")


def _shown(value: Any) -> str:
    """A value that somebody sent, in words for a log: not long, and in ASCII."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:60] + "…"
