"""What the messages say."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tidings import plugins

MESSAGE = StructType(
    [
        StructField("lane", LongType()),
        StructField("slot", LongType()),
        StructField("window", LongType()),
        StructField("seq", LongType()),
        StructField("id", StringType()),
        StructField("body", StringType()),
    ]
)
"""A message on its way. `slot` stands for its bucket and key: messages of one slot never overtake each other."""


def render(routed: DataFrame, format_name: str, region: str) -> DataFrame:
    """One message for each routed change."""
    body = plugins.load("formats", format_name).body(region)
    return routed.select(
        "lane",
        F.xxhash64("project", "bucket", "key").alias("slot"),
        "window",
        "seq",
        F.concat_ws(".", "id", "rule").alias("id"),
        body.alias("body"),
    )
