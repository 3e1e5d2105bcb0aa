"""The JSON of Nessie's REST API, version 1: what bodies say, and what answers look like.

pynessie refuses an answer with a member that it does not know, so none has more than version 1 had.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tidings.api.json_document import Document
from tidings.catalog.diff import Difference
from tidings.catalog.errors import bad_request
from tidings.catalog.log import Entry
from tidings.catalog.merge import Result, Wish
from tidings.catalog.model import Content, Delete, Key, Meta, Operation, Put, Unchanged, check_hash
from tidings.catalog.points import Point
from tidings.catalog.references import Shown
from tidings.events.catalog import ReferenceType

MAX_OPERATIONS = 1000


def plain(kind: str, name: str, hash: str) -> dict[str, Any]:
    return {"type": kind, "name": name, "hash": hash}


def reference(shown: Shown, base: Point | None, fork: Entry | None) -> dict[str, Any]:
    """With all that is known of it, if there is a default branch to compare with; at the beginning there is nothing to say."""
    ref = shown.ref
    said = plain(ref.type, ref.name, ref.head.hash)
    if base is None or shown.meta is None:
        return said
    known: dict[str, Any] = {
        "commitMetaOfHEAD": {**json.loads(shown.meta), "hash": ref.head.hash},
        "numTotalCommits": ref.head.depth,
    }
    if ref.head != base:
        common = fork.depth if fork else 0
        known |= {
            "numCommitsAhead": ref.head.depth - common,
            "numCommitsBehind": base.depth - common,
            "commonAncestorHash": fork.hash if fork else None,
        }
    return {**said, "metadata": known}


def page(name: str, values: Sequence[Any], token: str | None) -> dict[str, Any]:
    return {name: values, "hasMore": token is not None, "token": token}


def as_token(key: str | None) -> str | None:
    return None if key is None else base64.urlsafe_b64encode(key.encode()).decode()


def token(text: str | None) -> str:
    try:
        found = base64.urlsafe_b64decode((text or "").encode("ascii")).decode()
    except (UnicodeError, binascii.Error):
        found = "\0"
    if "\0" in found:
        raise bad_request(f"{(text or '')[:100]!r} is not a token of a page: send the one that the page before came with.")
    return found


def log_entry(entry: Entry, everything: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"commitMeta": entry.commit_meta, "parentCommitHash": entry.parents[0]}
    return {**said, "operations": json.loads(entry.operations)} if everything else said


def filtered(entry: Entry) -> dict[str, str]:
    """What a filter can ask of a commit."""
    return {name: value for name, value in entry.commit_meta.items() if isinstance(value, str)}


def entry_filtered(key: Key, content_type: str) -> dict[str, str]:
    return {"namespace": ".".join(key[:-1]), "contentType": content_type, "key": ".".join(key), "name": key[-1]}


def difference(found: Difference) -> dict[str, Any]:
    def shown(content: Content | None) -> dict[str, Any] | None:
        return None if content is None else content.values

    return {"key": found.key.to_json(), "from": shown(found.one), "to": shown(found.other)}


def merged(result: Result, expected: str | None) -> dict[str, Any]:
    return {
        "targetBranch": result.branch,
        "effectiveTargetHash": result.before,
        "resultantTargetHash": result.after,
        "commonAncestor": result.ancestor,
        "expectedHash": expected,
        "sourceCommits": [log_entry(each, everything=False) for each in result.source],
        "targetCommits": None,
        "details": [
            {
                "key": each.key.to_json(),
                "mergeBehavior": "NORMAL",
                "conflictType": "UNRESOLVABLE" if each.conflict else "NONE",
                "sourceCommits": list(each.source_commits),
                "targetCommits": [],
            }
            for each in result.keys
        ],
        "wasApplied": result.applied,
        "wasSuccessful": result.successful,
    }


def reference_wanted(document: Document) -> tuple[ReferenceType, str, str | None]:
    kind = document.text("type")
    if kind == "BRANCH":
        return "BRANCH", document.text("name"), document.optional_text("hash") or None
    if kind == "TAG":
        return "TAG", document.text("name"), document.optional_text("hash") or None
    raise bad_request(f"A reference is a BRANCH or a TAG, not {kind[:50]!r}.")


def operations(document: Document) -> list[Operation]:
    found = document.objects("operations")
    if not 1 <= len(found) <= MAX_OPERATIONS:
        raise bad_request(f"A commit has 1 to {MAX_OPERATIONS} operations, not {len(found)}.")
    return [_operation(each) for each in found]


def _operation(document: Document) -> Operation:
    kind = document.text("type")
    key = Key.of(document.mapping("key").get("elements"))
    if kind == "PUT":
        content = document.mapping("content")
        Content.of(content, "checked")
        return Put(key, content, document.mapping("expectedContent") or None)
    if kind == "DELETE":
        return Delete(key)
    if kind == "UNCHANGED":
        return Unchanged(key)
    raise bad_request(f"An operation is PUT, DELETE or UNCHANGED, not {kind[:50]!r}.")


def meta(document: Document) -> Meta:
    said = document.part("commitMeta")
    if said.optional_text("committer"):
        raise bad_request("The committer is who makes the call: leave it out of commitMeta, and name the author.")
    author_time = said.optional_text("authorTime") or None
    if author_time is not None:
        try:
            datetime.fromisoformat(author_time)
        except ValueError:
            raise bad_request(f"authorTime cannot be read: {author_time[:100]!r}. Write it as 2026-01-31T12:00:00Z.") from None
    return Meta(
        said.optional_text("message"),
        said.optional_text("author") or None,
        said.optional_text("signedOffBy") or None,
        author_time,
        said.text_by_name("properties"),
    )


def wish(document: Document, individually: bool, message: str | None = None) -> Wish:
    """What a merge or a transplant is to do; `individually` if the caller does not say."""
    modes = {document.optional_text("defaultKeyMergeMode", "NORMAL")}
    modes |= {each.optional_text("mergeBehavior", "NORMAL") for each in document.objects("keyMergeModes")}
    if modes != {"NORMAL"}:
        raise bad_request("Only the merge mode NORMAL is served, which refuses conflicts: leave the others out.")
    hash = document.optional_text("fromHash") or None
    return Wish(
        document.text("fromRefName"),
        None if hash is None else check_hash(hash),
        document.yes("keepIndividualCommits", individually),
        document.yes("dryRun"),
        document.yes("returnConflictAsResult"),
        document.optional_text("message") or message,
    )
