"""S3's buckets and versions in memory, written from S3's documentation: what the store must look like after each step.

It shares no code with the store. Version ids come from the server's answers, for a client cannot foresee them; that each
is new is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import md5
from typing import Any, NamedTuple
from urllib.parse import quote_plus

EMPTY = "d41d8cd98f00b204e9800998ecf8427e"


class Asked(NamedTuple):
    """The request that makes the next changes: its id, and between which times it was under way."""

    id: str
    began: datetime
    ended: datetime


@dataclass(eq=False)
class Version:
    """`read` says that it was read and compared since it came to its place, `modified` when it was, once a listing told."""

    id: str
    marker: bool = False
    body: bytes = b""
    etag: str = ""
    content_type: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    read: bool = False
    modified: str | None = None

    @property
    def stored_metadata(self) -> dict[str, str]:
        return {f"x-amz-meta-{name}": value for name, value in self.metadata.items()}


@dataclass
class Model:
    """`versions` has the newest first; `changes` is what must have been appended, in order for each key.

    `caller` are the values that all changes have in common, `ids` those of the buckets; `asked` is set before each step.
    """

    caller: dict[str, Any]
    asked: Asked | None = None
    ids: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    versions: dict[tuple[str, str], list[Version]] = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)

    def of(self, bucket: str, key: str) -> list[Version]:
        return self.versions.get((bucket, key), [])

    def all(self, bucket: str) -> Iterator[tuple[str, Version]]:
        """As a bucket is listed: keys in the order of their bytes, of each the newest version first."""
        for where, key in sorted(self.versions, key=lambda each: each[1].encode()):
            if where == bucket:
                yield from ((key, version) for version in self.versions[bucket, key])

    def current(self, bucket: str, key: str) -> Version | None:
        """The object that a reader sees."""
        found = self.of(bucket, key)
        return found[0] if found and not found[0].marker else None

    def _add(self, bucket: str, key: str, version: Version, answered_id: str | None) -> Version | None:
        """Make a version the newest. Returns the null version that had to go for it."""
        state = self.states[bucket]
        there = self.versions.setdefault((bucket, key), [])
        if there:
            there[0].read = False  # it goes behind the new one
        if state == "enabled":
            assert answered_id not in (None, "null")
            assert all(answered_id != each.id for each in there)
            version.id = str(answered_id)
            there.insert(0, version)
            return None
        assert answered_id == (None if state == "unversioned" else "null")
        version.id = "null"
        gone = next((each for each in there if each.id == "null"), None)
        there[:] = [version, *(each for each in there if each.id != "null")]
        return gone

    def _changed(self, bucket: str, key: str, event: str, operation: str, version_id: str, **values: Any) -> None:
        state = self.states[bucket]
        blank = dict.fromkeys(("size", "etag", "old_size", "content_type", "metadata", "tags", "copy_source", "replaced"))
        shown = None if state == "unversioned" else version_id
        known = {"bucket": bucket, "key": key, "event": event, "operation": operation, "version_id": shown, "versioning": state}
        encoded = quote_plus(key, safe="/")
        known |= {"bucket_id": self.ids[bucket], "encoded": None if encoded == key else encoded}
        self.changes.append(blank | self.caller | known | {"asked": self.asked} | values)

    def put(
        self,
        bucket: str,
        key: str,
        version: Version,
        answered_id: str | None,
        operation: str,
        event: str = "ObjectCreated:Put",
        source: str | None = None,
    ) -> None:
        self._add(bucket, key, version, answered_id)
        self._changed(
            bucket,
            key,
            event,
            operation,
            version.id,
            size=len(version.body),
            etag=version.etag,
            content_type=version.content_type or None,
            metadata=version.stored_metadata,
            tags=dict(version.tags),
            copy_source=source,
        )

    def delete(self, bucket: str, key: str, answered_id: str | None) -> None:
        """Without a version: gone where there never were versions, otherwise covered by a delete marker."""
        if self.states[bucket] == "unversioned":
            assert answered_id is None
            if found := self.of(bucket, key):
                self._remove(bucket, key, found[0], "delete last committed")
            return
        gone = self._add(bucket, key, Version("", marker=True), answered_id)
        values: dict[str, Any] = {"etag": EMPTY}
        if gone is not None:
            values |= {"replaced": "marker" if gone.marker else "version", "old_size": len(gone.body)}
            values |= {"content_type": gone.content_type or None, "metadata": gone.stored_metadata, "tags": dict(gone.tags)}
        self._changed(
            bucket, key, "ObjectRemoved:DeleteMarkerCreated", "delete last committed", self.of(bucket, key)[0].id, **values
        )

    def delete_version(self, bucket: str, key: str, version_id: str) -> Version | None:
        found = next((each for each in self.of(bucket, key) if each.id == version_id), None)
        if found is not None:
            self._remove(bucket, key, found, "delete exact version")
        return found

    def move(self, source: tuple[str, str], target: tuple[str, str], answered_id: str | None) -> None:
        moved = self.versions[source][0]
        copy = Version("", False, moved.body, moved.etag, moved.content_type, dict(moved.metadata), dict(moved.tags))
        name = f"{source[0]}/{source[1]}"
        self.put(*target, copy, answered_id, "finish move", "ObjectCreated:Copy", name)
        self._remove(*source, moved, "finish move", name)

    def _remove(self, bucket: str, key: str, version: Version, operation: str, source: str | None = None) -> None:
        there = self.versions[bucket, key]
        newest = there[0]
        there.remove(version)
        if not there:
            del self.versions[bucket, key]
        elif version is newest:
            there[0].read = False  # it takes the place of the newest
        self._changed(
            bucket,
            key,
            "ObjectRemoved:Delete",
            operation,
            version.id,
            old_size=len(version.body),
            content_type=version.content_type or None,
            metadata=version.stored_metadata,
            tags=dict(version.tags),
            copy_source=source,
        )


def md5_hex(body: bytes) -> str:
    return md5(body, usedforsecurity=False).hexdigest()
