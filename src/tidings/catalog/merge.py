"""Merge: what a reference has changed since the last commit that both have, put on top of a branch.

Three states decide for each key: the ancestor's, the source's and the target's. Where both sides have changed a key, and not to
the same, the merge is refused. A merge is remembered, so the next one begins where it ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, NamedTuple

from psycopg import AsyncConnection

from tidings.catalog import log, writing
from tidings.catalog.commits import check_branch, said
from tidings.catalog.contents import changed, content_of, contents
from tidings.catalog.errors import conflict
from tidings.catalog.events import Occasion
from tidings.catalog.model import Content, Key, Meta
from tidings.catalog.points import ROOT, Point, Ref, find, lock, on, point
from tidings.catalog.writing import Change, NewCommit
from tidings.db.pool import Pool, transaction
from tidings.events.catalog import CatalogEvent, Reference

OPERATION = "catalog:merge"

# What can be reached from a point, also through merges, down to the commit `floor`: for each line, up to where.
_REACHED: LiteralString = """
    with recursive reached(line, upto) as (
        select p.line, p.upto from unnest(%(lines)s::bigint[], %(upto)s::bigint[]) as p(line, upto) where p.upto > %(floor)s
        union
        select x.line, x.upto from reached r
        join catalog_merges m on m.line = r.line and m.number <= r.upto and m.number > %(floor)s
        join catalog_lines l on l.id = m.from_line
        cross join lateral unnest(array_prepend(l.id, l.lines), array_prepend(m.from_number, l.upto)) as x(line, upto)
        where x.upto > %(floor)s
    )
    select line, max(upto) from reached group by line
"""

_IN_LINE: LiteralString = """
    select c.hash, c.number, c.depth, array_prepend(l.id, l.lines), array_prepend(c.number, l.upto), l.reach
    from catalog_commits c join catalog_lines l on l.id = c.line where c.line = %s and c.number = %s
"""


class KeyResult(NamedTuple):
    """What becomes of one key, and which commits changed it on each side."""

    key: Key
    conflict: bool
    source_commits: Sequence[str]


@dataclass(frozen=True, slots=True)
class Result:
    """What a merge or a transplant did, or would do. `ancestor` is None for a transplant."""

    branch: str
    before: str
    after: str
    ancestor: str | None
    source: Sequence[log.Entry]
    keys: Sequence[KeyResult]
    applied: bool
    events: Sequence[CatalogEvent] = ()

    @property
    def successful(self) -> bool:
        return not any(each.conflict for each in self.keys)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. `individually`: a commit for each commit of the source, not one for all."""

    from_name: str
    from_hash: str | None
    individually: bool = False
    dry_run: bool = False
    conflict_as_result: bool = False
    message: str | None = None


async def merge(pool: Pool, occasion: Occasion, branch: str, expected: str | None, wish: Wish, told: bool = True) -> Result:
    repository = occasion.repository
    async with transaction(pool) as connection:
        target = await locked_target(connection, repository, branch, expected)
        ref = await find(connection, repository, wish.from_name)
        source = ref.head if wish.from_hash is None else await on(connection, repository, ref, wish.from_hash)
        ancestor, reached = await common(connection, target.head, source)
        entries = await log.between(connection, _beyond(source, target.head, reached))
        if ancestor.hash == source.hash:
            return Result(branch, target.head.hash, target.head.hash, ancestor.hash, [], [], False)
        changes, results = await _three_way(connection, ancestor, source, target.head, entries)
        before = target.head.hash
        if any(each.conflict for each in results):
            return refused(Result(branch, before, before, ancestor.hash, entries, results, False), wish.conflict_as_result)
        numbers = await writing.draw(connection, target, len(entries) if wish.individually else 1)
        if wish.individually:
            commits = _replayed(entries, changes, target.head, numbers.commits, occasion, source.hash)
        else:
            commits = [_squashed(changes, target.head, numbers.commits[0], occasion, branch, ref, source, wish, len(entries))]
        events = occasion.merged(Reference(ref.type, ref.name, source.hash), branch, ancestor.hash, commits) if told else []
        if not wish.dry_run:
            line, caller = numbers.line, occasion.caller
            added = await writing.write(connection, repository, target, line, commits, events, OPERATION, caller, source)
            assert added, "the branch is locked"
        applied = not wish.dry_run
        return Result(
            branch,
            before,
            commits[-1].hash if applied else before,
            ancestor.hash,
            entries,
            results,
            applied,
            events if applied else (),
        )


async def locked_target(connection: AsyncConnection[Any], repository: str, branch: str, expected: str | None) -> Ref:
    """The branch that commits are to be added to, which nobody else changes until the transaction ends."""
    target = await lock(connection, repository, branch)
    check_branch(target)
    if expected is not None:
        await on(connection, repository, target, expected)
    return target


def refused(result: Result, as_result: bool) -> Result:
    """A conflict is an answer for who has asked for it so, and an error for everybody else."""
    if as_result:
        return result
    keys = [each.key for each in result.keys if each.conflict]
    raise conflict(f"Key '{key}' was changed on both sides" for key in keys)


async def common(connection: AsyncConnection[Any], target: Point, source: Point) -> tuple[Point, Mapping[int, int]]:
    """The newest commit that both can reach, through parents and merges; and what the target can reach beyond their fork."""
    line, floor = target.fork(source)
    ours, theirs = await _reached(connection, target, floor), await _reached(connection, source, floor)
    for each in ours.keys() & theirs.keys():
        number = min(ours[each], theirs[each])
        if number > floor:
            line, floor = each, number
    if not floor:
        return ROOT, ours
    for known in (target, source):
        if known.number == floor:
            return known, ours
    row = await (await connection.execute(_IN_LINE, [line, floor])).fetchone()
    assert row is not None
    return point(*row), ours


async def _reached(connection: AsyncConnection[Any], start: Point, floor: int) -> dict[int, int]:
    values = {"lines": list(start.lines), "upto": list(start.upto), "floor": floor}
    return dict(await (await connection.execute(_REACHED, values)).fetchall())


def _beyond(source: Point, target: Point, reached: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """The parts of the source's history that the target cannot reach: nothing of what came before their fork."""
    _, fork = target.fork(source)
    parts = [(line, max(reached.get(line, 0), fork), upto) for line, upto in source.limits().items()]
    return [part for part in parts if part[1] < part[2]]


async def _three_way(
    connection: AsyncConnection[Any], ancestor: Point, source: Point, target: Point, entries: Iterable[log.Entry]
) -> tuple[dict[str, tuple[Content | None, Content | None]], list[KeyResult]]:
    """For each key that is to change: what the target has now, and what it gets."""
    keys = await changed(connection, ancestor, source)
    base, ours, theirs = [await contents(connection, each, keys) for each in (ancestor, target, source)]
    made_by: dict[str, list[str]] = {}
    for entry in entries:
        for operation in json.loads(entry.operations):
            made_by.setdefault(Key(operation["key"]["elements"]).text, []).append(entry.hash)
    changes: dict[str, tuple[Content | None, Content | None]] = {}
    results = []
    for key in keys:
        then, here, there = content_of(base, key), content_of(ours, key), content_of(theirs, key)
        if there in (then, here):
            continue
        results.append(KeyResult(Key.stored(key), here != then, made_by.get(key, [])))
        changes[key] = (here, there)
    return changes, results


def _squashed(
    changes: Mapping[str, tuple[Content | None, Content | None]],
    head: Point,
    number: int,
    occasion: Occasion,
    branch: str,
    ref: Ref,
    source: Point,
    wish: Wish,
    count: int,
) -> NewCommit:
    message = wish.message or f"Merged {count} commits from '{ref.name}' at {source.hash} into '{branch}'"
    done = [change for key, (here, there) in changes.items() if (change := step(Key.stored(key), here, there)) is not None]
    return NewCommit.made(number, (head.hash, head.depth), said(Meta(message), occasion), done, source.hash)


def _replayed(
    entries: Sequence[log.Entry],
    changes: Mapping[str, tuple[Content | None, Content | None]],
    head: Point,
    numbers: Sequence[int],
    occasion: Occasion,
    source: str,
) -> list[NewCommit]:
    """Each commit again, as far as it is about keys that are to change; the last one has the merge's second parent."""
    now = {key: here for key, (here, _) in changes.items()}
    commits: list[NewCommit] = []
    parent = (head.hash, head.depth)
    for place, (entry, number) in enumerate(zip(entries, numbers, strict=True), 1):
        done = []
        for key, content in operations_of(entry):
            change = step(key, now[key.text], content) if key.text in now else None
            if change is not None:
                done.append(change)
                now[key.text] = content
        merged = source if place == len(entries) else None
        made = NewCommit.made(number, parent, again(entry, occasion), done, merged)
        commits.append(made)
        parent = (made.hash, made.depth)
    return commits


def step(key: Key, here: Content | None, there: Content | None) -> Change | None:
    """The change that leads from one content of a key to another."""
    if there is not None:
        return None if there == here else Change.stores(key, there)
    return None if here is None else Change.removes(key, here)


def operations_of(entry: log.Entry) -> list[tuple[Key, Content | None]]:
    return [
        (Key(each["key"]["elements"]), Content.of(each["content"]) if each["type"] == "PUT" else None)
        for each in json.loads(entry.operations)
    ]


def again(entry: log.Entry, occasion: Occasion) -> dict[str, Any]:
    """What a commit says when it is made again: who wrote it and when stays, who committed it and when is new."""
    meta: dict[str, Any] = json.loads(entry.meta)
    return {**meta, "committer": occasion.caller.name, "commitTime": occasion.time}
