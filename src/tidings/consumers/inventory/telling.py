"""What messages say, found out where they were read: Spark's workers write the rows as PostgreSQL takes them.

Our own source tells in the worker that reads, so that the messages themselves never go through Spark; what Spark's connector
reads is told in a worker of its own.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tidings.consumers.inventory.merging import COLUMNS
from tidings.consumers.inventory.offsets import Offsets
from tidings.consumers.inventory.reading import Range
from tidings.consumers.inventory.rules import Row, TestEvent, read
from tidings.consumers.inventory.source import KafkaSource
from tidings.consumers.rows_as_csv import as_csv

_KEPT_REFUSED = 100
"""So many messages of a piece are kept at most that could not be used: enough to see why."""
_KEPT_BYTES = 1024
_TOLD = StructType(
    [
        StructField("rows", BinaryType()),
        StructField("refused", StringType()),
        StructField("counts", StringType()),
        StructField("offsets", StringType()),
    ]
)
_ARROW = to_arrow_schema(_TOLD, timezone="UTC")


class Rejected(NamedTuple):
    topic: str
    part: int
    offset: int
    reason: str
    body: bytes | None


class Told(NamedTuple):
    """What a piece of a batch comes to: rows as CSV, some of what was refused, counts, and the offsets behind its messages."""

    rows: bytes
    refused: list[Rejected]
    counts: Counter[str]
    offsets: Offsets


class ToldSource(KafkaSource):
    """The topics, told: a few large rows, which `pieces` reads."""

    @classmethod
    def name(cls) -> str:
        return "tidings-inventory"

    def schema(self) -> StructType:
        return _TOLD

    @staticmethod
    def batch(range_: Range, messages: Sequence[Any]) -> pa.RecordBatch:
        return _said((each.value(), range_.topic, range_.part, each.offset(), _sequencer(each.headers())) for each in messages)


def told(messages: DataFrame) -> DataFrame:
    """The same of messages as Spark's connector has them."""
    sequencer = F.get(F.filter("headers", lambda header: header.key == "sequencer"), F.lit(0)).value
    needed = messages.select("value", "topic", "partition", "offset", sequencer.alias("sequencer"))
    return needed.mapInArrow(_told, _TOLD)


def pieces(found: DataFrame) -> list[Told]:
    """Runs the query."""
    answers = []
    for row in found.collect():
        refused = [
            Rejected(topic, part, offset, reason, None if body is None else b64decode(body))
            for topic, part, offset, reason, body in json.loads(row.refused)
        ]
        offsets = {topic: {int(part): at for part, at in parts.items()} for topic, parts in json.loads(row.offsets).items()}
        answers.append(Told(bytes(row.rows), refused, Counter(json.loads(row.counts)), offsets))
    return answers


def _told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            yield _said(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _sequencer(headers: Sequence[tuple[str, str | bytes | None]] | None) -> str | bytes | None:
    """Of headers that bear the same name the first counts."""
    return next((value for name, value in headers or () if name == "sequencer"), None)


def _said(messages: Iterable[tuple[Any, str, int, int, Any]]) -> pa.RecordBatch:
    """Of messages by value, topic, partition, offset and header."""
    rows: list[Row] = []
    refused: list[tuple[Any, ...]] = []
    behind: dict[str, dict[int, int]] = {}
    counts = Counter({"events": 0, "tests": 0, "refused": 0})
    for value, topic, part, offset, sequencer in messages:
        reached = behind.setdefault(topic, {})
        reached[part] = max(offset + 1, reached.get(part, 0))
        found = read(value, sequencer.decode("ascii", "replace") if isinstance(sequencer, bytes) else sequencer)
        if isinstance(found, Row):
            rows.append(found)
        elif isinstance(found, TestEvent):
            counts["tests"] += 1
        else:
            counts["refused"] += 1
            if len(refused) < _KEPT_REFUSED:
                kept = None if value is None else b64encode(value[:_KEPT_BYTES]).decode()
                refused.append((topic, part, offset, found.reason, kept))
    counts["events"] = len(rows)
    answer = {
        "rows": as_csv(rows, COLUMNS),
        "refused": json.dumps(refused),
        "counts": json.dumps(counts),
        "offsets": json.dumps(behind),
    }
    return pa.RecordBatch.from_pylist([answer], schema=_ARROW)
