"""What a notification says: strict reading of S3 events, one or a million alike. No I/O.

What belongs to the form is checked here; what may be registered (bucket, path, SHA-256) is checked by who asks, in that order.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, NamedTuple
from urllib.parse import unquote_plus

from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert
from msgspec.json import Decoder

from tidings.consumers.files.refusals import Invalid
from tidings.events import strict_json

CREATED, MARKED, REMOVED = "created", "marked", "removed"
"""What happened to a version: it was written, it is a delete marker, it is gone."""
STRIPES = 256
"""Keys are locked by stripe: a load of millions must not hold millions of locks."""
_METADATA = ("source-sha256", "x-amz-meta-source-sha256")
_MAX_KEY = 1024
DIGITS = 32
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z", re.ASCII).fullmatch
_VERSION = re.compile(r"2\.\d{1,4}", re.ASCII)
_NAME = re.compile(r"(?:s3:)?[A-Z][A-Za-z]*(?::[A-Z][A-Za-z]*){0,2}")
_SOURCE = re.compile(r"[a-z0-9.-]+:s3")
_SEQUENCER = re.compile(r"[0-9A-Fa-f]{1,32}").fullmatch
_ETAG = re.compile(r"[!#-\[\]-~]{1,256}").fullmatch  # without quotes and backslashes
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}").fullmatch
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_VERSION_ID = re.compile(r"[!-\[\]-~]{1,1024}").fullmatch


class Record(NamedTuple):
    """One thing that happened to one version of an object."""

    kind: str
    bucket: str
    key: str
    version_id: str | None
    sequencer: str
    etag: str | None
    size: int | None
    event_name: str
    event_time: str
    sha256: str | None
    """As the event has it, if it does."""


class Event(NamedTuple):
    """An S3 event, without records of kinds that make no difference to files, such as tagging."""

    records: list[Record]
    buckets: frozenset[str]


class TestEvent(NamedTuple):
    """What S3 sends when a configuration is set."""

    bucket: str


class Other(NamedTuple):
    """A notification that is not about objects."""

    text: str


# The form of an event, with the fields that count; others are passed over. What only some kinds of event need may be anything
# here, and is looked at where it is needed.
class _Bucket(Struct, gc=False):
    name: str


class _Object(Struct, gc=False):
    key: str
    sequencer: object = UNSET
    size: object = UNSET
    eTag: object = UNSET
    versionId: object = None
    userMetadata: object = None
    metadata: object = None


class _S3(Struct, gc=False):
    bucket: _Bucket
    object: _Object


class _Told(Struct, gc=False):
    eventVersion: str
    eventSource: str
    eventName: str
    eventTime: str
    s3: _S3


class _Document(Struct, gc=False):
    """An S3 event, S3's test event, a message of SNS with one of them in it, or something else."""

    Records: Annotated[list[_Told], Meta(min_length=1)] | UnsetType = UNSET
    Event: object = None
    Bucket: object = ""
    Type: object = None
    Message: object = None


_decode = Decoder(_Document).decode


def read(text: str) -> Event | TestEvent | Other:
    """What a stranger's message says, or `Invalid`. Text that is not an object of JSON at all is somebody else's."""
    if not text.lstrip().startswith("{"):
        return Other(text)
    try:
        return _understood(convert(strict_json.read(text), _Document), text)
    except ValueError as error:
        raise _misshapen(error) from None


def read_trusted(text: str) -> Event | TestEvent | Other:
    """The same for text that the operator vouches for, several times as fast: a key that comes twice is not noticed. It may be
    inside a message of SNS, as that was sent."""
    try:
        document = _decode(text)
        if document.Type == "Notification":
            if not isinstance(document.Message, str):
                raise Invalid("The message of SNS has no Message")
            text = document.Message
            document = _decode(text)
    except (ValueError, RecursionError) as error:
        raise _misshapen(error) from None
    return _understood(document, text)


def _understood(document: _Document, text: str) -> Event | TestEvent | Other:
    if document.Records is not UNSET:
        return _event(document.Records)
    if document.Event == "s3:TestEvent":
        return TestEvent(str(document.Bucket)[:255])
    return Other(text)


def _misshapen(error: Exception) -> Invalid:
    """In our words. msgspec says what was expected, and then where: `$.Records[0].s3.object`."""
    if not isinstance(error, ValidationError):
        return Invalid(f"The message is not JSON as we take it: {str(error)[:200]}")
    what, _, where = str(error).partition(" - at `$.")
    record, _, inside = where.rstrip("`").partition(".")
    return Invalid(": ".join(part for part in (record or "The message", inside, what) if part)[:500])


def checked_sha256(value: object) -> str:
    """64 hexadecimal digits, in lower case."""
    if not isinstance(value, str) or not _SHA256(value):
        raise Invalid(f"SHA256 metadata is invalid: source-sha256 must be 64 hexadecimal digits, not {str(value)[:100]!r}")
    return value.lower()


def sha256_of(metadata: Mapping[str, object]) -> str | None:
    """What an object's metadata says, whatever the case of its names; None if it says nothing."""
    for name, value in metadata.items():
        if name in _METADATA or name.lower() in _METADATA:
            return checked_sha256(value)
    return None


def stripe(bucket: str, key: str) -> int:
    return zlib.crc32(f"{bucket}/{key}".encode()) % STRIPES


def _event(records: list[_Told]) -> Event:
    found, buckets = [], set()
    for number, each in enumerate(records):
        try:
            record = _record(each)
        except _Wrong as wrong:
            name, value = wrong.args
            said = "is missing" if value is UNSET else f"is not valid: {str(value)[:200]!r}"
            raise Invalid(f"Records[{number}]: {name} {said}") from None
        if isinstance(record, str):
            buckets.add(record)
        else:
            buckets.add(record.bucket)
            found.append(record)
    return Event(found, frozenset(buckets))


class _Wrong(Exception):
    """The name of a field, and what it holds."""


def _record(told: _Told) -> Record | str:
    """A record, or just the bucket of one that makes no difference."""
    of_object = told.s3.object
    bucket, name, kind = _kind(told.s3.bucket.name, told.eventVersion, told.eventSource, told.eventName)
    time = told.eventTime
    try:
        if not _TIME(time):
            raise _Wrong("eventTime", time)
        datetime.fromisoformat(time)
    except ValueError:
        raise _Wrong("eventTime", time) from None
    key = _key(of_object.key)
    if kind is None:
        return bucket
    sequencer = of_object.sequencer
    if not isinstance(sequencer, str) or not _SEQUENCER(sequencer):
        raise _Wrong("s3.object.sequencer", sequencer)
    sequencer = sequencer.upper().zfill(DIGITS)
    version = of_object.versionId
    if version is not None and not (isinstance(version, str) and _VERSION_ID(version)):
        raise _Wrong("s3.object.versionId", version)
    if version == "null":
        version = None
    if kind != CREATED:
        return Record(kind, bucket, key, version, sequencer, None, None, name, time, None)
    size, etag = of_object.size, of_object.eTag
    if type(size) is not int or not 0 <= size < 1 << 63:  # true is an int as well
        raise _Wrong("s3.object.size", size)
    if not isinstance(etag, str) or not _ETAG(etag):
        raise _Wrong("s3.object.eTag", etag)
    return Record(kind, bucket, key, version, sequencer, etag, size, name, time, _sha256(of_object))


@lru_cache(maxsize=1024)  # a million records have a few of these
def _kind(bucket: str, version: str, source: str, name: str) -> tuple[str, str, str | None]:
    """The bucket, the event's name without `s3:`, and what it means for a version, if anything."""
    patterns = {"s3.bucket.name": _BUCKET, "eventVersion": _VERSION, "eventSource": _SOURCE, "eventName": _NAME}
    for (field, pattern), value in zip(patterns.items(), (bucket, version, source, name), strict=True):
        if not pattern.fullmatch(value):
            raise _Wrong(field, value)
    name = name.removeprefix("s3:")
    family, _, how = name.partition(":")
    if family == "ObjectCreated":
        return bucket, name, CREATED
    if family in ("ObjectRemoved", "LifecycleExpiration"):
        return bucket, name, MARKED if how == "DeleteMarkerCreated" else REMOVED
    return bucket, name, None


def _sha256(of_object: _Object) -> str | None:
    """AWS has no metadata in its events; MinIO and others have."""
    for name, metadata in (("userMetadata", of_object.userMetadata), ("metadata", of_object.metadata)):
        if metadata is None:
            continue
        if not isinstance(metadata, dict):
            raise _Wrong(f"s3.object.{name}", metadata)
        if (found := sha256_of(metadata)) is not None:
            return found
    return None


def _key(encoded: str) -> str:
    try:
        key = unquote_plus(encoded, errors="strict") if "%" in encoded else encoded.replace("+", " ")
        size = len(key) if key.isascii() else len(key.encode())  # half a character cannot be encoded
    except UnicodeError:
        raise _Wrong("s3.object.key", encoded) from None
    if not 0 < size <= _MAX_KEY or "\0" in key:  # PostgreSQL's text cannot hold it
        raise _Wrong("s3.object.key", encoded)
    return key
