"""Adds commits to a branch: one statement, which does nothing unless the branch is still where it was when they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, LiteralString, NamedTuple

from psycopg import AsyncConnection

from tidings.catalog import appending, joined
from tidings.catalog.contents import LISTED, places
from tidings.catalog.hashes import commit_hash
from tidings.catalog.model import Caller, Content, Key, compact
from tidings.catalog.points import MOST_LINES, Point, Ref
from tidings.events.catalog import CatalogEvent


class Change(NamedTuple):
    """What a commit does to a key: stores a content, or removes what was there (whose type and id are still said)."""

    key: Key
    type: str
    id: str
    content: Content | None

    @classmethod
    def stores(cls, key: Key, content: Content) -> Change:
        return cls(key, content.type, content.id, content)

    @classmethod
    def removes(cls, key: Key, content: Content) -> Change:
        return cls(key, content.type, content.id, None)

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"type": "DELETE" if self.content is None else "PUT", "key": self.key.to_json()}
        return said if self.content is None else {**said, "content": self.content.values}


@dataclass(frozen=True, slots=True)
class NewCommit:
    number: int
    hash: str
    depth: int
    parents: tuple[str, ...]
    meta: Mapping[str, Any]
    """As it is stored and hashed: without the hash."""
    changes: Sequence[Change]
    operations: str

    @classmethod
    def made(
        cls, number: int, parent: tuple[str, int], meta: Mapping[str, Any], changes: Sequence[Change], merged: str | None = None
    ) -> NewCommit:
        """A commit on top of `parent`, a hash and a depth; with the hash of what it merges."""
        parents = (parent[0],) if merged is None else (parent[0], merged)
        operations = compact([each.to_json() for each in changes])
        return cls(number, commit_hash(parents, operations, compact(meta)), parent[1] + 1, parents, meta, changes, operations)

    @property
    def time(self) -> str:
        return str(self.meta["commitTime"])


class Numbers(NamedTuple):
    """Drawn for what is to be written: one for each commit, and the line that they go into."""

    commits: Sequence[int]
    line: int


_MOVED: LiteralString = """
    update catalog_references set hash = %(hash)s, commit = %(number)s, line = %(line)s, owned = true
    where repository = %(repository)s and name = %(name)s and type = 'BRANCH'
      and hash = %(hash_before)s and line is not distinct from %(line_before)s and owned = %(owned_before)s
    returning true
"""
"""Also compares the line: a branch that was assigned elsewhere and back does not go on with it."""

_LINE: LiteralString = """
    insert into catalog_lines (id, lines, upto, reach) select %(line)s, %(lines)s, %(upto)s, %(reach)s from r
"""

_COMMITS: LiteralString = """
    insert into catalog_commits (line, number, repository, hash, depth, parents, meta, operations, keys)
    select %(line)s, c.number, %(repository)s, c.hash, c.depth, c.parents, c.meta, c.operations, c.keys
    from r cross join json_to_recordset(%(commits)s::json)
        as c(number bigint, hash text, depth bigint, parents text[], meta text, operations text, keys text[])
"""

_CONTENTS: LiteralString = """
    insert into catalog_contents (line, key, number, type, content_id, content)
    select %(line)s, k.key, k.number, k.type, k.content_id, k.content
    from r cross join json_to_recordset(%(contents)s::json)
        as k(key text, number bigint, type text, content_id text, content text)
"""

_MERGE: LiteralString = """
    insert into catalog_merges (line, number, from_line, from_number)
    select %(line)s, %(number)s, %(from_line)s, %(from_number)s from r
"""

_COPY: LiteralString = f"""
    insert into catalog_contents (line, key, number, type, content_id, content)
    select %(line)s, s.key, s.number, s.type, s.content_id, s.content from ({LISTED}) s
"""

_DRAW: LiteralString = """
    select nextval('catalog_commit_numbers') from generate_series(1, %s) union all select nextval('catalog_line_numbers')
"""


@cache
def _statement(begins: bool, merges: bool, names_objects: bool, tells: bool) -> LiteralString:
    parts: list[LiteralString] = [f"r as ({_MOVED})", f"c as ({_COMMITS})", f"k as ({_CONTENTS})"]
    parts += [f"l as ({_LINE})"] if begins else []
    parts += [f"m as ({_MERGE})"] if merges else []
    parts += [f"o as ({joined.named('r')})"] if names_objects else []
    parts += [f"e as ({appending.appended('r')})"] if tells else []
    return f"with {', '.join(parts)} select from r"


def copies(ref: Ref) -> bool:
    """Whether what is there is to be copied into the branch's next line, which would have too many lines before it."""
    return not ref.owned and ref.head.reach >= MOST_LINES


async def draw(connection: AsyncConnection[Any], ref: Ref, commits: int) -> Numbers:
    rows = [row[0] for row in await (await connection.execute(_DRAW, [commits])).fetchall()]
    return Numbers(rows[:commits], ref.head.line if ref.owned and ref.head.line is not None else rows[-1])


async def write(
    connection: AsyncConnection[Any],
    repository: str,
    ref: Ref,
    line: int,
    commits: Sequence[NewCommit],
    events: Sequence[CatalogEvent],
    operation: str,
    caller: Caller,
    merged: Point | None = None,
) -> bool:
    """Whether they were added to the branch: not if it has moved since `ref` was read. What `copies` needs a transaction."""
    last, head = commits[-1], ref.head
    objects = joined.objects(commits, events)
    merges = merged is not None and merged.line is not None
    copied = copies(ref)
    values = appending.parameters(repository, operation, events, caller) | {
        "name": ref.name,
        "hash": last.hash,
        "number": last.number,
        "line": line,
        "hash_before": head.hash,
        "line_before": head.line,
        "owned_before": ref.owned,
        "commits": compact([_commit_row(each) for each in commits]),
        "contents": compact([row for each in commits for row in _content_rows(each)]),
    }
    if not ref.owned:
        values |= {"lines": list(head.lines), "upto": list(head.upto), "reach": 1 if copied else head.reach + 1}
    if merges and merged is not None:
        values |= {"from_line": merged.line, "from_number": merged.number}
    if objects:
        values["objects"] = compact(objects)
    written = await connection.execute(_statement(not ref.owned, merges, bool(objects), bool(events)), values)
    if written.rowcount and copied:
        await connection.execute(_COPY, {"line": line, "after": "", **places(head)})
    return bool(written.rowcount)


def _commit_row(commit: NewCommit) -> dict[str, Any]:
    return {
        "number": commit.number,
        "hash": commit.hash,
        "depth": commit.depth,
        "parents": commit.parents,
        "meta": compact(commit.meta),
        "operations": commit.operations,
        "keys": [each.key.text for each in commit.changes],
    }


def _content_rows(commit: NewCommit) -> list[dict[str, Any]]:
    return [
        {
            "key": each.key.text,
            "number": commit.number,
            "type": each.type,
            "content_id": each.id,
            "content": None if each.content is None else each.content.text,
        }
        for each in commit.changes
    ]
