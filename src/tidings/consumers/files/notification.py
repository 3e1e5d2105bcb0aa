"""What a notification says: strict reading of S3 events, one or a million alike. No I/O.

What belongs to the form is checked here; what may be registered (bucket, path, SHA-256) is checked by who asks, in that order.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from pydantic_core import from_json

from tidings.consumers.files.refusals import Invalid

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
_ETAG = re.compile(r"[!#-~]{1,256}").fullmatch
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}").fullmatch
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_VERSION_ID = re.compile(r"[!-~]{1,1024}").fullmatch


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


def read(text: str) -> Event | TestEvent | Other:
    """What a message says, or `Invalid`. Text that is not an object of JSON at all is somebody else's."""
    if not text.lstrip().startswith("{"):
        return Other(text)
    return understand(parse(text))


def parse(text: str) -> dict[str, Any]:
    """JSON as we take it: no key twice, no NaN."""
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"The message is not JSON as we take it: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise Invalid("The message is not a JSON object")
    return document


def parse_trusted(text: str) -> dict[str, Any]:
    """The same for text that the operator vouches for, three times as fast: of a key that comes twice the last one counts."""
    try:
        document = from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise Invalid(f"The message is not JSON as we take it: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise Invalid("The message is not a JSON object")
    return document


def understand(document: Mapping[str, Any]) -> Event | TestEvent | Other:
    if "Records" in document:
        return _event(document["Records"])
    if document.get("Event") == "s3:TestEvent":
        return TestEvent(str(document.get("Bucket", ""))[:255])
    return Other(json.dumps(document)[:1000])


def checked_sha256(value: object) -> str:
    """64 hexadecimal digits, in lower case."""
    if not isinstance(value, str) or not _SHA256(value):
        raise Invalid(f"SHA256 metadata is invalid: source-sha256 must be 64 hexadecimal digits, not {str(value)[:100]!r}")
    return value.lower()


def sha256_of(metadata: Mapping[str, Any]) -> str | None:
    """What an object's metadata says, whatever the case of its names; None if it says nothing."""
    for name, value in metadata.items():
        if name in _METADATA or name.lower() in _METADATA:
            return checked_sha256(value)
    return None


def stripe(bucket: str, key: str) -> int:
    return zlib.crc32(f"{bucket}/{key}".encode()) % STRIPES


def _event(records: object) -> Event:
    if not isinstance(records, list) or not records:
        raise Invalid("Records must be a list with at least one record")
    found, buckets = [], set()
    for number, each in enumerate(records):
        try:
            record = _record(each)
        except KeyError as error:
            raise Invalid(f"Records[{number}]: {error.args[0]} is missing") from None
        except TypeError:
            raise Invalid(f"Records[{number}]: something in it is not text or not an object where it should be") from None
        except _Wrong as wrong:
            name, value = wrong.args
            raise Invalid(f"Records[{number}]: {name} is not valid: {str(value)[:200]!r}") from None
        if isinstance(record, str):
            buckets.add(record)
        else:
            buckets.add(record.bucket)
            found.append(record)
    return Event(found, frozenset(buckets))


class _Wrong(Exception):
    """The name of a field, and what it holds."""


def _record(record: Any) -> Record | str:
    """A record, or just the bucket of one that makes no difference. What is no text where it should be is a TypeError."""
    s3 = record["s3"]
    of_object = s3["object"]
    bucket, name, kind = _kind(s3["bucket"]["name"], record["eventVersion"], record["eventSource"], record["eventName"])
    time = record["eventTime"]
    try:
        if not _TIME(time):
            raise _Wrong("eventTime", time)
        datetime.fromisoformat(time)
    except ValueError:
        raise _Wrong("eventTime", time) from None
    key = _key(of_object["key"])
    if kind is None:
        return bucket
    sequencer = of_object["sequencer"]
    if not _SEQUENCER(sequencer):
        raise _Wrong("s3.object.sequencer", sequencer)
    sequencer = sequencer.upper().zfill(DIGITS)
    version = of_object.get("versionId")
    if version is not None and not _VERSION_ID(version):
        raise _Wrong("s3.object.versionId", version)
    if version == "null":
        version = None
    if kind != CREATED:
        return Record(kind, bucket, key, version, sequencer, None, None, name, time, None)
    size, etag = of_object["size"], of_object["eTag"]
    if type(size) is not int or not 0 <= size < 1 << 63:  # true is an int as well
        raise _Wrong("s3.object.size", size)
    if not _ETAG(etag):
        raise _Wrong("s3.object.eTag", etag)
    return Record(kind, bucket, key, version, sequencer, etag, size, name, time, _sha256(of_object))


@lru_cache(maxsize=1024)  # a million records have a few of these
def _kind(bucket: str, version: str, source: str, name: str) -> tuple[str, str, str | None]:
    """The bucket, the event's name without `s3:`, and what it means for a version, if anything."""
    patterns = {"s3.bucket.name": _BUCKET, "eventVersion": _VERSION, "eventSource": _SOURCE, "eventName": _NAME}
    for (field, pattern), value in zip(patterns.items(), (bucket, version, source, name), strict=True):
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _Wrong(field, value)
    name = name.removeprefix("s3:")
    family, _, how = name.partition(":")
    if family == "ObjectCreated":
        return bucket, name, CREATED
    if family in ("ObjectRemoved", "LifecycleExpiration"):
        return bucket, name, MARKED if how == "DeleteMarkerCreated" else REMOVED
    return bucket, name, None


def _sha256(of_object: Mapping[str, Any]) -> str | None:
    """AWS has no metadata in its events; MinIO and others have."""
    for name in ("userMetadata", "metadata"):
        metadata = of_object.get(name)
        if metadata is not None:
            if not isinstance(metadata, dict):
                raise _Wrong(f"s3.object.{name}", metadata)
            found = sha256_of(metadata)
            if found is not None:
                return found
    return None


def _key(encoded: Any) -> str:
    if not isinstance(encoded, str):
        raise _Wrong("s3.object.key", encoded)
    try:
        key = unquote_plus(encoded, errors="strict")
        size = len(key) if key.isascii() else len(key.encode())  # half a character cannot be encoded
    except UnicodeError:
        raise _Wrong("s3.object.key", encoded) from None
    if not 0 < size <= _MAX_KEY or "\0" in key:  # PostgreSQL's text cannot hold it
        raise _Wrong("s3.object.key", encoded)
    return key


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
