"""Which rules want a change."""

from __future__ import annotations

from pyspark.sql import DataFrame
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
    ]
)
"""A rule as it is now."""


def route(changes: DataFrame, rules: DataFrame, literal: bool = False) -> DataFrame:
    """One row for each change and rule that wants it: the rules that matched when it was written, judged again as they are.

    One that was edited since applies (seed 000, the secondary filter). One that was deleted leaves a row without a lane.
    """
    no_rule = F.col("lane").isNull()
    return (
        changes.select("*", F.explode(F.split("rules", ",")).alias("rule"))
        .join(F.broadcast(rules), on="rule", how="left")
        .where(no_rule | columns.matches(literal))
        .drop("rules", "events", "prefix", "suffix")
    )
