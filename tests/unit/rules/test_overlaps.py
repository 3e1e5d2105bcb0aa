from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.events.arn import PubSubTopic
from tidings.events.names import NAMES
from tidings.rules.match import matches
from tidings.rules.model import KeyFilter, Rule
from tidings.rules.overlaps import overlap

TOPIC = PubSubTopic("my-project", "my-topic")
PUT, CREATED, REMOVED = ("s3:ObjectCreated:Put",), ("s3:ObjectCreated:*",), ("s3:ObjectRemoved:*",)


def rule(events: tuple[str, ...], prefix: str = "", suffix: str = "") -> Rule:
    return Rule("id", TOPIC, events, KeyFilter(prefix, suffix))


OVERLAP = {
    "the same": (rule(PUT), rule(PUT)),
    "a name and its wildcard": (rule(PUT), rule(CREATED)),
    "one event of several": (rule((*PUT, *REMOVED)), rule(CREATED)),
    "a filter inside none": (rule(CREATED, "logs/", ".txt"), rule(CREATED)),
    "a prefix inside a prefix": (rule(CREATED, "logs/2026/"), rule(CREATED, "logs/")),
    "a suffix inside a suffix": (rule(CREATED, "", ".tar.gz"), rule(CREATED, "", ".gz")),
    "prefix here and suffix there": (rule(CREATED, "logs/"), rule(CREATED, "", ".gz")),
}
APART = {
    "other events": (rule(CREATED), rule(REMOVED)),
    "other names": (rule(PUT), rule(("s3:ObjectCreated:Copy",))),
    "other prefixes": (rule(CREATED, "logs/"), rule(CREATED, "data/")),
    "other suffixes": (rule(CREATED, "logs/", ".txt"), rule(CREATED, "logs/", ".jpg")),
    "prefixes that begin alike": (rule(CREATED, "logs/a"), rule(CREATED, "logs/b")),
}


@pytest.mark.parametrize("name", OVERLAP)
def test_rules_after_the_same_changes_overlap(name: str) -> None:
    one, other = OVERLAP[name]
    assert overlap(one, other)
    assert overlap(other, one)


@pytest.mark.parametrize("name", APART)
def test_rules_after_different_changes_do_not_overlap(name: str) -> None:
    one, other = APART[name]
    assert not overlap(one, other)
    assert not overlap(other, one)


TEXT = st.text("ab/", max_size=4)
RULES = st.builds(
    rule, st.lists(st.sampled_from([*(f"s3:{name}" for name in NAMES), *CREATED, *REMOVED]), min_size=1).map(tuple), TEXT, TEXT
)


@given(RULES, RULES, st.text("ab/", max_size=8), st.sampled_from(NAMES))
def test_a_change_that_two_rules_want_is_the_proof_of_an_overlap(one: Rule, other: Rule, key: str, event: str) -> None:
    both = all(matches(r.events, r.filter.prefix, r.filter.suffix, event=event, key=key) for r in (one, other))
    assert overlap(one, other) or not both
