"""Which events a call has, by the table of seed 003 (section 2.1.4), in their order.

A call that adds commits tells first what was called (merge, transplant), then of each commit, and after each commit of the keys
that it had the last word on: what a later commit of the same call changes again is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tidings.catalog.model import Caller
from tidings.catalog.writing import NewCommit
from tidings.events import catalog as said
from tidings.events.catalog import CatalogEvent, Reference, as_text


@dataclass(frozen=True, slots=True)
class Occasion:
    """One call: what all of its events have in common."""

    repository: str
    sent_by: str
    caller: Caller
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def time(self) -> str:
        return as_text(self.at)

    def created(self, reference: Reference) -> list[CatalogEvent]:
        return [said.ReferenceCreated(**self._common(), reference=reference, hash_after=reference.hash)]

    def updated(self, reference: Reference, before: str) -> list[CatalogEvent]:
        """Nothing has happened to a reference that was assigned to where it is."""
        if reference.hash == before:
            return []
        return [said.ReferenceUpdated(**self._common(), reference=reference, hash_before=before, hash_after=reference.hash)]

    def deleted(self, reference: Reference) -> list[CatalogEvent]:
        return [said.ReferenceDeleted(**self._common(), reference=reference, hash_before=reference.hash)]

    def committed(self, branch: str, commits: Sequence[NewCommit]) -> list[CatalogEvent]:
        return list(self._commits(branch, commits))

    def merged(self, source: Reference, branch: str, ancestor: str, commits: Sequence[NewCommit]) -> list[CatalogEvent]:
        event = said.Merge(
            **self._common(),
            **_target(source, branch, commits),
            source_hash=source.hash,
            common_ancestor_hash=ancestor,
        )
        return [event, *self._commits(branch, commits)]

    def transplanted(self, source: Reference, branch: str, commits: Sequence[NewCommit]) -> list[CatalogEvent]:
        event = said.Transplant(**self._common(), **_target(source, branch, commits), commit_count=len(commits))
        return [event, *self._commits(branch, commits)]

    def _commits(self, branch: str, commits: Sequence[NewCommit]) -> Iterator[CatalogEvent]:
        last = {change.key: commit.number for commit in commits for change in commit.changes}
        for commit in commits:
            reference = Reference("BRANCH", branch, commit.hash)
            yield said.Commit(
                **self._common(),
                reference=reference,
                hash_before=commit.parents[0],
                hash_after=commit.hash,
                commit_meta=_meta(commit),
            )
            for change in commit.changes:
                if last[change.key] != commit.number:
                    continue
                about: dict[str, Any] = {
                    **self._common(),
                    "reference": reference,
                    "hash": commit.hash,
                    "commit_creation_timestamp": commit.time,
                    "content_key": tuple(change.key),
                    "content_type": change.type,
                }
                stored = change.content
                yield said.ContentRemoved(**about) if stored is None else said.ContentStored(**about, content=stored.values)

    def _common(self) -> dict[str, Any]:
        return {
            "id": _random_id(),
            "at": self.at,
            "sent_by": self.sent_by,
            "created_by": self.caller.name,
            "roles": self.caller.roles,
            "repository": self.repository,
        }


def _random_id() -> str:
    """A UUID of version 4, in a quarter of the time that the class for it takes."""
    bits = int.from_bytes(os.urandom(16))
    text = f"{bits & ~(0xF << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _target(source: Reference, branch: str, commits: Sequence[NewCommit]) -> dict[str, Any]:
    before, after = commits[0].parents[0], commits[-1].hash
    return {
        "source_reference": source,
        "target_reference": Reference("BRANCH", branch, after),
        "hash_before": before,
        "hash_after": after,
    }


def _meta(commit: NewCommit) -> dict[str, Any]:
    meta = commit.meta
    return {
        "hash": commit.hash,
        "committer": meta["committer"],
        "authors": [meta["author"]] if meta["author"] else [],
        "allSignedOffBy": [meta["signedOffBy"]] if meta["signedOffBy"] else [],
        "message": meta["message"],
        "commitTime": meta["commitTime"],
        "authorTime": meta["authorTime"],
        "allProperties": {name: [value] for name, value in meta["properties"].items()},
        "parentCommitHashes": list(commit.parents),
    }
