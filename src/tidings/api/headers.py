"""What the headers of a write say about its object, and what those of a read give back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl

from tidings.access import checksums
from tidings.errors import CallerError
from tidings.store.model import Condition

DEFAULT_TYPE = "binary/octet-stream"
MAX_USER_METADATA = 2048
MAX_TAGS = 10

META = "x-amz-meta-"
STORED = frozenset({"cache-control", "content-disposition", "content-encoding", "content-language", "expires"})
OVERRIDES = {f"response-{name}": name for name in (*STORED, "content-type")}
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
# "Tag restrictions" of the S3 user guide.
_TAG = re.compile(r"[\w\s+\-=.:/@]*")


def metadata(raw_headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers to give back with the object, from the bytes that came: signing collapses their inner spaces."""
    found: dict[str, str] = {}
    for raw_name, raw_value in raw_headers:
        name = raw_name.decode("latin-1").lower()
        if name.startswith(META) or name in STORED:
            value = raw_value.decode("latin-1").strip(" \t")
            found[name] = f"{found[name]},{value}" if name in found else value
    return checked_metadata(found)


def checked_metadata(found: dict[str, str]) -> dict[str, str]:
    user = sum(len(name) - len(META) + len(value) for name, value in found.items() if name.startswith(META))
    if user > MAX_USER_METADATA:
        message = f"Your metadata headers exceed the maximum allowed metadata size, {MAX_USER_METADATA} bytes."
        raise CallerError("MetadataTooLarge", message, Size=str(user), MaxSizeAllowed=str(MAX_USER_METADATA))
    encodings = [word.strip() for word in found.pop("content-encoding", "").split(",")]
    if kept := ", ".join(word for word in encodings if word and word.lower() != "aws-chunked"):
        found["content-encoding"] = kept  # aws-chunked was the way here, not a property of the object
    return found


def tags(headers: Mapping[str, str]) -> dict[str, str]:
    """The tags in x-amz-tagging, which is written like a query."""
    try:
        pairs = parse_qsl(headers.get("x-amz-tagging", ""), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        if not headers.get("x-amz-tagging"):
            return {}
        message = "The header x-amz-tagging shall be encoded as UTF-8 then URLEncoded URL query parameters."
        raise CallerError("InvalidArgument", message, ArgumentName="x-amz-tagging") from None
    return checked_tags(pairs)


def checked_tags(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    if len(pairs) > MAX_TAGS:
        raise CallerError("BadRequest", f"Object tags cannot be greater than {MAX_TAGS}: there are {len(pairs)}.")
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise CallerError("InvalidTag", "Cannot provide multiple Tags with the same key.", TagKey=name[:200])
        if not name or len(name) > 128 or not _TAG.fullmatch(name) or name.startswith("aws:"):
            raise CallerError("InvalidTag", "The TagKey you have provided is invalid.", TagKey=name[:200])
        if len(value) > 256 or not _TAG.fullmatch(value):
            raise CallerError("InvalidTag", "The TagValue you have provided is invalid.", TagKey=name, TagValue=value[:300])
        found[name] = value
    return found


def write_condition(headers: Mapping[str, str]) -> Condition:
    """If-None-Match: * and If-Match, which is all that S3 knows for writes."""
    absent, match = headers.get("if-none-match"), headers.get("if-match")
    if absent is not None and (absent != "*" or match is not None):
        raise CallerError("NotImplemented", "If-None-Match on a write is only implemented as '*', and without If-Match.")
    if match is None:
        return Condition(absent=absent is not None)
    return Condition(etags=etags(match))


def etags(value: str) -> list[str]:
    return [tag.strip().removeprefix("W/").strip('"') for tag in value.split(",")]


def checksum_headers(metadata: Mapping[str, str]) -> dict[str, str]:
    """The checksums among an object's metadata; of a multipart object they may be of its parts' checksums."""
    found = {name: value for name, value in metadata.items() if name.startswith(checksums.PREFIX)}
    if not found:
        return {}
    composite = any("-" in value for value in found.values())
    return {**found, "x-amz-checksum-type": "COMPOSITE" if composite else "FULL_OBJECT"}


def overridden(query: Mapping[str, str]) -> dict[str, str]:
    """The headers of the answer that the query of a read asks for."""
    found = {OVERRIDES[name]: value for name, value in query.items() if name in OVERRIDES}
    for name, value in found.items():
        if not _HEADER_VALUE.fullmatch(value):
            message = f"response-{name} is {value[:100]!r}, which a header cannot have."
            raise CallerError("InvalidArgument", message, ArgumentName=f"response-{name}")
    return found


def version_id(value: str | None) -> str | None:
    """The version that a query names, if it does."""
    if value is not None and (not value or len(value) > 200 or "\0" in value):
        raise CallerError(
            "InvalidArgument", "Invalid version id specified", ArgumentName="versionId", ArgumentValue=value[:200]
        )
    return value


def version_header(version_id: str | None) -> dict[str, str]:
    return {} if version_id is None else {"x-amz-version-id": version_id}
