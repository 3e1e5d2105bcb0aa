"""Conditional and partial reads: If-Match and its siblings, and Range."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tidings.api.headers import etags
from tidings.errors import CallerError
from tidings.store.model import Version
from tidings.store.objects import precondition_failed

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


def unmodified(headers: Mapping[str, str], version: Version) -> bool:
    """Whether the answer is 304; raises PreconditionFailed. The order of the four is from RFC 9110, section 13.2.2."""
    modified_at = version.modified_at.replace(microsecond=0)  # as precise as the header that it is compared with
    if (tags := headers.get("if-match")) is not None:
        _require(_names(tags, version.etag), "If-Match")
    elif (moment := _moment(headers, "if-unmodified-since")) is not None:
        _require(modified_at <= moment, "If-Unmodified-Since")
    if (tags := headers.get("if-none-match")) is not None:
        return _names(tags, version.etag)
    moment = _moment(headers, "if-modified-since")
    return moment is not None and modified_at <= moment


def _require(holds: bool, condition: str) -> None:
    if not holds:
        raise precondition_failed(Condition=condition)


def _names(tags: str, etag: str) -> bool:
    named = etags(tags)
    return etag in named or "*" in named


def _moment(headers: Mapping[str, str], name: str) -> datetime | None:
    """The header's date; None where it is missing or unreadable, which RFC 9110 treats alike."""
    try:
        moment = parsedate_to_datetime(headers[name])
    except (KeyError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _still(headers: Mapping[str, str], version: Version) -> bool:
    """Whether the version is the one that If-Range means; a weak entity tag means none."""
    if (meant := headers.get("if-range")) is None:
        return True
    if (moment := _moment(headers, "if-range")) is not None:
        return version.modified_at.replace(microsecond=0) == moment
    return meant.strip() == f'"{version.etag}"'


def byte_range(headers: Mapping[str, str], version: Version) -> tuple[int, int] | None:
    """(start, end) of the bytes wanted, `end` not included; None for all of them.

    What is not one range of bytes is ignored, as S3 does and RFC 9110 allows; so is a range of what If-Range says it is not.
    """
    value, size = headers.get("range"), version.size
    match = _RANGE.fullmatch(value) if value is not None else None
    if match is None or not (match[1] or match[2]) or not _still(headers, version):
        return None
    if match[1]:
        start, end = int(match[1]), min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < start:
            return None
    else:
        start, end = max(size - int(match[2]), 0), size
    if start >= end:
        raise CallerError(
            "InvalidRange",
            "The requested range is not satisfiable.",
            RangeRequested=str(value),
            ActualObjectSize=str(size),
        )
    return start, end
