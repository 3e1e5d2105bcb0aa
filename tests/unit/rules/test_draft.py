"""A rule that nobody has set yet: whether it is valid, and which other rules want some of the same changes."""

from __future__ import annotations

import itertools

import pytest

from tidings.errors import CallerError
from tidings.events import names
from tidings.events.profiles import AWS
from tidings.rules.draft import Draft, shared
from tidings.rules.match import matches
from truth_table import TABLES, random_rows

CREATED, REMOVED = "s3:ObjectCreated:*", "s3:ObjectRemoved:*"
PUT, COPY, DELETE = "s3:ObjectCreated:Put", "s3:ObjectCreated:Copy", "s3:ObjectRemoved:Delete"


def draft(events: str, prefix: str = "", suffix: str = "") -> Draft:
    return Draft(tuple(events.split()), prefix, suffix)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        # events: the same, one among what the other stands for, none
        (draft(PUT), draft(PUT), [PUT]),
        (draft(CREATED), draft(PUT), [PUT]),
        (draft(CREATED), draft(CREATED), [CREATED]),
        (draft(f"{PUT} {DELETE}"), draft(f"{CREATED} {REMOVED}"), [PUT, DELETE]),
        (draft(PUT), draft(COPY), []),
        (draft(CREATED), draft(REMOVED), []),
        (draft(CREATED), draft(DELETE), []),
        # prefixes: one begins with the other
        (draft(PUT, "logs/"), draft(PUT), [PUT]),
        (draft(PUT, "logs/"), draft(PUT, "logs/2026/"), [PUT]),
        (draft(PUT, "logs/"), draft(PUT, "logs"), [PUT]),
        (draft(PUT, "logs/"), draft(PUT, "photos/"), []),
        (draft(PUT, "logs/"), draft(PUT, "Logs/"), []),
        (draft(PUT, "žluť/"), draft(PUT, "žluť/kůň"), [PUT]),
        # suffixes: one ends with the other
        (draft(PUT, "", ".jpg"), draft(PUT), [PUT]),
        (draft(PUT, "", ".jpg"), draft(PUT, "", "jpg"), [PUT]),
        (draft(PUT, "", ".jpg"), draft(PUT, "", ".png"), []),
        (draft(PUT, "", ".jpg"), draft(PUT, "", ".jpg.bak"), []),
        # both halves count, and so do the events
        (draft(PUT, "logs/", ".txt"), draft(PUT, "logs/2026/", "report.txt"), [PUT]),
        (draft(PUT, "logs/", ".txt"), draft(PUT, "", ".jpg"), []),
        (draft(PUT, "logs/"), draft(PUT, "", ".jpg"), [PUT]),
        (draft(PUT, "logs/"), draft(DELETE, "logs/"), []),
        # a filter may be written for the key or for its encoded form
        (draft(PUT, "my file"), draft(PUT, "my+file"), [PUT]),
        (draft(PUT, "猫"), draft(PUT, "%E7%8C%AB/a"), [PUT]),
        (draft(PUT, "", "a b"), draft(PUT, "", "+b"), [PUT]),
        (draft(PUT, "my file"), draft(PUT, "my%20file"), []),
    ],
)
def test_two_rules_share_what_both_want(one: Draft, other: Draft, expected: list[str]) -> None:
    assert shared(one, other) == expected
    assert shared(other, one) == expected


def test_no_change_matches_two_rules_that_are_said_to_share_nothing() -> None:
    rows = [*TABLES[False], *random_rows(seed=7, count=250)]
    both = 0
    for one, other in itertools.product(rows, rows):
        for key in (one.key, other.key):
            for event in {one.event, other.event} & set(names.NAMES):
                wanted = all(matches(row.events, row.prefix, row.suffix, event=event, key=key) for row in (one, other))
                assert not wanted or set(shared(one, other)) & set(names.wanted_by(event)), (one, other, key, event)
                both += wanted
    assert both > 1000


@pytest.mark.parametrize(
    ("events", "prefix", "words"),
    [
        ((), "", ["No event is named", CREATED]),
        (("s3:ObjectMoved:*",), "", ["'s3:ObjectMoved:*'", *sorted(AWS.subscribable)]),
        ((PUT,), "x" * 1025, ["prefix", "1025", "1024"]),
        (("put",), "\x01", ["2 problems", "'put'", "prefix"]),
    ],
)
def test_a_draft_is_valid_or_says_everything_that_is_wrong(events: tuple[str, ...], prefix: str, words: list[str]) -> None:
    with pytest.raises(CallerError) as caught:
        Draft(events, prefix)
    for word in words:
        assert word in caught.value.message
