"""What a message of the queue says: R2's notification of one object (formats/r2.py writes it)."""

from __future__ import annotations

from typing import NamedTuple

from tidings.events import keys, strict_json

CREATES = frozenset({"PutObject", "CopyObject", "CompleteMultipartUpload"})
_MOST_SHOWN = 200


class Created(NamedTuple):
    """An object that was put, copied or completed at this place."""

    bucket: str
    key: str


class NotANotification(ValueError):
    """A message that nobody can make anything of. It is not acknowledged, and ends among the dead letters."""


def read(body: str) -> Created | None:
    """None for what there is nothing to do about: the test event of a rule, and actions that create nothing."""
    try:
        document = strict_json.read(body)
    except ValueError as error:
        raise NotANotification(f"{body[:_MOST_SHOWN]!r} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise NotANotification(f"{body[:_MOST_SHOWN]!r} is not an object of JSON")
    if document.get("Event") == "s3:TestEvent":
        return None
    action, bucket, about = document.get("action"), document.get("bucket"), document.get("object")
    if not isinstance(action, str):
        raise NotANotification(f"{body[:_MOST_SHOWN]!r} has no action: is this queue's tag event-format=r2?")
    if action not in CREATES:
        return None
    key = about.get("key") if isinstance(about, dict) else None
    if not isinstance(bucket, str) or not isinstance(key, str) or not bucket or not _is_key(key):
        raise NotANotification(f"{body[:_MOST_SHOWN]!r} does not name a bucket and a key")
    return Created(bucket, key)


def _is_key(text: str) -> bool:
    """Whether an object can have it: what no database and no request can hold must not spoil the batch that it came in."""
    try:
        return 0 < len(text.encode()) <= keys.MAX_BYTES and "\0" not in text
    except UnicodeEncodeError:
        return False
