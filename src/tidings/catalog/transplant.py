"""Transplant: some commits of a reference, made again on top of a branch.

A commit fits if every key of it has in the target what it had before that commit, or already what it gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, LiteralString

from psycopg import AsyncConnection

from tidings.catalog import limits, writing
from tidings.catalog.commits import said
from tidings.catalog.contents import content_of, contents
from tidings.catalog.errors import bad_request, no_commit
from tidings.catalog.events import Occasion
from tidings.catalog.log import COLUMNS, Entry
from tidings.catalog.merge import KeyResult, Result, Wish, again, locked_target, operations_of, refused, step
from tidings.catalog.model import Content, Key, Meta
from tidings.catalog.points import Ref, at, find
from tidings.catalog.writing import Change, NewCommit
from tidings.db.pool import Pool, transaction
from tidings.events.catalog import Reference

OPERATION = "catalog:transplant"
MOST = 1000

_NAMED: LiteralString = "catalog_commits c where c.repository = %s and c.hash = any(%s)"

Steps = list[tuple[Entry, list[Change]]]


async def transplant(
    pool: Pool, occasion: Occasion, branch: str, expected: str | None, hashes: Sequence[str], wish: Wish, told: bool = True
) -> Result:
    if not 1 <= len(hashes) <= MOST:
        raise bad_request(f"hashesToTransplant has {len(hashes)} hashes: name 1 to {MOST} commits.")
    repository = occasion.repository
    async with transaction(pool) as connection:
        target = await locked_target(connection, repository, branch, expected)
        ref = await find(connection, repository, wish.from_name)
        entries = await _wanted(connection, repository, ref, hashes)
        steps, conflicts = await _steps(connection, repository, target, entries)
        before = target.head.hash
        results = _results(entries, conflicts)
        if conflicts:
            return refused(Result(branch, before, before, None, entries, results, False), wish.conflict_as_result)
        numbers = await writing.draw(connection, target, len(steps) if wish.individually else 1)
        commits = _made(steps, target, numbers.commits, occasion, wish, ref)
        source = Reference(ref.type, ref.name, ref.head.hash)
        events = occasion.transplanted(source, branch, commits) if told else []
        if wish.dry_run:
            return Result(branch, before, before, None, entries, results, False)
        caller = occasion.caller
        added = await writing.write(connection, repository, target, numbers.line, commits, events, OPERATION, caller)
        assert added, "the branch is locked"
        return Result(branch, before, commits[-1].hash, None, entries, results, True, events)


async def _wanted(connection: AsyncConnection[Any], repository: str, ref: Ref, hashes: Sequence[str]) -> list[Entry]:
    """The commits, in the order in which they were made: they must be named in it."""
    values = [repository, list(hashes)]
    await limits.check_commits(connection, _NAMED, values)
    rows = await (await connection.execute(f"select {COLUMNS} from {_NAMED}", values)).fetchall()
    known = {entry.hash: entry for entry in (Entry(*row) for row in rows)}
    there = ref.head.limits()
    for hash in hashes:
        if hash not in known or known[hash].number > there.get(known[hash].line, 0):
            raise no_commit(hash, ref.name)
    entries = [known[hash] for hash in hashes]
    if any(one.number >= next_.number for one, next_ in pairwise(entries)):
        raise bad_request("hashesToTransplant must be in the order in which the commits were made, each of them once.")
    return entries


async def _steps(
    connection: AsyncConnection[Any], repository: str, target: Ref, entries: Sequence[Entry]
) -> tuple[Steps, dict[str, bool]]:
    """What each commit does to the target, and the keys that it cannot do it to."""
    keys = {key.text for entry in entries for key, _ in operations_of(entry)}
    there = await contents(connection, target.head, keys)
    now: dict[str, Content | None] = {key: content_of(there, key) for key in keys}
    steps: Steps = []
    conflicts: dict[str, bool] = {}
    for entry in entries:
        operations = operations_of(entry)
        before = await contents(
            connection, await at(connection, repository, entry.parents[0]), [key.text for key, _ in operations]
        )
        done = []
        for key, content in operations:
            if now[key.text] not in (content_of(before, key.text), content):
                conflicts[key.text] = True
            change = step(key, now[key.text], content)
            if change is not None:
                done.append(change)
            now[key.text] = content
        steps.append((entry, done))
    return steps, conflicts


def _results(entries: Sequence[Entry], conflicts: dict[str, bool]) -> list[KeyResult]:
    made_by: dict[Key, list[str]] = {}
    for entry in entries:
        for key, _ in operations_of(entry):
            made_by.setdefault(key, []).append(entry.hash)
    return [KeyResult(key, key.text in conflicts, hashes) for key, hashes in made_by.items()]


def _made(steps: Steps, target: Ref, numbers: Sequence[int], occasion: Occasion, wish: Wish, ref: Ref) -> list[NewCommit]:
    parent = (target.head.hash, target.head.depth)
    if not wish.individually:
        last = {change.key: change for _, changes in steps for change in changes}
        message = wish.message or f"Transplanted {len(steps)} commits from '{ref.name}' into '{target.name}'"
        return [NewCommit.made(numbers[0], parent, said(Meta(message), occasion), list(last.values()))]
    commits: list[NewCommit] = []
    for (entry, changes), number in zip(steps, numbers, strict=True):
        made = NewCommit.made(number, parent, again(entry, occasion), changes)
        commits.append(made)
        parent = (made.hash, made.depth)
    return commits
