"""Filters: what each predicate asks, and that combined ones mean what Python means."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import catalog_events
from catalog_events import MAIN, commit, created, stored
from tidings.errors import ExpressionMistake
from tidings.events.catalog import TYPES, CatalogEvent
from tidings.subscribers import filters
from tidings.subscribers.filters import EventFilter, FilterFailed

Truth = Callable[[CatalogEvent], bool]


def test_a_type_is_asked_for_by_its_name() -> None:
    assert filters.types("COMMIT", "MERGE")(commit())
    assert not filters.types("MERGE")(commit())


def test_a_type_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"no event type COMIT; there are COMMIT, CONTENT_REMOVED"):
        filters.types("COMMIT", "COMIT")


def test_a_reference_has_a_short_and_a_full_name() -> None:
    assert filters.references("main")(created())
    assert filters.references("/refs/heads/main")(created())
    assert not filters.references("/refs/tags/main", "mai")(created())


def test_a_content_is_named_with_dots_or_by_its_elements() -> None:
    assert filters.contents("sales.eu.orders")(stored("sales", "eu", "orders"))
    assert filters.contents(("a.b", "c"))(stored("a.b", "c"))
    assert not filters.contents("a.b.c")(stored("a.b", "c"))
    assert not filters.contents("sales")(commit())


def test_a_namespace_has_all_that_is_below_it_and_not_itself() -> None:
    sales = filters.namespaces("sales")
    assert sales(stored("sales", "orders"))
    assert sales(stored("sales", "eu", "orders"))
    assert not sales(stored("sales"))
    assert not sales(stored("salesmen", "orders"))
    assert not sales(stored("x", "sales", "orders"))
    assert not sales(commit())


def test_one_of_several_roles_is_enough() -> None:
    assert filters.roles("etl", "admin")(commit(roles=("reader", "etl")))
    assert not filters.roles("etl")(commit())


def test_repositories_are_asked_for_by_id() -> None:
    assert filters.repositories("r")(commit())
    assert not filters.repositories("q")(commit())


def test_a_filter_says_what_it_asks() -> None:
    asked = filters.types("COMMIT") & ~(filters.references("main") | filters.cel("'etl' in roles"))
    assert repr(asked) == """(types('COMMIT') & ~(references('main') | cel("'etl' in roles")))"""


def test_an_expression_is_a_filter_too_and_a_broken_one_is_refused() -> None:
    assert (filters.cel("reference == 'main'") & filters.types("COMMIT"))(commit())
    with pytest.raises(ExpressionMistake, match="line 1, column 1"):
        filters.cel("referenc == 'main'")


def test_what_an_expression_cannot_answer_is_no_yes_by_turning_it_round() -> None:
    fails = filters.cel("contentKey[5] == 'x'")
    for each in (fails, ~fails, filters.everything() & fails, filters.nothing() | ~fails):
        with pytest.raises(FilterFailed, match="Index"):
            each(commit())


_leaves: st.SearchStrategy[tuple[EventFilter, Truth]] = st.one_of(
    st.just((filters.everything(), lambda _: True)),
    st.just((filters.nothing(), lambda _: False)),
    st.sampled_from([kind.type for kind in TYPES]).map(lambda name: (filters.types(name), lambda event: event.type == name)),
    catalog_events.words.map(lambda word: (filters.references(word), lambda event: event.about.name == word)),
    catalog_events.words.map(lambda word: (filters.roles(word), lambda event: word in event.roles)),
    catalog_events.words.map(lambda word: (filters.repositories(word, "q"), lambda event: event.repository in (word, "q"))),
    st.lists(catalog_events.words, min_size=1, max_size=2)
    .map(tuple)
    .map(lambda key: (filters.contents(key), lambda event: getattr(event, "content_key", None) == key)),
    st.lists(catalog_events.words, min_size=1, max_size=2)
    .map(tuple)
    .map(lambda key: (filters.namespaces(key), lambda event: _is_inside(getattr(event, "content_key", ()), key))),
    st.just((filters.cel("createdBy == 'ada'"), lambda event: event.created_by == "ada")),
)


def _is_inside(key: tuple[str, ...], namespace: tuple[str, ...]) -> bool:
    return len(key) > len(namespace) and key[: len(namespace)] == namespace


def _both(pair: tuple[tuple[EventFilter, Truth], tuple[EventFilter, Truth]]) -> list[tuple[EventFilter, Truth]]:
    (one, plain_one), (other, plain_other) = pair
    return [
        (one & other, lambda event: plain_one(event) and plain_other(event)),
        (one | other, lambda event: plain_one(event) or plain_other(event)),
        (~one, lambda event: not plain_one(event)),
    ]


_filters = st.recursive(_leaves, lambda inner: st.tuples(inner, inner).map(_both).flatmap(st.sampled_from), max_leaves=8)


@given(_filters, st.lists(catalog_events.events, min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_combined_filters_mean_what_python_means(pair: tuple[EventFilter, Truth], events: list[CatalogEvent]) -> None:
    asked, truth = pair
    for event in events:
        assert asked(event) is truth(event), asked


def test_the_events_of_the_tests_are_on_main() -> None:
    assert commit().about is MAIN
