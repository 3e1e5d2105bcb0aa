"""Kafka topics as a Spark data source, over librdkafka: `spark.read` and `spark.readStream.format("tidings-kafka")`.

Register it with `spark.dataSource.register(KafkaSource)`. Its columns are those of Spark's own connector with headers. The
cluster is one that the settings of the process name (`kafka.clusters`), with its secrets: options show up in plans.

Options
    cluster    the cluster's name in the settings (default `local`)
    topics     the topics, separated by commas
    positions  JSON, where to begin: `{"topic": {"0": 17}}`; a partition that is not named is read from its oldest message
    max_rows   streaming: the most messages in one micro-batch (default 50,000)

A partition of Kafka is a partition of Spark's. The offset is what `positions` has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidings import settings
from tidings.consumers.inventory import reading
from tidings.consumers.inventory.offsets import Ends, Offsets
from tidings.delivery.settings import KafkaCluster
from tidings.errors import OperatorError

NAME = "tidings-kafka"
_Batch = Callable[[reading.Range, Sequence[Any]], pa.RecordBatch]
_MAX_ROWS = 50_000

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))),
    ]
)

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_ARROW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(_HEADER)),
    ]
)


class KafkaSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        unknown = set(options) - {"cluster", "topics", "positions", "max_rows"}
        if unknown:
            raise OperatorError(
                f"Unknown option(s) {', '.join(sorted(unknown))}: there are cluster, topics, positions, max_rows."
            )
        if not options.get("topics"):
            raise OperatorError("The option topics is missing: it names the topics to read, separated by commas.")

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return RangeReader(_Wanted(self.options), self.batch)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        return StreamReader(_Wanted(self.options), self.batch)

    @staticmethod
    def batch(range_: reading.Range, messages: Sequence[Any]) -> pa.RecordBatch:
        """What messages of a range, as librdkafka gives them, are for Spark. In a worker."""
        return _batch(range_, messages)


class _Wanted:
    """The options, read. The cluster is looked up where it is used: its secrets are not pickled."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.name = options.get("cluster", "local")
        self.topics = [topic.strip() for topic in options["topics"].split(",")]
        self.positions = from_json(json.loads(options.get("positions", "{}")))
        self.max_rows = int(options.get("max_rows", _MAX_ROWS))

    def cluster(self) -> KafkaCluster:
        return reading.cluster_of(settings.load(), self.name)

    def ends(self) -> dict[str, dict[int, Ends]]:
        return reading.ends(self.cluster(), self.topics)


class Part(InputPartition):
    """A range of one partition of Kafka's."""

    def __init__(self, range_: reading.Range) -> None:
        super().__init__(tuple(range_))
        self.range = range_


class RangeReader(DataSourceReader):
    """From the positions up to what there is when the query is planned."""

    def __init__(self, wanted: _Wanted, batch: _Batch) -> None:
        self._wanted = wanted
        self._batch = batch

    def partitions(self) -> Sequence[InputPartition]:
        ends = self._wanted.ends()
        return _parts(self._wanted.positions, _highs(ends), ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._wanted, partition, self._batch)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches without end."""

    def __init__(self, wanted: _Wanted, batch: _Batch) -> None:
        self._wanted = wanted
        self._batch = batch
        self._target: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        return to_json(self._wanted.positions)  # called twice and not logged, so it must not depend on the moment

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._wanted.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = _highs(self._wanted.ends())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        ends = self._wanted.ends()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begin = from_json(start)
        end = shared_out(begin, ends, self._target, most)
        return to_json(end) if end != begin else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _parts(from_json(start), from_json(end), self._wanted.ends())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._wanted, partition, self._batch)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: whoever reads keeps the position."""


def shared_out(begin: Offsets, ends: Mapping[str, Mapping[int, Ends]], target: Offsets | None, most: int | None) -> Offsets:
    """How far to read from `begin`: `most` messages, of each partition as large a share of its own as of the others."""
    left: dict[tuple[str, int], tuple[int, int]] = {}
    end: Offsets = {topic: dict(parts) for topic, parts in begin.items()}
    for topic, parts in ends.items():
        for part, (low, high) in parts.items():
            upto = high if target is None else min(high, target.get(topic, {}).get(part, low))
            start = max(low, begin.get(topic, {}).get(part, low))
            if upto > start:
                left[topic, part] = (start, upto)
    total = sum(upto - start for start, upto in left.values())
    for (topic, part), (start, upto) in left.items():
        share = upto - start if most is None or total <= most else max(1, (upto - start) * most // total)
        end.setdefault(topic, {})[part] = start + share
    return end


def to_json(offsets: Offsets) -> dict[str, Any]:
    return {topic: {str(part): offset for part, offset in parts.items()} for topic, parts in offsets.items()}


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {topic: {int(part): int(offset) for part, offset in parts.items()} for topic, parts in offsets.items()}


def _highs(ends: Mapping[str, Mapping[int, Ends]]) -> Offsets:
    return {topic: {part: each.high for part, each in parts.items()} for topic, parts in ends.items()}


def _parts(start: Offsets, end: Offsets, ends: Mapping[str, Mapping[int, Ends]]) -> list[Part]:
    parts = []
    for topic, wanted in end.items():
        for part, upto in wanted.items():
            begin = start.get(topic, {}).get(part)
            if begin is None:
                begin = ends[topic][part].low
            if begin < upto:
                parts.append(Part(reading.Range(topic, part, begin, upto)))
    return parts


def _read(wanted: _Wanted, partition: InputPartition, batch: _Batch) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, Part)
    for messages in reading.read(wanted.cluster(), partition.range):
        yield batch(partition.range, messages)


def _batch(range_: reading.Range, messages: Sequence[Any]) -> pa.RecordBatch:
    rows = len(messages)
    times = [message.timestamp() for message in messages]
    headers = [message.headers() or () for message in messages]
    places, flat = [0], [pair for each in headers for pair in each]
    for each in headers:
        places.append(places[-1] + len(each))
    pairs = pa.StructArray.from_arrays(
        [pa.array([name for name, _ in flat], pa.string()), pa.array([_bytes(value) for _, value in flat], pa.binary())],
        fields=list(_HEADER),
    )
    columns = [
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.repeat(pa.scalar(range_.topic), rows),
        pa.repeat(pa.scalar(range_.part, pa.int32()), rows),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([moment * 1000 if kind else None for kind, moment in times], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array([kind - 1 for kind, _ in times], pa.int32()),  # as Spark's connector numbers them: -1 is none
        pa.ListArray.from_arrays(pa.array(places, pa.int32()), pairs),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
