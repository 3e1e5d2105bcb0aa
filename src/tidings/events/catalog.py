"""What a catalog says when it has changed: the eight events of seed 003, as values and as the JSON that messages carry."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, ClassVar, Literal

PREFIX = "nessie:"
"""Before the type of an event, where a change has its name."""
SPEC_VERSION = "1.0.0"
"""Of what events say: the first that is shipped."""
API_VERSION = "1"
"""Of Nessie's API, which the catalog serves."""
ReferenceType = Literal["BRANCH", "TAG"]
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_FOLDERS = {"BRANCH": "/refs/heads/", "TAG": "/refs/tags/"}


@dataclass(frozen=True, slots=True)
class Reference:
    """A named reference, and the hash that it has after the event (before it, if it was deleted)."""

    type: ReferenceType
    name: str
    hash: str

    @property
    def full_name(self) -> str:
        return _FOLDERS[self.type] + self.name

    def to_json(self) -> dict[str, str]:
        return {"type": self.type, "name": self.name, "fullName": self.full_name, "hash": self.hash}


@dataclass(frozen=True, kw_only=True)
class CatalogEvent(ABC):
    """What every event says."""

    type: ClassVar[str]

    id: str
    at: datetime
    sent_by: str
    """The instance of the catalog."""
    created_by: str
    """Who called; empty if that is not known."""
    roles: tuple[str, ...] = ()
    """Of the caller: for filters, not said in messages."""
    repository: str

    @property
    @abstractmethod
    def about(self) -> Reference:
        """The reference that it happened to: the target, where there are two."""

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "type": self.type,
            "id": self.id,
            "repositoryId": self.repository,
            "eventCreationTimestamp": as_text(self.at),
            "eventInitiator": self.created_by,
            "sentBy": self.sent_by,
        }
        kind: Any = self.__class__  # mypy takes the class for unhashable
        for name, camel in _own(kind):
            said[camel] = _plain(getattr(self, name))
        return said

    def to_text(self) -> str:
        """As messages carry it: JSON without spaces, in the order of the fields."""
        return _encode(self.to_json())


@dataclass(frozen=True, kw_only=True)
class _OnReference(CatalogEvent):
    reference: Reference

    @property
    def about(self) -> Reference:
        return self.reference


@dataclass(frozen=True, kw_only=True)
class _OnTarget(CatalogEvent):
    source_reference: Reference
    target_reference: Reference
    hash_before: str
    hash_after: str

    @property
    def about(self) -> Reference:
        return self.target_reference


@dataclass(frozen=True, kw_only=True)
class ReferenceCreated(_OnReference):
    type = "REFERENCE_CREATED"
    hash_after: str


@dataclass(frozen=True, kw_only=True)
class ReferenceUpdated(_OnReference):
    type = "REFERENCE_UPDATED"
    hash_before: str
    hash_after: str


@dataclass(frozen=True, kw_only=True)
class ReferenceDeleted(_OnReference):
    type = "REFERENCE_DELETED"
    hash_before: str


@dataclass(frozen=True, kw_only=True)
class Commit(_OnReference):
    type = "COMMIT"
    hash_before: str
    hash_after: str
    commit_meta: Mapping[str, Any]
    """`hash, committer, authors, allSignedOffBy, message, commitTime, authorTime, allProperties, parentCommitHashes`."""


@dataclass(frozen=True, kw_only=True)
class Merge(_OnTarget):
    type = "MERGE"
    source_hash: str
    common_ancestor_hash: str


@dataclass(frozen=True, kw_only=True)
class Transplant(_OnTarget):
    type = "TRANSPLANT"
    commit_count: int


@dataclass(frozen=True, kw_only=True)
class _OnContent(_OnReference):
    hash: str
    """Of the commit that did it."""
    commit_creation_timestamp: str
    content_key: tuple[str, ...]
    content_type: str


@dataclass(frozen=True, kw_only=True)
class ContentStored(_OnContent):
    type = "CONTENT_STORED"
    content: Mapping[str, Any]
    """With `type` and `id`."""


@dataclass(frozen=True, kw_only=True)
class ContentRemoved(_OnContent):
    type = "CONTENT_REMOVED"


TYPES: tuple[type[CatalogEvent], ...] = (
    ReferenceCreated,
    ReferenceUpdated,
    ReferenceDeleted,
    Commit,
    Merge,
    Transplant,
    ContentStored,
    ContentRemoved,
)


@lru_cache(maxsize=16)  # the events of a call have the same time
def as_text(moment: datetime) -> str:
    """As ISO 8601 in UTC, with microseconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _plain(value: Any) -> Any:
    if isinstance(value, str | dict):
        return value
    if isinstance(value, Reference):
        return value.to_json()
    if isinstance(value, tuple):  # a content's key
        return {"elements": list(value)}
    return dict(value) if isinstance(value, Mapping) else value


@cache
def _own(kind: type[CatalogEvent]) -> tuple[tuple[str, str], ...]:
    """What events of a type say beyond what all say: each name, here and in JSON."""
    common = {field.name for field in fields(CatalogEvent)}
    return tuple((field.name, _camel(field.name)) for field in fields(kind) if field.name not in common)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
