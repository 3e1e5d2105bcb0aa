"""What the messages say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tidings import plugins
from tidings.formats import Context, Optional, Plain, Said, Text, to_json
from tidings.telemetry import TRACEPARENT_AT, TRACESTATE_AT

IN_HEADERS = "+headers"
"""At the end of a format's name: its transport has headers, in which the format may speak."""

MESSAGE = StructType(
    [
        StructField("lane", LongType()),
        StructField("slot", LongType()),
        StructField("window", LongType()),
        StructField("seq", LongType()),
        StructField("at", LongType()),
        StructField("id", StringType()),
        StructField("body", StringType()),
        StructField("key", StringType()),
        StructField("attributes", StringType()),
        StructField("project", StringType()),
    ]
)
"""A message on its way. `slot` stands for its bucket and key: messages of one slot never overtake each other. `at` is when its
change was written, in microseconds. `lane` is null where there is no rule for it any more, and where the attributes are an
`Unanswered`; `body` is null where its format is not among those of the plan."""


def render(routed: DataFrame, formats: Iterable[str], context: Context, traced: bool = False) -> DataFrame:
    """One message for each routed change. Without a rule there is nothing to say; the bucket is named in its place.

    With `traced`, one whose change belongs to a trace says so among its attributes.
    """
    said = {name: _said(name, context) for name in formats}
    attributes = _chosen(said, lambda one: one.attributes)
    nobody = F.when(F.col("lane").isNull(), F.concat_ws("/", "project", "bucket"))
    return routed.select(
        "lane",
        F.xxhash64("project", "bucket", "key").alias("slot"),
        "window",
        "seq",
        F.unix_micros("at").alias("at"),
        F.concat_ws(".", "id", "rule").alias("id"),
        F.coalesce(_chosen(said, lambda one: one.body), nobody).alias("body"),
        _chosen(said, lambda one: one.key).alias("key"),
        F.when(F.col("lane").isNull(), F.col("config_json"))
        .otherwise(_in_trace(attributes) if traced else attributes)
        .alias("attributes"),
        "project",
    )


def _in_trace(attributes: Column) -> Column:
    """The attributes of a message, those of its trace before what the format says."""
    parent, state = F.substring("trace", *TRACEPARENT_AT), F.nullif(F.substring("trace", *TRACESTATE_AT), F.lit(""))
    of_trace = to_json({"traceparent": Plain(parent), "tracestate": Optional(Text(state))})
    joined = F.concat(F.rtrim(of_trace, F.lit("}")), F.lit(","), F.ltrim(F.nullif(attributes, F.lit("{}")), F.lit("{")))
    return F.when(F.col("trace").isNull(), attributes).otherwise(F.coalesce(joined, of_trace))


def details_of(formats: Iterable[str]) -> set[str]:
    """The details of a change that these formats speak of."""
    loaded = (plugins.load("formats", name.removesuffix(IN_HEADERS)) for name in formats)
    return {detail for format_ in loaded for detail in getattr(format_, "DETAILS", ())}


def _said(name: str, context: Context) -> Said:
    said: Said = plugins.load("formats", name.removesuffix(IN_HEADERS)).message(
        replace(context, binary=name.endswith(IN_HEADERS))
    )
    return said


def _chosen(said: dict[str, Said], part: Callable[[Said], Column | None]) -> Column:
    """The part of the format that a row asks for; null where that has none."""
    chosen = F.lit(None).cast("string")
    for name, one in said.items():
        if (column := part(one)) is not None:
            chosen = F.when(F.col("format") == name, column).otherwise(chosen)
    return chosen
