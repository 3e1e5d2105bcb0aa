"""Catalog events for tests: one of each type, and any number of random ones."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from itertools import count
from typing import Any

from hypothesis import strategies as st

from tidings.events import catalog
from tidings.events.catalog import CatalogEvent, Commit, ContentStored, Reference, ReferenceCreated

_numbers = count(1)

MAIN = Reference("BRANCH", "main", "aa")


def commit(**said: Any) -> Commit:
    meta = {"hash": "bb", "committer": "ada", "authors": ["ada"], "message": "first", "allProperties": {"k": "v"}}
    return Commit(**{**_common(), "reference": MAIN, "hash_before": "aa", "hash_after": "bb", "commit_meta": meta, **said})


def stored(*key: str, **said: Any) -> ContentStored:
    own = {"reference": MAIN, "hash": "bb", "commit_creation_timestamp": "2026-01-01T00:00:00Z", "content_key": key}
    content = {"type": "ICEBERG_TABLE", "id": "1", "metadataLocation": "s3://b/k", "nested": {"list": [1]}}
    return ContentStored(**{**_common(), **own, "content_type": "ICEBERG_TABLE", "content": content, **said})


def created(**said: Any) -> ReferenceCreated:
    return ReferenceCreated(**{**_common(), "reference": MAIN, "hash_after": "aa", **said})


def _common() -> dict[str, Any]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return {"id": f"event-{next(_numbers)}", "at": at, "sent_by": "here", "created_by": "ada", "repository": "r"}


# Few values of each, so that filters often match.
words = st.sampled_from(["", "main", "dev", "sales", "eu", "t", "sales.eu", "ada", "é\n'\"\\"])
references = st.builds(Reference, st.sampled_from(["BRANCH", "TAG"]), words, words)
metas = st.fixed_dictionaries(
    {},
    optional={
        "message": words,
        "committer": words,
        "authors": st.lists(words, max_size=2),
        "hash": words,
        "allProperties": st.dictionaries(words, words, max_size=2),
    },
)
contents = st.fixed_dictionaries({"type": words}, optional={"id": words, "elements": st.lists(words, max_size=2)})
_FIELDS = {
    "id": words,
    "at": st.just(datetime(2026, 1, 1, tzinfo=UTC)),
    "sent_by": words,
    "created_by": words,
    "roles": st.lists(words, max_size=3).map(tuple),
    "repository": words,
    "reference": references,
    "source_reference": references,
    "target_reference": references,
    "hash_before": words,
    "hash_after": words,
    "commit_meta": metas,
    "source_hash": words,
    "common_ancestor_hash": words,
    "commit_count": st.integers(0, 5),
    "hash": words,
    "commit_creation_timestamp": words,
    "content_key": st.lists(words, min_size=1, max_size=4).map(tuple),
    "content_type": words,
    "content": contents,
}


def _of(kind: type[CatalogEvent]) -> st.SearchStrategy[CatalogEvent]:
    return st.builds(kind, **{name: _FIELDS[name] for name in (field.name for field in fields(kind))})


events: st.SearchStrategy[CatalogEvent] = st.one_of([_of(kind) for kind in catalog.TYPES])
"""Random events of all types."""


def golden() -> dict[str, CatalogEvent]:
    """One of each type, with the same words every time."""
    common: dict[str, Any] = {
        "id": "01a1de8a-9d29-7d48-8214-9ba1bea0db51",
        "at": datetime(2026, 1, 17, 10, 30, 0, 123456, tzinfo=UTC),
        "sent_by": "tidings@catalog-1",
        "created_by": "AKIAIOSFODNN7EXAMPLE",
        "repository": "50adea63-48b7-420e-b549-643fd90a5189",
    }
    before, after = "11" * 32, "22" * 32
    main, dev, tag = Reference("BRANCH", "main", after), Reference("BRANCH", "dev", "33" * 32), Reference("TAG", "v1", after)
    moved = {"hash_before": before, "hash_after": after}
    time = "2026-01-17T10:30:00.123000Z"
    meta = {
        "hash": after,
        "committer": "AKIAIOSFODNN7EXAMPLE",
        "authors": ["Ada"],
        "allSignedOffBy": [],
        "message": "nightly load",
        "commitTime": time,
        "authorTime": time,
        "allProperties": {"job": "load-7"},
        "parentCommitHashes": [before],
    }
    content = {"type": "ICEBERG_TABLE", "id": "7c9d", "metadataLocation": "s3://warehouse/orders/v2.json", "snapshotId": 2}
    on_content = {"hash": after, "commit_creation_timestamp": time, "content_key": ("sales", "eu", "orders")}
    table = {**on_content, "content_type": "ICEBERG_TABLE"}
    merged = {"source_reference": dev, "target_reference": main, **moved}
    return {
        "reference-created": ReferenceCreated(**common, reference=tag, hash_after=after),
        "reference-updated": catalog.ReferenceUpdated(**common, reference=main, **moved),
        "reference-deleted": catalog.ReferenceDeleted(**common, reference=tag, hash_before=after),
        "commit": Commit(**common, reference=main, **moved, commit_meta=meta),
        "merge": catalog.Merge(**common, **merged, source_hash=dev.hash, common_ancestor_hash="44" * 32),
        "transplant": catalog.Transplant(**common, **merged, commit_count=2),
        "content-stored": ContentStored(**common, reference=main, **table, content=content),
        "content-removed": catalog.ContentRemoved(**common, reference=main, **table),
    }
