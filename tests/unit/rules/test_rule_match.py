from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.events import names
from tidings.events.keys import form_encoded
from tidings.rules.match import matches
from truth_table import QUESTIONS, Row, random_rows

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
EVENT = st.sampled_from(names.NAMES)


@pytest.mark.parametrize(("row", "literal"), QUESTIONS)
def test_the_python_matcher_answers_as_the_truth_table_says(row: Row, literal: bool) -> None:
    assert matches(row.events, row.prefix, row.suffix, event=row.event, key=row.key, literal=literal) is row.expected


@given(TEXT, EVENT)
def test_a_rule_without_a_filter_wants_every_key_of_its_events(key: str, event: str) -> None:
    assert matches([f"s3:{event}"], "", "", event=event, key=key)


@given(TEXT, TEXT, TEXT, EVENT, st.booleans())
def test_a_key_made_of_a_prefix_and_a_suffix_matches_them_literally_and_encoded(
    prefix: str, middle: str, suffix: str, event: str, encoded: bool
) -> None:
    written = form_encoded if encoded else str
    key = prefix + middle + suffix
    assert matches([f"s3:{event}"], written(prefix), written(suffix), event=event, key=key)


@given(TEXT, TEXT, EVENT)
def test_what_matches_starts_with_the_prefix_in_one_of_the_two_forms(key: str, prefix: str, event: str) -> None:
    found = matches([f"s3:{event}"], prefix, "", event=event, key=key)
    assert found == (key[: len(prefix)] == prefix or form_encoded(key)[: len(prefix)] == prefix)


def test_the_random_rows_hold_enough_of_every_kind_to_prove_something() -> None:
    rows = list(random_rows(seed=0, count=2000))
    found = [row for row in rows if matches(row.events, row.prefix, row.suffix, event=row.event, key=row.key)]
    literal = [row for row in found if row.key.startswith(row.prefix) and row.key.endswith(row.suffix)]
    assert 300 < len(found) < 1700
    assert len(found) - len(literal) > 100
