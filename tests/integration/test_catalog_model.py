"""The catalog against a plain model: references, contents, log, differences and events agree after each step."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule, run_state_machine_as_test

from catalog_calls import WHO, Calls, calls
from catalog_model import Commit, Conflict, Model, Ops, expected_events
from conftest import Say
from tidings.catalog import points, writing
from tidings.catalog.errors import CatalogError
from tidings.catalog.hashes import BEGINNING
from tidings.catalog.merge import Wish
from tidings.catalog.model import Delete, Key, Operation, Put, Unchanged

KEYS = [("a",), ("a", "b"), ("a", "c"), ("d.e",), ("f",)]
NAMES = ["main", "one", "two", "three"]
OUTCOMES = (
    *("committed", "refused commit", "merged", "merged each", "merged again", "refused merge", "transplanted", "squashed"),
    *("refused transplant", "assigned", "deleted"),
)
keys = st.sampled_from(KEYS)
marks = st.sampled_from("vwxyz")
ops = st.lists(st.tuples(keys, marks | marks | st.none()), min_size=1, max_size=2, unique_by=lambda op: op[0])
places = st.integers(0, 11)
"""Which of the references that there are."""
luck = st.integers(0, 4)


def machine(calls: Calls, seen: Counter[str]) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        commits = Bundle("commits")

        def __init__(self) -> None:
            super().__init__()
            # A repository of its own for each run, in the same database.
            row = calls.connection.execute("insert into projects (name) values (uuidv7()::text) returning public_id").fetchone()
            assert row is not None
            calls.project = row[0]
            calls.published.clear()
            calls.told.rows()
            self.model = Model()

        @initialize(target=commits)
        def begin(self) -> Any:
            self.model.begin(BEGINNING)
            assert calls.head() == BEGINNING
            assert self.events() == [("REFERENCE_CREATED", "main", BEGINNING)]
            made = self.committed("main", self.model.by_hash[BEGINNING], [(key, "v") for key in KEYS[:3]], "first")
            for name in NAMES[1:3]:
                calls.create(name)
                self.model.refs[name] = ("BRANCH", self.model.by_hash[made])
                assert self.events() == [("REFERENCE_CREATED", name, made)]
            return multiple(BEGINNING, made)

        def events(self) -> list[tuple[Any, ...]]:
            """What was told since the last time, in the stream and to subscribers: the same, in the same order."""
            rows = calls.told.events()
            assert [event.to_json() for event in calls.published] == rows
            assert all(event.roles == WHO.roles for event in calls.published)
            calls.published.clear()
            return [short(event) for event in rows]

        def any(self, place: int) -> tuple[str, Commit]:
            name = sorted(self.model.refs)[place % len(self.model.refs)]
            return name, self.model.refs[name][1]

        def branch(self, place: int) -> tuple[str, Commit]:
            found = [(name, at) for name, (type, at) in sorted(self.model.refs.items()) if type == "BRANCH"]
            return found[place % len(found)]

        @rule(name=st.sampled_from(NAMES), type=st.sampled_from(["BRANCH", "BRANCH", "TAG"]), at=commits)
        def create(self, name: str, type: str, at: str) -> None:
            if name in self.model.refs:
                with pytest.raises(CatalogError, match="ALREADY_EXISTS"):
                    calls.create(name, None, at, type)
            else:
                calls.create(name, None, at, type)
                self.model.refs[name] = (type, self.model.by_hash[at])
                assert self.events() == [("REFERENCE_CREATED", name, at)]

        @rule(place=places, to=commits, luck=luck)
        def assign(self, place: int, to: str, luck: int) -> None:
            """Seldom: it makes branches alike, and then there is little to merge."""
            name, head = self.any(place)
            if luck:
                return
            type: Any = self.model.refs[name][0]
            calls.run(calls.catalog.assign(calls.project, WHO, type, name, head.hash, "DETACHED", to))
            self.model.refs[name] = (type, self.model.by_hash[to])
            assert self.events() == ([] if head.hash == to else [("REFERENCE_UPDATED", name, head.hash, to)])
            seen["assigned"] += 1

        @rule(place=places, wrong=st.booleans(), luck=luck)
        def delete(self, place: int, wrong: bool, luck: int) -> None:
            name, head = self.any(place)
            if name == "main" or luck:
                return
            type: Any = self.model.refs[name][0]
            work = calls.catalog.delete(calls.project, WHO, type, name, "0" * 64 if wrong else head.hash)
            if wrong:
                with pytest.raises(CatalogError, match="REFERENCE_CONFLICT"):
                    calls.run(work)
            else:
                calls.run(work)
                del self.model.refs[name]
                assert self.events() == [("REFERENCE_DELETED", name, head.hash)]
                seen["deleted"] += 1

        @rule(target=commits, place=places, ops=ops, back=st.integers(0, 2), message=marks)
        def commit(self, place: int, ops: Ops, back: int, message: str) -> Any:
            return self.attempt(place, ops, back, message)

        @rule(target=commits, place=places, ops=ops)
        def commit_on_the_head(self, place: int, ops: Ops) -> Any:
            """Most of what happens to a catalog."""
            return self.attempt(place, ops, 0, "on the head")

        def attempt(self, place: int, ops: Ops, back: int, message: str) -> Any:
            name, head = self.branch(place)
            chain = [*head.chain(), self.model.by_hash[BEGINNING]]
            expected = chain[min(back, len(chain) - 1)]
            try:
                return self.committed(name, expected, ops, message)
            except Conflict as conflict:
                operations = [self.operation(name, key, mark) for key, mark in ops]
                with pytest.raises(CatalogError, match="REFERENCE_CONFLICT") as refused:
                    calls.commit(name, expected.hash, *operations)
                names_exactly(refused.value, conflict)
                seen["refused commit"] += 1
                return multiple()

        def committed(self, name: str, expected: Commit, ops: Ops, message: str) -> str:
            done = self.model.commit(name, expected, ops)
            operations = [self.operation(name, key, mark) for key, mark in ops]
            made = self.model.added(name, calls.commit(name, expected.hash, *operations, message=message), done, message)
            assert self.events() == expected_events([made])
            seen["committed"] += 1
            return made.hash

        def operation(self, name: str, key: tuple[str, ...], mark: str | None) -> Operation:
            if mark is None:
                return Delete(Key.of(key))
            there = calls.content(Key(key), name)
            return Put(Key.of(key), {"type": "MARK", "mark": mark, "id": there.id if there else f"id of {key}"})

        @rule(target=commits, one=places, other=places, individually=st.booleans(), dry=st.sampled_from([False, False, True]))
        def merge(self, one: int, other: int, individually: bool, dry: bool) -> Any:
            return self.merged(one, other, individually, dry)

        @rule(target=commits, one=places, other=places, key=keys, mark=marks)
        def merge_back_and_forth(self, one: int, other: int, key: tuple[str, ...], mark: str) -> Any:
            """What branches that live long do: each merge begins where the last one ended."""
            name, _ = self.branch(one)
            made = [self.committed(name, self.model.refs[name][1], [(key, mark)], "before a merge")]
            for _ in range(2):
                made += self.merged_hashes(one, other)
                one, other = other, one
            seen["merged again"] += len(made) > 2
            return multiple(*made)

        def merged_hashes(self, one: int, other: int) -> list[str]:
            found = self.merged(one, other, individually=False, dry=False)
            return list(getattr(found, "values", ()))

        def merged(self, one: int, other: int, individually: bool, dry: bool) -> Any:
            (source, theirs), (name, target) = self.any(one), self.branch(other)
            work = calls.catalog.merge(calls.project, WHO, name, None, Wish(source, None, individually, dry))
            try:
                planned = self.model.merge(target, theirs)
            except Conflict as conflict:
                with pytest.raises(CatalogError, match="REFERENCE_CONFLICT") as refused:
                    calls.run(work)
                names_exactly(refused.value, conflict)
                seen["refused merge"] += 1
                return multiple()
            result = calls.run(work)
            if planned is None or dry:
                assert (result.applied, result.after) == (False, target.hash)
                return multiple()
            base, changes = planned
            assert result.ancestor == base.hash
            beyond = [each for each in reversed(theirs.chain()) if each.hash not in target.ancestors]
            assert [each.hash for each in result.source] == [each.hash for each in beyond]
            events = self.events()
            assert events[0] == ("MERGE", source, theirs.hash, name, target.hash, result.after, base.hash)
            if individually:
                made = self.replayed(name, beyond, changes, theirs)
            else:
                made = [self.model.added(name, result.after, changes, "", theirs)]
            assert events[1:] == expected_events(made)
            seen["merged each" if individually else "merged"] += 1
            return multiple(*(each.hash for each in made))

        def replayed(self, name: str, beyond: list[Commit], changes: Ops, theirs: Commit) -> list[Commit]:
            wanted, head = dict(changes), self.model.refs[name][1]
            now = {key: head.state.get(key) for key in wanted}
            hashes = [entry.hash for entry in reversed(calls.log(name)[: len(beyond)])]
            made = []
            for place, (hash, commit) in enumerate(zip(hashes, beyond, strict=True), 1):
                done = []
                for key, mark in commit.ops:
                    if key in wanted and now[key] != mark:
                        done.append((key, mark))
                        now[key] = mark
                made.append(self.model.added(name, hash, done, commit.message, theirs if place == len(beyond) else None))
            return made

        @rule(target=commits, one=places, other=places, picks=st.integers(1, 3), skip=st.integers(0, 1), squash=st.booleans())
        def transplant(self, one: int, other: int, picks: int, skip: int, squash: bool) -> Any:
            (source, theirs), (name, target) = self.any(one), self.branch(other)
            chosen = list(reversed(theirs.chain()[skip : skip + picks]))
            if not chosen:
                return multiple()
            hashes = [each.hash for each in chosen]
            work = calls.catalog.transplant(calls.project, WHO, name, None, hashes, Wish(source, None, not squash))
            try:
                steps = self.model.transplant(target, chosen)
            except Conflict as conflict:
                with pytest.raises(CatalogError, match="REFERENCE_CONFLICT") as refused:
                    calls.run(work)
                names_exactly(refused.value, conflict)
                seen["refused transplant"] += 1
                return multiple()
            result = calls.run(work)
            events = self.events()
            assert events[0] == ("TRANSPLANT", source, name, target.hash, result.after, 1 if squash else len(steps))
            if squash:
                last = {key: mark for step in steps for key, mark in step}
                made = [self.model.added(name, result.after, list(last.items()), "")]
            else:
                hashes = [entry.hash for entry in reversed(calls.log(name)[: len(steps)])]
                made = [self.model.added(name, *each) for each in zip(hashes, steps, [c.message for c in chosen], strict=True)]
            assert events[1:] == expected_events(made)
            seen["squashed" if squash else "transplanted"] += 1
            return multiple(*(each.hash for each in made))

        @rule(one=places, other=places, key=keys, hash=commits)
        def look(self, one: int, other: int, key: tuple[str, ...], hash: str) -> None:
            self.unchanged(one, key)
            self.differ(one, other)
            self.at_a_hash(one, hash)

        def unchanged(self, place: int, key: tuple[str, ...]) -> None:
            """What only must not have changed is a conflict if it has, and nothing is told."""
            name, head = self.branch(place)
            if key in {touched for touched, _ in head.ops}:
                with pytest.raises(CatalogError, match="REFERENCE_CONFLICT"):
                    calls.commit(name, head.parents[0].hash, Unchanged(Key.of(key)))

        def differ(self, one: int, other: int) -> None:
            (ours, here), (theirs, there) = self.any(one), self.any(other)
            found = {tuple(each.key): (mark_of(each.one), mark_of(each.other)) for each in calls.diff(ours, theirs)}
            every = {*here.state, *there.state}
            pairs = {key: (here.state.get(key), there.state.get(key)) for key in every}
            assert found == {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}

        def at_a_hash(self, place: int, hash: str) -> None:
            name, head = self.any(place)
            if hash in {each.hash for each in head.chain()} | {BEGINNING}:
                found = {tuple(key): mark_of(content) for key, content in calls.state(name, hash).items()}
                assert found == self.model.by_hash[hash].state
            else:
                with pytest.raises(CatalogError, match="REFERENCE_NOT_FOUND"):
                    calls.state(name, hash)

        @invariant()
        def agree(self) -> None:
            if not self.model.refs:
                return
            assert self.events() == []  # all that was to be told has been
            assert calls.references() == {name: (type, at.hash) for name, (type, at) in self.model.refs.items()}
            for name, (_, at) in self.model.refs.items():
                assert {tuple(key): mark_of(content) for key, content in calls.state(name).items()} == at.state
                chain, log = at.chain(), calls.log(name)
                assert [entry.hash for entry in log] == [each.hash for each in chain]
                assert [entry.parents for entry in log] == [[each.hash for each in commit.parents] for commit in chain]
                assert calls.lines(name) <= points.MOST_LINES

    return Machine


def names_exactly(refused: CatalogError, conflict: Conflict) -> None:
    """The refusal names the keys that are in conflict, and no others."""
    assert {key for key in KEYS if f"'{Key(key)}'" in refused.message} == conflict.keys


def mark_of(content: Any) -> str | None:
    return None if content is None else json.loads(content.text)["mark"]


def short(event: dict[str, Any]) -> tuple[Any, ...]:
    kind = event["type"]
    if kind in ("MERGE", "TRANSPLANT"):
        source, target = event["sourceReference"]["name"], event["targetReference"]["name"]
        both = (target, event["hashBefore"], event["hashAfter"])
        if kind == "MERGE":
            return (kind, source, event["sourceHash"], *both, event["commonAncestorHash"])
        return (kind, source, *both, event["commitCount"])
    if kind.startswith("CONTENT"):
        mark = event["content"]["mark"] if kind == "CONTENT_STORED" else None
        return (kind, tuple(event["contentKey"]["elements"]), event["hash"], mark)
    hashes = [event[name] for name in ("hashBefore", "hashAfter") if name in event]
    return (kind, *hashes) if kind == "COMMIT" else (kind, event["reference"]["name"], *hashes)


@pytest.mark.parametrize("runs", [14, pytest.param(56, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("most_lines", [16, 2])
def test_the_catalog_does_what_the_model_does(
    database_url: str, monkeypatch: pytest.MonkeyPatch, say: Say, most_lines: int, runs: int
) -> None:
    """Also with few lines, so that what is there is copied often: a lower limit only, which two modules have by name."""
    monkeypatch.setattr(points, "MOST_LINES", most_lines)
    monkeypatch.setattr(writing, "MOST_LINES", most_lines)
    seen: Counter[str] = Counter()
    with calls(database_url) as opened:
        run_state_machine_as_test(
            machine(opened, seen),
            settings=settings(
                max_examples=runs,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],  # to make a failure shorter would take minutes
                database=None,
            ),
        )
    say(", ".join(f"{seen[each]} {each}" for each in OUTCOMES))
