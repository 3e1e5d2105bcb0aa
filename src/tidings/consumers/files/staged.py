"""A record as a row for the merge: classified, and with its SHA-256. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, LiteralString

from tidings.consumers.files.notification import CREATED, Record, stripe
from tidings.consumers.files.paths import SOURCE_DATASET, classify

COLUMNS: Mapping[str, LiteralString] = {
    "stripe": "smallint",
    "kind": 'text collate "C"',
    "bucket": 'text collate "C"',
    "key": 'text collate "C"',
    "version_id": 'text collate "C"',
    "sequencer": 'text collate "C"',
    "etag": 'text collate "C"',
    "size_bytes": "bigint",
    "event_name": "text",
    "event_time": "timestamptz",
    "file_type": "text",
    "atlas": "text",
    "sha256_client": 'text collate "C"',
}
"""Of the staged table. There is an atlas only where one has to be found."""

Row = tuple[Any, ...]


def row(record: Record, sha256: str | None) -> Row:
    """The row of a record. Whether a file needs a SHA-256 is for the merge to say, which knows whether it is new."""
    kind, bucket, key, version_id, sequencer, etag, size, event_name, event_time, _ = record
    file_type, atlas = classify(key)
    named = atlas if kind == CREATED and file_type != SOURCE_DATASET else None
    of_key = stripe(bucket, key)
    return of_key, kind, bucket, key, version_id, sequencer, etag, size, event_name, event_time, file_type, named, sha256
