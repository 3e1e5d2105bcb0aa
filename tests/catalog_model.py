"""A catalog as simple as it can be: states are dictionaries, histories are lists. Nothing of ours is in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Key = tuple[str, ...]
State = dict[Key, str]
"""What a key has: the marks of contents, which tests put into them."""
Ops = list[tuple[Key, str | None]]


@dataclass
class Commit:
    """`ops` are (key, mark or None) in order; `ancestors` is everything that it can reach, itself among it."""

    hash: str
    parents: list[Commit]
    ops: Ops
    state: State
    message: str
    order: int
    ancestors: frozenset[str] = frozenset()

    def chain(self) -> list[Commit]:
        """From itself back to the beginning, which is left out."""
        found: list[Commit] = []
        at: Commit = self
        while at.parents:
            found.append(at)
            at = at.parents[0]
        return found


class Conflict(Exception):
    def __init__(self, keys: set[Key]) -> None:
        super().__init__(keys)
        self.keys = keys


@dataclass
class Model:
    """References by name: (type, commit). Hashes are learnt from the catalog, everything else is worked out here."""

    refs: dict[str, tuple[str, Commit]] = field(default_factory=dict)
    by_hash: dict[str, Commit] = field(default_factory=dict)
    made: int = 0

    def begin(self, hash: str) -> None:
        beginning = Commit(hash, [], [], {}, "", 0, frozenset({hash}))
        self.by_hash[hash] = beginning
        self.refs["main"] = ("BRANCH", beginning)

    def commit(self, branch: str, expected: Commit, ops: Ops) -> Ops:
        """What a commit would do, or the conflict that it has."""
        head = self.refs[branch][1]
        since = {key for each in head.chain() if each.order > expected.order for key, _ in each.ops}
        bad = {key for key, mark in ops if key in since or (mark is None and key not in head.state)}
        if bad:
            raise Conflict(bad)
        return ops

    def base(self, one: Commit, other: Commit) -> Commit:
        """The newest commit that both can reach."""
        return max((self.by_hash[each] for each in one.ancestors & other.ancestors), key=lambda each: each.order)

    def merge(self, target: Commit, source: Commit) -> tuple[Commit, Ops] | None:
        """The common ancestor and what is to be done; None if there is nothing to merge."""
        base = self.base(target, source)
        if base is source:
            return None
        ops, bad = [], set()
        for key in sorted({*base.state, *source.state, *target.state}):
            then, here, there = (state.get(key) for state in (base.state, target.state, source.state))
            if there in (then, here):
                continue
            if here != then:
                bad.add(key)
            ops.append((key, there))
        if bad:
            raise Conflict(bad)
        return base, ops

    def transplant(self, target: Commit, commits: list[Commit]) -> list[Ops]:
        """What each commit does to the target."""
        now, bad, steps = dict(target.state), set(), []
        for commit in commits:
            before = commit.parents[0].state
            done = []
            for key, mark in commit.ops:
                if now.get(key) not in (before.get(key), mark):
                    bad.add(key)
                if now.get(key) != mark:
                    done.append((key, mark))
                _apply(now, key, mark)
            steps.append(done)
        if bad:
            raise Conflict(bad)
        return steps

    def added(self, branch: str, hash: str, ops: Ops, message: str, merged: Commit | None = None) -> Commit:
        """The catalog says that it has made this commit."""
        head = self.refs[branch][1]
        state = dict(head.state)
        for key, mark in ops:
            _apply(state, key, mark)
        parents = [head] if merged is None else [head, merged]
        self.made += 1
        ancestors = frozenset({hash}).union(*(each.ancestors for each in parents))
        made = Commit(hash, parents, ops, state, message, self.made, ancestors)
        self.by_hash[hash] = made
        self.refs[branch] = ("BRANCH", made)
        return made


def _apply(state: State, key: Key, mark: str | None) -> None:
    if mark is None:
        state.pop(key, None)
    else:
        state[key] = mark


def expected_events(commits: list[Commit]) -> list[tuple[Any, ...]]:
    """COMMIT of each, then the keys that it had the last word on."""
    last = {key: commit.hash for commit in commits for key, _ in commit.ops}
    found: list[tuple[Any, ...]] = []
    for commit in commits:
        found.append(("COMMIT", commit.parents[0].hash, commit.hash))
        for key, mark in commit.ops:
            if last[key] == commit.hash:
                found.append(("CONTENT_REMOVED" if mark is None else "CONTENT_STORED", key, commit.hash, mark))
    return found
