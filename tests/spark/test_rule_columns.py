"""The rules as Spark columns say what the Python matcher says."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType
from pyspark.testing import assertDataFrameEqual

from tidings.events.keys import encoded_if_different
from tidings.rules import columns
from tidings.rules.match import matches
from truth_table import TABLES, Row, random_rows

TEXT = StringType()
QUESTION = StructType(
    [
        StructField("number", LongType()),
        StructField("event", TEXT),
        StructField("key", TEXT),
        StructField("encoded", TEXT),
        StructField("events", ArrayType(TEXT)),
        StructField("prefix", TEXT),
        StructField("suffix", TEXT),
    ]
)
ANSWER = StructType([StructField("number", LongType()), StructField("wanted", BooleanType())])


def asked(spark: SparkSession, rows: Iterable[Row], unset: str | None, literal: bool = False) -> DataFrame:
    """The rows as the router sees them. A filter that is not set arrives as `unset`."""
    values = [
        (
            n,
            row.event,
            row.key,
            encoded_if_different(row.key),
            list(row.events),
            row.prefix or unset,
            row.suffix or unset,
        )
        for n, row in enumerate(rows)
    ]
    questions = spark.createDataFrame(values, QUESTION)
    return questions.select("number", columns.matches(literal).alias("wanted"))


@pytest.mark.parametrize("unset", ["", None], ids=["empty", "null"])
@pytest.mark.parametrize("literal", TABLES)
def test_the_columns_answer_as_the_truth_table_says(spark: SparkSession, unset: str | None, literal: bool) -> None:
    rows = TABLES[literal]
    expected = spark.createDataFrame([(number, row.expected) for number, row in enumerate(rows)], ANSWER)
    assertDataFrameEqual(asked(spark, rows, unset, literal), expected)


@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller seed is not a simpler batch
)
@given(st.integers(0, 2**32), st.sampled_from(["", None]), st.booleans())
def test_the_columns_and_the_python_matcher_agree_on_random_rows(
    spark: SparkSession, seed: int, unset: str | None, literal: bool
) -> None:
    rows = list(random_rows(seed, 500))
    answers: dict[int, bool] = dict(asked(spark, rows, unset, literal).collect())
    differ = [
        row.question
        for number, row in enumerate(rows)
        if answers[number] is not matches(row.events, row.prefix, row.suffix, event=row.event, key=row.key, literal=literal)
    ]
    assert not differ


def test_the_columns_need_no_python_worker(spark: SparkSession) -> None:
    plan = asked(spark, TABLES[False], None)._jdf.queryExecution().executedPlan().toString()
    assert "startswith" in plan.lower()
    assert "EvalPython" not in plan
