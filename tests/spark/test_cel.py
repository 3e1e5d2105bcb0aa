"""A filter means the same in process, as Spark columns and over Arrow batches."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import catalog_events
from catalog_events import stored
from tidings.cel.expression import Expression, ExpressionFailed
from tidings.cel.translatable import why_not
from tidings.cel.types import types_of
from tidings.delivery import cel_batches, cel_columns
from tidings.events.catalog import CatalogEvent

AS_COLUMNS = [
    "type == 'COMMIT'",
    "type in ['CONTENT_STORED', 'CONTENT_REMOVED'] && reference == 'main'",
    "reference.startsWith('ma') || fullReference.startsWith('/refs/tags/')",
    "referenceType == 'TAG'",
    "contentName.startsWith('sales.')",
    "contentNamespace == 'sales'",
    "contentKey[0] == 'sales'",
    "contentKey[size(contentKey) - 1] == 't'",
    "size(contentKey) > 2 && contentKey[2] != 'eu'",
    "size(contentKey) > 2 ? contentKey[2] == 'eu' : contentKey[5] == 'eu'",
    "contentKey[9] == 'x' || type != ''",
    "contentKey[9] == 'x' && false",
    "!(contentKey[9] == 'x')",
    "'sales' in contentKey",
    "'ada' in roles",
    "roles.exists(role, role.startsWith('a'))",
    "roles.all(role, role != 'dev')",
    "roles.exists(role, role == createdBy || reference.contains(role) || role == type)",
    "contentKey.all(part, part != repository && part != referenceType && !fullReference.endsWith(part))",
    "createdBy == '' || createdBy == author",
    "message.contains('main') || committer.endsWith('a')",
    "message.matches('^ma') || author.matches('da$') || author.matches('^ada$')",
    "contentName.matches('ales') || contentName.matches('\\\\.t$')",
    "size(contentKey) + 2147483647 > size(message) + 2147483646",
    "contentKey[size(contentKey) + 2147483647] == 'x'",
    "size(message) >= 4",
    "message < 'main' || message > 'sales'",
    "hashBefore != hashAfter",
    "contentType == 'main' && contentId == ''",
    "sourceReference == reference",
    "reference + '.' + message == 'main.dev'",
    "contentKey == ['sales', 'eu']",
    "repository == 'main' ? true : false",
    "message == 'é\\n\\'\"\\\\'",
    "true",
    "reference in []",
]
OVER_BATCHES = {
    "size(contentKey) * 2 > 3": "function *",
    "contentKey.map(part, part + '!').exists(part, part == 'eu!')": "over something else",
    "roles.filter(role, role != '').size() == 1": "macro filter",
    "contentKey.exists_one(part, part == 'eu')": "macro exists_one",
    "message.matches('(a|b)+c')": "pattern",
    "message.matches('a*a*a*b')": "pattern",
    "message.matches('a?a?aa')": "pattern",
    "message.matches(r'\\w*x')": "pattern",
    "message.matches('d.$')": "pattern",
    "contentName.matches('^(sales|eu)[.].*$')": "pattern",
    "contentKey.exists(part, roles.exists(role, role == part))": "macro in a macro",
    "['a', 'b'].exists(part, part in roles)": "over something else",
    "contentKey.exists(part, part in roles)": "condition names roles",
    "roles.exists(role, message == role + '0' || role == 'x')": "condition names message",
    "roles.all(role, type == role || !(contentName == role))": "condition names contentName",
    " || ".join(f"message == '{number}'" for number in range(13)): "more than 12 references",
    " || ".join(f"contentNamespace == '{number}'" for number in range(7)): "more than 12 references",
    f"{'(' * 9}type == 'x'{' ? true : false)' * 9}": "200 parts",
    "'a' in [contentKey[9], 'a']": "not known before",
    "size([contentKey[9]]) == 1": "not known before",
    " || ".join(f"type == '{number}'" for number in range(100)): "200 parts",
    "message.matches('^a|b')": "pattern",
    "{'a': 1}.size() == 1": "map",
    "int(size(message)) == 4": "function int",
}


def plain(expression: Expression, event: CatalogEvent) -> bool:
    try:
        return expression.matches(event)
    except ExpressionFailed:
        return False


def row(event: CatalogEvent) -> dict[str, Any]:
    """The change of an event, as far as filters see it."""
    return {
        "event": f"nessie:{event.type}",
        "project": "p",
        "bucket": event.repository,
        "key": event.about.full_name,
        "principal": event.created_by,
        "catalog": event.to_text(),
        "metadata": json.dumps(event.roles) if event.roles else None,
    }


SCHEMA = "event string, project string, bucket string, key string, principal string, catalog string, metadata string"


def by_columns(spark: SparkSession, events: Sequence[CatalogEvent], texts: Sequence[str]) -> list[list[bool]]:
    frame = spark.createDataFrame([tuple(row(event).values()) for event in events], SCHEMA).coalesce(1)
    said = cel_columns.with_variables(frame)
    return [list(found) for found in said.select(*map(cel_columns.column, texts)).collect()]


def by_batches(events: Sequence[CatalogEvent], text: str) -> list[bool]:
    rows = [row(event) | {"filter": text, "rule": "1", "seq": n} for n, event in enumerate(events)]
    left = {*cel_batches.matches(pa.RecordBatch.from_pylist(rows), ())[0].column("seq").to_pylist()}
    return [n in left for n in range(len(events))]


@given(events=st.lists(catalog_events.events, min_size=300, max_size=300))
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_way_gives_the_same_answer(spark: SparkSession, events: list[CatalogEvent]) -> None:
    events = [replace(event, repository=event.repository or "r") for event in events]
    expressions = [Expression(text) for text in AS_COLUMNS]
    expected = [[plain(each, event) for each in expressions] for event in events]
    assert by_columns(spark, events, AS_COLUMNS) == expected
    for number, text in enumerate(AS_COLUMNS):
        assert by_batches(events, text) == [answers[number] for answers in expected], text


@pytest.mark.parametrize("number", [20, pytest.param(60, marks=pytest.mark.chaos)])  # Spark compiles each of them
def test_random_expressions_give_the_same_answer(spark: SparkSession, number: int) -> None:
    dice = random.Random(20261116)
    texts = [made(dice, 3) for _ in range(number)]
    events = _examples()
    expressions = [Expression(text) for text in texts]
    assert by_columns(spark, events, texts) == [[plain(each, event) for each in expressions] for event in events]


def made(dice: random.Random, depth: int) -> str:
    if depth == 0:
        return dice.choice([text for text in AS_COLUMNS if "?" not in text])
    one, two = made(dice, depth - 1), made(dice, dice.randrange(depth))
    return dice.choice([f"({one}) && ({two})", f"({one}) || ({two})", f"!({one})", f"({one}) ? ({two}) : ({one})"])


def _examples() -> list[CatalogEvent]:
    found: list[CatalogEvent] = []

    @given(catalog_events.events)
    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    def collect(event: CatalogEvent) -> None:
        found.append(event)

    collect()
    return found


def test_an_event_of_a_type_that_an_expression_cannot_want_is_no_match() -> None:
    dice, events, ruled_out = random.Random(20261117), _examples(), 0
    for text in [*AS_COLUMNS, *(made(dice, 3) for _ in range(200))]:
        types, expression = types_of(text), Expression(text)
        others = [event for event in events if types is not None and event.type not in types]
        assert [event for event in others if plain(expression, event)] == [], text
        ruled_out += len(others)
    assert ruled_out > 1000


@pytest.mark.parametrize(
    ("text", "types"),
    {
        "type == 'COMMIT'": {"COMMIT"},
        "'COMMIT' == type && message == 'x'": {"COMMIT"},
        "type in ['MERGE', 'TRANSPLANT'] && (type == 'MERGE' || type == 'COMMIT')": {"MERGE"},
        "type == 'COMMIT' && type == 'MERGE'": set(),
        "type == 'COMMIT' || message == 'x'": None,
        "type in ['COMMIT', message]": None,
        "!(type == 'COMMIT')": None,
        "type != 'COMMIT'": None,
        "message == 'COMMIT'": None,
    }.items(),
)
def test_the_types_that_an_expression_can_want(text: str, types: set[str] | None) -> None:
    assert types_of(text) == types


@pytest.mark.parametrize("text", [*AS_COLUMNS, " || ".join(f"message == '{number}'" for number in range(12))])
def test_what_can_be_columns_is(text: str) -> None:
    assert why_not(text) is None


@pytest.mark.parametrize(("text", "reason"), OVER_BATCHES.items())
def test_what_cannot_is_evaluated_and_says_why(text: str, reason: str) -> None:
    assert reason in (why_not(text) or "")
    event = stored("sales", "eu", roles=("a",))
    assert by_batches([event], text) == [plain(Expression(text), event)]


def parses_in_loops(spark: SparkSession, text: str) -> int:
    """How often the optimized plan parses the event's JSON inside of a loop."""
    frame = spark.createDataFrame([], SCHEMA)
    wanted = cel_columns.with_variables(frame).where(cel_columns.column(text))
    plan = wanted._jdf.queryExecution().optimizedPlan().toString()
    return sum(_closed(plan[found.end() :]).count("from_json(") for found in re.finditer(r"lambdafunction\(", plan))


def _closed(text: str) -> str:
    """Up to the parenthesis that closes what is open before."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:place]
    raise AssertionError(text)


@pytest.mark.parametrize("text", [text for text in AS_COLUMNS if ".exists(" in text or ".all(" in text])
def test_a_loop_among_columns_does_not_parse_the_event_for_each_element(spark: SparkSession, text: str) -> None:
    assert parses_in_loops(spark, text) == 0


def test_a_loop_that_names_the_event_s_json_would_parse_it_for_each_element(spark: SparkSession) -> None:
    assert parses_in_loops(spark, "contentKey.exists(part, part in roles)") >= 1
    assert parses_in_loops(spark, "roles.exists(role, message == role || author == role)") >= 2


def test_a_filter_is_tried_before_everybody_s_plan_has_it(spark: SparkSession) -> None:
    assert cel_columns.works(spark, AS_COLUMNS[0])


def test_only_the_filters_that_are_no_columns_are_evaluated_over_batches() -> None:
    rows = [
        row(stored("sales")) | {"filter": text, "n": n}
        for n, text in enumerate(["type == ''", "reference == 'dev'", "reference == 'main'", None])
    ]
    left, unanswered = cel_batches.matches(pa.RecordBatch.from_pylist(rows), {"type == ''"})
    assert not unanswered
    assert left.column("n").to_pylist() == [0, 2, 3]
    assert left.column("filter").to_pylist() == ["type == ''", None, None]
