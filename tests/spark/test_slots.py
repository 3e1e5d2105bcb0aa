"""Task slots: a stream that has too few says so instead of waiting for ever."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tidings.delivery import session, slots
from tidings.errors import OperatorError


def test_there_are_slots_for_rounds_and_for_those_who_catch_up(spark: SparkSession) -> None:
    assert slots.gather(spark, 1 + session.FOR_CATCH_UP) >= 3


def test_too_few_slots_are_told_in_one_sentence(spark: SparkSession) -> None:
    has = slots.slots(spark)
    with pytest.raises(OperatorError, match=rf"{has} task slots, and it needs {has + 1} at least: .*spark\.cores\.max"):
        slots.gather(spark, has + 1, seconds=0.5)
