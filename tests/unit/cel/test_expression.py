"""Expressions: what they see, what they answer, where they are wrong."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings

import catalog_events
from catalog_events import commit, created, stored
from tidings.cel import variables
from tidings.cel.expression import MAX_CHARACTERS, Expression, ExpressionFailed
from tidings.errors import ExpressionMistake
from tidings.events.catalog import CatalogEvent, Merge, Reference


@given(catalog_events.events)
@settings(max_examples=300, deadline=None)
def test_an_event_and_its_json_have_the_same_variables(event: CatalogEvent) -> None:
    read = json.loads(json.dumps(event.to_json()))
    assert variables.of_event(event) == variables.of_json(read, event.roles)


def test_every_variable_is_there_for_every_event_and_empty_where_it_means_nothing() -> None:
    seen = variables.of_event(created())
    assert list(seen) == list(variables.NAMES)
    assert (seen["contentKey"], seen["contentName"], seen["message"], seen["hashBefore"]) == ([], "", "", "")


def test_what_a_stored_content_shows() -> None:
    seen = variables.of_event(stored("sales", "eu", "orders", roles=("etl",)))
    assert seen == {
        "type": "CONTENT_STORED",
        "repository": "r",
        "reference": "main",
        "fullReference": "/refs/heads/main",
        "referenceType": "BRANCH",
        "createdBy": "ada",
        "hashBefore": "",
        "hashAfter": "",
        "contentName": "sales.eu.orders",
        "contentNamespace": "sales.eu",
        "contentType": "ICEBERG_TABLE",
        "contentId": "1",
        "message": "",
        "author": "",
        "committer": "",
        "sourceReference": "",
        "roles": ["etl"],
        "contentKey": ["sales", "eu", "orders"],
    }


def test_a_merge_is_about_its_target() -> None:
    source, target = Reference("BRANCH", "dev", "bb"), Reference("TAG", "v1", "cc")
    common = {name: getattr(created(), name) for name in ("id", "at", "sent_by", "created_by", "repository")}
    hashes = {"source_hash": "bb", "common_ancestor_hash": "aa", "hash_before": "aa", "hash_after": "cc"}
    seen = variables.of_event(Merge(**common, source_reference=source, target_reference=target, **hashes))
    assert (seen["reference"], seen["sourceReference"], seen["fullReference"]) == ("v1", "dev", "/refs/tags/v1")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("type == 'CONTENT_STORED'", True),
        ("type != 'CONTENT_STORED'", False),
        ("type in ['COMMIT', 'CONTENT_STORED']", True),
        ("reference == 'main' && contentNamespace.startsWith('sales.')", True),
        ("reference == 'dev' || 'etl' in roles", True),
        ("!('etl' in roles)", False),
        ("roles.exists(r, r.endsWith('l')) && roles.all(r, size(r) == 3)", True),
        ("contentName.matches('^sales[.].*s$')", True),
        ("contentName.contains('EU')", False),
        ("contentKey[1] == 'eu' ? size(contentKey) >= 3 : false", True),
        ("contentKey.size() > 3", False),
        ("contentName < 'z' && contentName >= 'sales'", True),
        ("event.type == type", True),
        ("{'k': contentType}['k'] == 'ICEBERG_TABLE'", True),
        ("message == ''", True),
        ("contentKey[9] == 'x' || reference == 'main'", True),  # CEL's own rule: what decides is enough
    ],
)
def test_an_expression_answers(text: str, answer: bool) -> None:
    event = stored("sales", "eu", "orders", roles=("etl",))
    expression = Expression(text)
    assert expression.matches(event) is answer
    assert expression.evaluate(variables.of_json(event.to_json(), event.roles)) is answer


def test_only_the_variables_that_are_needed_are_asked_for() -> None:
    assert Expression("type == 'COMMIT' && roles.exists(message, message == 'a')").variables == ("type", "roles")
    assert Expression("{'a': type}['a'] == 'b'").variables == ("type",)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("type == ", 1, 9, "missing at the end"),
        ("", 1, 1, "missing at the end"),
        ("typ == 'x'", 1, 1, "no variable typ; did you mean type?"),
        ("type == 'x' &&\n\tzzzzz", 2, 2, "no variable zzzzz; there are type, repository"),
        ("now() == type", 1, 4, "no function now"),
        ("type == 1", 1, 6, "string, int"),
        ("'é😀' == type && typ == 'a'", 1, 17, "no variable typ"),
        ("size(roles)", 1, 1, "gives a value of type int"),
        (" type", 1, 2, "gives a value of type string"),
        ("dyn(true)", 1, 1, "only known when it is evaluated"),
        ("true ? true : dyn(1)", 1, 1, "only known when it is evaluated"),
        ("type == 'a' || reference.matches('(')", 1, 34, "invalid regular expression"),
        ("namespace == 'a'", 1, 1, "contentNamespace"),
        ("type == 'a", 1, 9, "token recognition"),
        ("(" * 40 + "true" + ")" * 40, 1, 1, "nested too deeply"),
        ("true ||" + " " * MAX_CHARACTERS, 1, MAX_CHARACTERS + 1, "at most 4096 characters"),
        ("type == '\ud800'", 1, 10, "no character"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, line: int, column: int, words: str) -> None:
    with pytest.raises(ExpressionMistake) as told:
        Expression(text)
    assert (told.value.line, told.value.column) == (line, column)
    assert words in told.value.words
    again = pickle.loads(pickle.dumps(told.value))
    assert str(again) == str(told.value)


def test_a_caret_points_at_the_mistake_also_behind_tabs() -> None:
    with pytest.raises(ExpressionMistake) as told:
        Expression("type == 'x' &&\n\ttyp == 'y'")
    assert str(told.value).split("\n")[1:] == ["  \ttyp == 'y'", "  \t^"]


@pytest.mark.parametrize(
    "text", ["contentKey[9] == 'x'", "int(message) == 1", "roles.all(a, roles.all(b, a == b))", "{'a': type}[message] == 'b'"]
)
def test_an_expression_without_an_answer_says_so(text: str) -> None:
    event = replace(commit(roles=("a",) * 200), commit_meta={"message": "("})
    with pytest.raises(ExpressionFailed):
        Expression(text).matches(event)


@given(catalog_events.events)
@settings(max_examples=200, deadline=None)
def test_variables_arrive_in_the_library_as_they_are(event: CatalogEvent) -> None:
    values = variables.of_event(event)
    for name in variables.TEXTS:
        assert Expression(f"{name} == {_quoted(values[name])}").matches(event)
    for name in variables.LISTS:
        assert Expression(f"{name} == [{', '.join(map(_quoted, values[name]))}]").matches(event)


def _quoted(text: object) -> str:
    return json.dumps(text, ensure_ascii=False)
