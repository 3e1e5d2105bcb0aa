"""API keys: nobody makes a wider one, nothing but a whole genuine key is one, and a revoked ancestor ends its line."""

from __future__ import annotations

import base64
import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.access.macaroons import MAX_CAVEATS, BadKey, Caveat, Macaroon
from tidings.access.permissions import ACTIONS, GET_NOTIFICATION, PUT_NOTIFICATION, Grant

SECRET = os.urandom(32)
BUCKETS = ("one", "two")
PREFIXES = ("", "a", "a/", "a/b", "b")
NOW = 1000
EXAMPLES, MANY = 500, 20_000


def sets(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | st.frozensets(values, max_size=3)


CAVEATS = st.builds(
    Caveat,
    actions=sets(st.sampled_from(ACTIONS)),
    buckets=sets(st.sampled_from(BUCKETS)),
    prefixes=sets(st.tuples(st.sampled_from(BUCKETS), st.sampled_from(PREFIXES))),
    not_before=st.none() | st.sampled_from([NOW - 1, NOW, NOW + 1]),
    not_after=st.none() | st.sampled_from([NOW - 1, NOW, NOW + 1]),
)
EVERYTHING_ONE_CAN_ASK = [
    (action, bucket, prefix)
    for action in ACTIONS
    for bucket, prefix in [(None, None), *((b, p) for b in BUCKETS for p in (None, *PREFIXES))]
]


def allowed(key: Macaroon, actions: frozenset[str]) -> set[tuple[str, str | None, str | None]]:
    grant = Grant(actions, key.limits())
    beside = {(action, "beside buckets", None) for action in ACTIONS if grant.allows_beside_buckets(action, NOW)}
    return beside | {each for each in EVERYTHING_ONE_CAN_ASK if grant.allows(*each, NOW)}


@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(MANY, marks=pytest.mark.chaos)])
def test_no_sequence_of_edits_to_a_key_ever_widens_it(examples: int) -> None:
    edits = given(st.frozensets(st.sampled_from(ACTIONS)), st.lists(CAVEATS, min_size=1, max_size=4), st.integers(0, 3))
    settings(max_examples=examples, deadline=None)(edits(never_wider))()


def never_wider(actions: frozenset[str], caveats: list[Caveat], at: int) -> None:
    key = Macaroon.new(SECRET)
    before = allowed(key, actions)
    for caveat in caveats:
        key = Macaroon.parse(str(key)).restricted(caveat)
        assert key.is_genuine(SECRET)
        after = allowed(key, actions)
        assert after <= before
        before = after
    # what is taken away, exchanged, added or put in another order without the tail before it is no key
    place = at % len(key.caveats)
    others = {
        key.caveats[:-1],
        (*key.caveats[:place], *key.caveats[place + 1 :]),
        (*key.caveats[:place], b"{}", *key.caveats[place + 1 :]),
        (*key.caveats, b"{}"),
        key.caveats[::-1],
    } - {key.caveats}
    for other in others:
        assert not Macaroon(key.head, other, key.tail).is_genuine(SECRET)
    assert not Macaroon(bytes(32), key.caveats, key.tail).is_genuine(SECRET)
    assert not key.is_genuine(bytes(32))


@given(st.binary(max_size=200))
def test_what_is_not_a_whole_key_is_refused(data: bytes) -> None:
    text = "tdk1-" + base64.urlsafe_b64encode(data).decode().rstrip("=")
    with contextlib.suppress(BadKey):
        assert not Macaroon.parse(text).is_genuine(SECRET)


def test_every_cut_and_every_addition_is_refused() -> None:
    key = Macaroon.new(SECRET).restricted(Caveat(buckets=frozenset({"one"}))).restricted(Caveat(not_after=5))
    text = str(key)
    assert Macaroon.parse(text) == key
    for wrong in (*(text[:end] for end in range(len(text))), text + "A", text + "=", text + " ", f" {text}", text.upper()):
        try:
            assert not Macaroon.parse(wrong).is_genuine(SECRET)
        except BadKey:
            continue


def test_a_key_has_so_many_caveats_and_no_more() -> None:
    key = Macaroon.new(SECRET)
    for _ in range(MAX_CAVEATS):
        key = key.restricted(Caveat(not_after=5))
    with pytest.raises(BadKey, match="64 caveats"):
        key.restricted(Caveat(not_after=5))
    with pytest.raises(BadKey, match="bytes"):
        Macaroon.new(SECRET).restricted(Caveat(buckets=frozenset(f"bucket-{number:05}" for number in range(2000))))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 15_000,
        b'{"actions":' * 1_300,
        b'{"sudo":true}',
        b'{"actions":"read"}',
        b'{"actions":[1]}',
        b'{"actions":["read"],"actions":["write"]}',
        b'{"prefixes":[["one"]]}',
        b'{"not_after":1.5}',
        b'{"not_after":true}',
        b'{"buckets":null}',
    ],
)
def test_a_caveat_that_is_not_understood_is_refused(data: bytes) -> None:
    with pytest.raises(BadKey):
        Caveat.decode(data)


@given(CAVEATS)
def test_a_caveat_is_read_as_it_was_written(caveat: Caveat) -> None:
    assert Caveat.decode(caveat.encode()) == caveat


@pytest.mark.parametrize(
    ("caveat", "action", "bucket", "prefix", "expected"),
    [
        (Caveat(), PUT_NOTIFICATION, "one", None, True),
        (Caveat(actions=frozenset({"read"})), PUT_NOTIFICATION, "one", None, False),
        (Caveat(buckets=frozenset({"one"})), PUT_NOTIFICATION, "one", None, True),
        (Caveat(buckets=frozenset({"one"})), PUT_NOTIFICATION, "two", None, False),
        (Caveat(prefixes=frozenset({("one", "a/")})), PUT_NOTIFICATION, "one", None, False),
        (Caveat(prefixes=frozenset({("one", "")})), PUT_NOTIFICATION, "one", None, True),
        (Caveat(prefixes=frozenset({("one", "a/")})), "read", "one", "a/b", True),
        (Caveat(prefixes=frozenset({("one", "a/")})), "read", "one", "b", False),
        (Caveat(prefixes=frozenset({("one", "a/")})), "read", "two", "a/b", False),
        (Caveat(prefixes=frozenset({("one", "a/")})), "list", "one", "a/", True),
        (Caveat(prefixes=frozenset({("one", "a/")})), "list", "one", "", False),
        (Caveat(not_before=NOW + 1), "read", "one", "a", False),
        (Caveat(not_after=NOW), "read", "one", "a", False),
        (Caveat(not_before=NOW, not_after=NOW + 1), "read", "one", "a", True),
        (Caveat(buckets=frozenset()), "read", "one", "a", False),
    ],
)
def test_what_a_caveat_allows(caveat: Caveat, action: str, bucket: str, prefix: str | None, expected: bool) -> None:
    assert Grant(frozenset(ACTIONS), [caveat]).allows(action, bucket, prefix, NOW) is expected


def test_a_key_made_before_an_action_existed_does_not_get_it() -> None:
    old = Grant(frozenset({"read", "write", "list", "delete"}), [Caveat(actions=frozenset(ACTIONS))])
    assert old.allows("read", "one", "a", NOW)
    assert not old.allows(GET_NOTIFICATION, "one", None, NOW)


def test_a_list_of_buckets_shows_what_the_key_is_for() -> None:
    limits = [Caveat(buckets=frozenset({"one", "two"})), Caveat(prefixes=frozenset({("one", "a/"), ("three", "")}))]
    assert [name for name in ("one", "two", "three") if Grant(frozenset(ACTIONS), limits).sees(name, NOW)] == ["one"]
