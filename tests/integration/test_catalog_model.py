"""The catalog against a plain model: references, contents, log, differences and events agree after each step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule, run_state_machine_as_test

from catalog_calls import WHO, Calls, calls
from catalog_model import Commit, Conflict, Model, expected_events
from tidings.catalog import points, writing
from tidings.catalog.errors import CatalogError
from tidings.catalog.hashes import BEGINNING
from tidings.catalog.merge import Wish
from tidings.catalog.model import Delete, Key, Operation, Put, Unchanged

KEYS = [("a",), ("a", "b"), ("a", "c"), ("d.e",)]
NAMES = ["main", "one", "two", "three"]
keys = st.sampled_from(KEYS)
marks = st.text("xyz", min_size=1, max_size=2)
ops = st.lists(st.tuples(keys, st.none() | marks), min_size=1, max_size=3, unique_by=lambda op: op[0])
names = st.sampled_from(NAMES)


def machine(calls: Calls) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        commits = Bundle("commits")

        def __init__(self) -> None:
            super().__init__()
            # A repository of its own for each run, in the same database.
            self.calls = calls
            fresh = calls.connection.execute("insert into projects (name) values (uuidv7()::text) returning public_id")
            row = fresh.fetchone()
            assert row is not None
            calls.project = row[0]
            calls.published.clear()
            calls.told.rows()
            self.model = Model()

        @initialize(target=commits)
        def begin(self) -> str:
            self.model.begin(BEGINNING)
            assert calls.head() == BEGINNING
            assert self.events() == [("REFERENCE_CREATED", "main", BEGINNING)]
            return BEGINNING

        def events(self) -> list[tuple[Any, ...]]:
            """What was told since the last time, in the stream and to subscribers: the same, in the same order."""
            rows = calls.told.events()
            assert [event.to_json() for event in calls.published] == rows
            assert all(event.roles == WHO.roles for event in calls.published)
            calls.published.clear()
            return [_short(event) for event in rows]

        def branch(self, name: str) -> Commit | None:
            found = self.model.refs.get(name)
            return found[1] if found and found[0] == "BRANCH" else None

        @rule(target=commits, name=names, type=st.sampled_from(["BRANCH", "TAG"]), at=commits)
        def create(self, name: str, type: str, at: str) -> Any:
            if name in self.model.refs:
                with pytest.raises(CatalogError, match="ALREADY_EXISTS"):
                    calls.create(name, None, at, type)
            else:
                calls.create(name, None, at, type)
                self.model.refs[name] = (type, self.model.by_hash[at])
                assert self.events() == [("REFERENCE_CREATED", name, at)]
            return multiple()

        @rule(name=names, to=commits)
        def assign(self, name: str, to: str) -> None:
            if name not in self.model.refs:
                return
            type, head = self.model.refs[name]
            calls.run(calls.catalog.assign(calls.project, WHO, type, name, head.hash, "DETACHED", to))  # type: ignore[arg-type]
            self.model.refs[name] = (type, self.model.by_hash[to])
            assert self.events() == ([] if head.hash == to else [("REFERENCE_UPDATED", name, head.hash, to)])

        @rule(name=names, wrong=st.booleans())
        def delete(self, name: str, wrong: bool) -> None:
            if name not in self.model.refs or name == "main":
                return
            type, head = self.model.refs[name]
            expected = "0" * 64 if wrong else head.hash
            work = calls.catalog.delete(calls.project, WHO, type, name, expected)  # type: ignore[arg-type]
            if wrong:
                with pytest.raises(CatalogError, match="REFERENCE_CONFLICT"):
                    calls.run(work)
            else:
                calls.run(work)
                del self.model.refs[name]
                assert self.events() == [("REFERENCE_DELETED", name, head.hash)]

        @rule(target=commits, name=names, ops=ops, back=st.integers(0, 2), message=marks)
        def commit(self, name: str, ops: list[tuple[tuple[str, ...], str | None]], back: int, message: str) -> Any:
            head = self.branch(name)
            if head is None:
                return multiple()
            chain = [*head.chain(), self.model.by_hash[BEGINNING]]
            expected = chain[min(back, len(chain) - 1)]
            operations = [self.operation(name, key, mark) for key, mark in ops]
            try:
                done = self.model.commit(name, expected, ops)
            except Conflict as conflict:
                with pytest.raises(CatalogError, match="REFERENCE_CONFLICT") as refused:
                    calls.commit(name, expected.hash, *operations)
                names_exactly(refused.value, conflict)
                return multiple()
            made = self.model.added(name, calls.commit(name, expected.hash, *operations, message=message), done, message)
            assert self.events() == expected_events([made])
            return made.hash

        def operation(self, name: str, key: tuple[str, ...], mark: str | None) -> Operation:
            if mark is None:
                return Delete(Key.of(key))
            there = calls.content(Key(key), name)
            return Put(Key.of(key), {"type": "MARK", "mark": mark, "id": there.id if there else f"id of {key}"})

        @rule(target=commits, source=names, target_name=names, individually=st.booleans(), dry=st.booleans())
        def merge(self, source: str, target_name: str, individually: bool, dry: bool) -> Any:
            target = self.branch(target_name)
            if target is None or source not in self.model.refs:
                return multiple()
            theirs = self.model.refs[source][1]
            wish = Wish(source, None, individually, dry)
            work = calls.catalog.merge(calls.project, WHO, target_name, None, wish)
            try:
                planned = self.model.merge(target, theirs)
            except Conflict as conflict:
                with pytest.raises(CatalogError, match="REFERENCE_CONFLICT") as refused:
                    calls.run(work)
                names_exactly(refused.value, conflict)
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
            assert events[0] == ("MERGE", source, theirs.hash, target_name, target.hash, result.after, base.hash)
            made = self.replayed(target_name, beyond, changes, theirs) if individually else None
            if made is None:
                made = [self.model.added(target_name, result.after, changes, "", theirs)]
            assert events[1:] == expected_events(made)
            return multiple(*(each.hash for each in made))

        def replayed(self, name: str, beyond: list[Commit], changes: Any, theirs: Commit) -> list[Commit]:
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
            assert {key: made[-1].state.get(key) for key in wanted} == wanted
            return made

        @rule(
            target=commits,
            source=names,
            target_name=names,
            picks=st.integers(1, 3),
            skip=st.integers(0, 1),
            squash=st.booleans(),
        )
        def transplant(self, source: str, target_name: str, picks: int, skip: int, squash: bool) -> Any:
            target = self.branch(target_name)
            if target is None or source not in self.model.refs:
                return multiple()
            chosen = list(reversed(self.model.refs[source][1].chain()[skip : skip + picks]))
            if not chosen:
                return multiple()
            hashes = [each.hash for each in chosen]
            work = calls.catalog.transplant(calls.project, WHO, target_name, None, hashes, Wish(source, None, not squash))
            try:
                steps = self.model.transplant(target, chosen)
            except Conflict as conflict:
                with pytest.raises(CatalogError, match="REFERENCE_CONFLICT") as refused:
                    calls.run(work)
                names_exactly(refused.value, conflict)
                return multiple()
            result = calls.run(work)
            events = self.events()
            count = 1 if squash else len(steps)
            assert events[0] == ("TRANSPLANT", source, target_name, target.hash, result.after, count)
            if squash:
                last = {key: mark for step in steps for key, mark in step}
                made = [self.model.added(target_name, result.after, list(last.items()), "")]
            else:
                hashes = [entry.hash for entry in reversed(calls.log(target_name)[: len(steps)])]
                pairs = zip(hashes, steps, chosen, strict=True)
                made = [self.model.added(target_name, hash, step, commit.message) for hash, step, commit in pairs]
            assert events[1:] == expected_events(made)
            return multiple(*(each.hash for each in made))

        @rule(name=names, key=keys)
        def unchanged(self, name: str, key: tuple[str, ...]) -> None:
            """What only must not have changed is a conflict if it has, and nothing is told."""
            head = self.branch(name)
            if head is None or not head.chain() or key not in {touched for touched, _ in head.ops}:
                return
            with pytest.raises(CatalogError, match="REFERENCE_CONFLICT"):
                calls.commit(name, head.parents[0].hash, Unchanged(Key.of(key)))

        @rule(one=names, other=names)
        def differ(self, one: str, other: str) -> None:
            if one not in self.model.refs or other not in self.model.refs:
                return
            ours, theirs = self.model.refs[one][1].state, self.model.refs[other][1].state
            found = {tuple(each.key): (_mark(each.one), _mark(each.other)) for each in calls.diff(one, other)}
            wanted = {key: (ours.get(key), theirs.get(key)) for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
            assert found == wanted

        @rule(name=names, hash=commits)
        def at_a_hash(self, name: str, hash: str) -> None:
            if name not in self.model.refs:
                return
            commit = self.model.by_hash[hash]
            if hash in {each.hash for each in self.model.refs[name][1].chain()} | {BEGINNING}:
                assert {tuple(key): _mark(found) for key, found in calls.state(name, hash).items()} == commit.state
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
                assert {tuple(key): _mark(found) for key, found in calls.state(name).items()} == at.state
                chain = at.chain()
                log = calls.log(name)
                assert [entry.hash for entry in log] == [each.hash for each in chain]
                assert [entry.parents for entry in log] == [[each.hash for each in commit.parents] for commit in chain]
                assert calls.lines(name) <= points.MOST_LINES

    return Machine


def names_exactly(refused: CatalogError, conflict: Conflict) -> None:
    """The refusal names the keys that are in conflict, and no others."""
    assert {key for key in KEYS if f"'{Key(key)}'" in refused.message} == conflict.keys


def _mark(content: Any) -> str | None:
    return None if content is None else json.loads(content.text)["mark"]


def _short(event: dict[str, Any]) -> tuple[Any, ...]:
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


@pytest.mark.parametrize("most_lines", [16, 2])
def test_the_catalog_does_what_the_model_does(database_url: str, monkeypatch: pytest.MonkeyPatch, most_lines: int) -> None:
    """Also with few lines, so that what is there is copied often."""
    monkeypatch.setattr(points, "MOST_LINES", most_lines)
    monkeypatch.setattr(writing, "MOST_LINES", most_lines)
    with calls(database_url) as opened:
        run_state_machine_as_test(
            machine(opened),
            settings=settings(
                max_examples=20,
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
                database=None,
            ),
        )
