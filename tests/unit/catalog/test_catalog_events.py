"""The table of seed 003, section 2.1.4: which operation has which events, with which attributes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tidings.catalog.events import Occasion
from tidings.catalog.model import Caller, Content, Key
from tidings.catalog.writing import Change, NewCommit
from tidings.events.catalog import CatalogEvent, Reference

AT = datetime(2026, 1, 31, 12, 0, 0, 250000, UTC)
OCCASION = Occasion("repository", "here", Caller("ann", ("admin",)), AT)
A, B = Key.of(["n", "a"]), Key.of(["b"])
CONTENT = Content.of({"type": "ICEBERG_TABLE", "id": "i", "metadataLocation": "s3://b/k"})
BEFORE = "0" * 64
DEV = Reference("BRANCH", "dev", "d" * 64)


def commits(*each: list[Change]) -> list[NewCommit]:
    made: list[NewCommit] = []
    parent = (BEFORE, 0)
    meta = {"message": "m", "author": "bob", "committer": "ann", "signedOffBy": None, "properties": {"p": "q"}}
    times = {"commitTime": "2026-01-31T12:00:00.250000Z", "authorTime": "2026-01-30T12:00:00Z"}
    for number, changes in enumerate(each, 1):
        made.append(NewCommit.made(number, parent, meta | times, changes))
        parent = (made[-1].hash, number)
    return made


PUT_A, PUT_B = Change.stores(A, CONTENT), Change.stores(B, CONTENT)
DELETE_A = Change.removes(A, CONTENT)
TWICE = commits([PUT_A, PUT_B], [DELETE_A])
MAIN = Reference("BRANCH", "main", "1" * 64)


@pytest.mark.parametrize(
    ("operation", "types"),
    [
        (OCCASION.created(MAIN), ["REFERENCE_CREATED"]),
        (OCCASION.created(Reference("TAG", "v1", "1" * 64)), ["REFERENCE_CREATED"]),
        (OCCASION.updated(MAIN, BEFORE), ["REFERENCE_UPDATED"]),
        (OCCASION.updated(MAIN, MAIN.hash), []),
        (OCCASION.deleted(MAIN), ["REFERENCE_DELETED"]),
        (OCCASION.committed("main", commits([])), ["COMMIT"]),
        (OCCASION.committed("main", commits([PUT_A])), ["COMMIT", "CONTENT_STORED"]),
        (OCCASION.committed("main", commits([DELETE_A])), ["COMMIT", "CONTENT_REMOVED"]),
        (OCCASION.committed("main", commits([PUT_B, DELETE_A])), ["COMMIT", "CONTENT_STORED", "CONTENT_REMOVED"]),
        (OCCASION.merged(DEV, "main", BEFORE, commits([])), ["MERGE", "COMMIT"]),
        (OCCASION.merged(DEV, "main", BEFORE, commits([PUT_A])), ["MERGE", "COMMIT", "CONTENT_STORED"]),
        # What a later commit of the same call changes again is left out.
        (OCCASION.merged(DEV, "main", BEFORE, TWICE), ["MERGE", "COMMIT", "CONTENT_STORED", "COMMIT", "CONTENT_REMOVED"]),
        (OCCASION.transplanted(DEV, "main", TWICE), ["TRANSPLANT", "COMMIT", "CONTENT_STORED", "COMMIT", "CONTENT_REMOVED"]),
    ],
)
def test_an_operation_has_these_events(operation: list[CatalogEvent], types: list[str]) -> None:
    assert [event.type for event in operation] == types
    assert len({event.id for event in operation}) == len(operation)


def without_id(event: CatalogEvent) -> dict[str, Any]:
    said = event.to_json()
    common = {name: said.pop(name) for name in ("repositoryId", "eventCreationTimestamp", "eventInitiator", "sentBy")}
    assert common == {
        "repositoryId": "repository",
        "eventCreationTimestamp": "2026-01-31T12:00:00.250000Z",
        "eventInitiator": "ann",
        "sentBy": "here",
    }
    assert said.pop("id")
    assert event.roles == ("admin",)
    return said


def test_every_event_has_the_attributes_of_the_table() -> None:
    main = {"type": "BRANCH", "name": "main", "fullName": "/refs/heads/main", "hash": MAIN.hash}
    tag = {"type": "TAG", "name": "v1", "fullName": "/refs/tags/v1", "hash": MAIN.hash}
    (created,) = OCCASION.created(Reference("TAG", "v1", MAIN.hash))
    assert without_id(created) == {"type": "REFERENCE_CREATED", "reference": tag, "hashAfter": MAIN.hash}
    (updated,) = OCCASION.updated(MAIN, BEFORE)
    assert without_id(updated) == {
        "type": "REFERENCE_UPDATED",
        "reference": main,
        "hashBefore": BEFORE,
        "hashAfter": MAIN.hash,
    }
    (deleted,) = OCCASION.deleted(MAIN)
    assert without_id(deleted) == {"type": "REFERENCE_DELETED", "reference": main, "hashBefore": MAIN.hash}


def test_committing_events_have_the_attributes_of_the_table() -> None:
    first, last = TWICE
    source = {"type": "BRANCH", "name": "dev", "fullName": "/refs/heads/dev", "hash": DEV.hash}
    target = {"type": "BRANCH", "name": "main", "fullName": "/refs/heads/main", "hash": last.hash}
    both = {"sourceReference": source, "targetReference": target, "hashBefore": BEFORE, "hashAfter": last.hash}
    merge, commit, stored, _, removed = OCCASION.merged(DEV, "main", "e" * 64, TWICE)
    assert without_id(merge) == {"type": "MERGE", **both, "sourceHash": DEV.hash, "commonAncestorHash": "e" * 64}
    assert without_id(OCCASION.transplanted(DEV, "main", TWICE)[0]) == {"type": "TRANSPLANT", **both, "commitCount": 2}
    at_first = {**target, "hash": first.hash}
    assert without_id(commit) == {
        "type": "COMMIT",
        "reference": at_first,
        "hashBefore": BEFORE,
        "hashAfter": first.hash,
        "commitMeta": {
            "hash": first.hash,
            "committer": "ann",
            "authors": ["bob"],
            "allSignedOffBy": [],
            "message": "m",
            "commitTime": "2026-01-31T12:00:00.250000Z",
            "authorTime": "2026-01-30T12:00:00Z",
            "allProperties": {"p": ["q"]},
            "parentCommitHashes": [BEFORE],
        },
    }
    about = {"commitCreationTimestamp": "2026-01-31T12:00:00.250000Z", "contentType": "ICEBERG_TABLE"}
    assert without_id(stored) == {
        "type": "CONTENT_STORED",
        "reference": at_first,
        "hash": first.hash,
        "contentKey": {"elements": ["b"]},
        "content": CONTENT.values,
        **about,
    }
    assert without_id(removed) == {
        "type": "CONTENT_REMOVED",
        "reference": target,
        "hash": last.hash,
        "contentKey": {"elements": ["n", "a"]},
        **about,
    }
