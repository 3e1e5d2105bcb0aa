"""Which rules want a change."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from tidings.rules import columns

RULE = StructType(
    [
        StructField("rule", StringType()),
        StructField("lane", LongType()),
        StructField("config_json", StringType()),
        StructField("events", ArrayType(StringType())),
        StructField("prefix", StringType()),
        StructField("suffix", StringType()),
        StructField("start_window", LongType()),
        StructField("start_seq", LongType()),
    ]
)
"""A rule as it is now, with the position from which this round owes changes to its lane."""


def route(changes: DataFrame, rules: DataFrame) -> DataFrame:
    """One row for each change and rule that wants it: the rules that matched when it was written, judged again as they are now.

    A rule that was deleted since drops out, one that was edited applies (seed 000, the secondary filter).
    """
    return (
        changes.select("*", F.explode(F.split("rules", ",")).alias("rule"))
        .join(F.broadcast(rules), on="rule", how="inner")
        .where(_owed() & columns.matches())
        .drop("rules", "events", "prefix", "suffix", "start_window", "start_seq")
    )


def _owed() -> Column:
    """The change lies after the place from which its lane is served."""
    later_window = F.col("window") > F.col("start_window")
    later_in_window = (F.col("window") == F.col("start_window")) & (F.col("seq") > F.col("start_seq"))
    return later_window | later_in_window
