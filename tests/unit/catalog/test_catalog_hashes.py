from __future__ import annotations

from tidings.catalog.hashes import BEGINNING, commit_hash
from tidings.catalog.model import Content, Key
from tidings.catalog.writing import Change, NewCommit

META = {"message": "m", "commitTime": "2026-01-01T00:00:00.000000Z"}


def made(parent: str = BEGINNING, mark: int = 1, merged: str | None = None, number: int = 1, **meta: str) -> NewCommit:
    change = Change.stores(Key.of(["a"]), Content.of({"type": "T", "id": "i", "mark": mark}))
    return NewCommit.made(number, (parent, 0), META | meta, [change], merged)


def test_a_hash_is_that_of_parents_operations_and_words_and_of_nothing_else() -> None:
    assert made().hash == made(number=7).hash
    others = [made(parent="0" * 64), made(mark=2), made(merged="0" * 64), made(message="n")]
    assert len({made().hash, *(each.hash for each in others)}) == 5


def test_a_hash_does_not_depend_on_the_order_in_which_members_were_sent() -> None:
    one = Content.of({"type": "T", "id": "i", "a": 1, "b": {"c": 2, "d": 3}})
    other = Content.of({"b": {"d": 3, "c": 2}, "a": 1, "id": "i", "type": "T"})
    assert one == other


def test_what_is_hashed_cannot_be_read_in_two_ways() -> None:
    assert commit_hash(["a"], "b", "c") != commit_hash(["ab"], "", "c")
    assert commit_hash(["a", "b"], "", "") != commit_hash(["ab"], "", "")


def test_hashes_are_what_they_were() -> None:
    """Another way to make them would be another history for the same commits."""
    assert BEGINNING == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert commit_hash([BEGINNING], "[]", '{"message":"é"}') == HASH


HASH = "b039b3fcea362ed51a494582c85f979e43587a2a6762e3bc0189a500998c94b0"
