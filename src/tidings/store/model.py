"""What the store's operations take and give: values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from tidings.rules.model import Eventing

EMPTY_ETAG = "d41d8cd98f00b204e9800998ecf8427e"


class Segment(NamedTuple):
    """A blob, and how many bytes of the object it holds: all of them, or those of one part."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Content:
    """What is put under a key: the bytes of a small body, or the blobs that hold a larger one.

    `content_type` is empty where the request had none. `metadata` are the headers that come back with the object, by their
    names in lower case. `commit_before` is when blobs without a row may be swept: later than that they must not get one.
    """

    size: int
    etag: str
    content_type: str
    metadata: Mapping[str, str]
    body: bytes | None = None
    segments: Sequence[Segment] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    commit_before: datetime | None = None


class Origin(NamedTuple):
    """Where a change comes from, as its event will tell, and what is known of who wants to hear of it."""

    principal: str
    source_ip: str
    request_id: str
    request_at: datetime | None = None
    eventing: Eventing = Eventing()
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """One key of one bucket, as a project names it."""

    project: str
    bucket: str
    key: str


class Version(NamedTuple):
    """An object's version as it is stored. `body` is None for one in blobs, and where it was not asked for."""

    version_id: str
    delete_marker: bool
    size: int
    etag: str
    content_type: str
    metadata: dict[str, str]
    tags: dict[str, str]
    modified_at: datetime
    blobs: list[tuple[str, int]] | None
    versioning: str
    body: bytes | None = None

    @property
    def segments(self) -> list[Segment]:
        return [Segment(*each) for each in self.blobs or ()]

    @property
    def shown_id(self) -> str | None:
        """The version id as callers see it: none in a bucket that was never versioned."""
        return None if self.versioning == "unversioned" else self.version_id


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold for a write: that there is no object, or that the object has one of these eTags."""

    absent: bool = False
    etags: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """What an operation did. `unused` are blobs that no row refers to any more.

    `rules` are those that want its changes, for each change that was kept: empty for none, else as the change has them.
    """

    version_id: str | None = None
    delete_marker: bool = False
    modified_at: datetime | None = None
    unused: Sequence[str] = ()
    rules: tuple[str, ...] = ()
