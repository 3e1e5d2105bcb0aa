"""What the messages say."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tidings import plugins
from tidings.formats import Context

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
"""A message on its way. `slot` stands for its bucket and key: messages of one slot never overtake each other. `lane` is null
where there is no rule for it any more."""


def render(routed: DataFrame, format_name: str, context: Context) -> DataFrame:
    """One message for each routed change. Without a rule there is nothing to say; the bucket is named in its place."""
    body = plugins.load("formats", format_name).message(context).body
    return routed.select(
        "lane",
        F.xxhash64("project", "bucket", "key").alias("slot"),
        "window",
        "seq",
        F.concat_ws(".", "id", "rule").alias("id"),
        F.coalesce(body, F.concat_ws("/", "project", "bucket")).alias("body"),
    )
