"""Changes as rows, and what a format says of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from tidings import plugins
from tidings.events.keys import encoded_if_different
from tidings.events.schema import CHANGE
from tidings.formats import Context

AT = datetime(2026, 1, 17, 10, 30, 0, 123999, tzinfo=UTC)
RULE = "1"
CONFIG_JSON = '"MyNotificationConfig"'

_ROUTED = StructType([*CHANGE.fields, StructField("rule", StringType()), StructField("config_json", StringType())])


class Spoken(NamedTuple):
    body: str
    key: str | None
    attributes: str | None


def change(**given_values: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "window": 3,
        "seq": 255,
        "id": "01a1de8a-9d29-7d48-8214-9ba1bea0db51",
        "at": AT,
        "project": "50adea63-48b7-420e-b549-643fd90a5189",
        "bucket": "my-bucket",
        "key": "photos/lake.jpg",
        "event": "ObjectCreated:Put",
        "size": 1234,
        "etag": "d41d8cd98f00b204e9800998ecf8427e",
        "version_id": None,
        "principal": "AKIAIOSFODNN7EXAMPLE",
        "source_ip": "127.0.0.1",
        "request_id": "7C92CF1EEE8D99CC",
        "config": 1,
        "rules": "1",
        "bucket_id": "0195e2a0-1111-7222-8333-444455556666",
        "old_size": None,
        "content_type": None,
        "metadata": "{}",
        "copy_source": None,
        "request_at": datetime(2026, 1, 17, 10, 29, 59, 30999, tzinfo=UTC),
        "replaced": None,
        "trace": None,
        "catalog": None,
    } | given_values
    return values | {"encoded": encoded_if_different(values["key"])}


def routed(spark: SparkSession, *rows: dict[str, Any], config_json: str = CONFIG_JSON) -> DataFrame:
    """The changes, each with a rule that wants it."""
    wanted = [row | {"rule": RULE, "config_json": config_json} for row in rows]
    return spark.createDataFrame([tuple(row[name] for name in _ROUTED.fieldNames()) for row in wanted], _ROUTED)


def spoken(format_name: str, context: Context, changes: DataFrame) -> list[Spoken]:
    """What a format says of routed changes, in their order."""
    said = plugins.load("formats", format_name).message(context)
    nothing = F.lit(None).cast("string")
    columns = (said.body, nothing if said.key is None else said.key, nothing if said.attributes is None else said.attributes)
    named = [column.alias(name) for column, name in zip(columns, Spoken._fields, strict=True)]
    rows = sorted(changes.select("window", "seq", *named).collect(), key=lambda row: (row.window, row.seq))
    return [Spoken(row.body, row.key, row.attributes) for row in rows]
