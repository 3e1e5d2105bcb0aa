"""The change stream as a Spark data source: `spark.read.format("tidings")` and `spark.readStream.format("tidings")`.

Register it with `spark.dataSource.register(TidingsSource)`. The database is the one in the settings of the process
(TIDINGS_DATABASE__URL), never an option: options show up in plans.

Options
    from, to   a position (`12/3456`) or a time (ISO 8601): (from, to]. Default: everything that is kept
    parts      how many tasks read side by side (default: one for each core); each holds whole keys in order of position
    max_rows   streaming: the most changes in one micro-batch (default 10,000)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import Connection
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidings import settings
from tidings.changestream import reader, windows
from tidings.changestream.positions import bound
from tidings.errors import OperatorError
from tidings.events.positions import START, Position
from tidings.events.schema import CHANGE

_MAX_ROWS = 10_000


class TidingsSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        unknown = set(options) - {"from", "to", "parts", "max_rows"}
        if unknown:
            raise OperatorError(f"Unknown option(s) {', '.join(sorted(unknown))}: there are from, to, parts and max_rows.")

    @classmethod
    def name(cls) -> str:
        return "tidings"

    def schema(self) -> StructType:
        return CHANGE

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return RangeReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        return StreamReader(self.options)


class Part(InputPartition):
    """One of `parts` readers of the same slices."""

    def __init__(self, slices: Sequence[reader.Slice], part: int, parts: int) -> None:
        super().__init__(part)
        self.slices = slices
        self.parts = parts


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, Part)
    return reader.read(settings.load().database_url, partition.slices, partition.value, partition.parts)


def _connect() -> Connection:
    return psycopg.connect(settings.load().database_url, autocommit=True)


def _parts(options: MutableMapping[str, str]) -> int:
    return int(options.get("parts", os.cpu_count() or 1))


class RangeReader(DataSourceReader):
    """A range of positions or times, once. The same range gives the same rows, however often it is read."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        with _connect() as connection:
            newest = windows.latest(connection)
            start = bound(connection, self._options.get("from"), windows.oldest(connection))
            end = min(bound(connection, self._options.get("to"), newest), newest)
            slices = reader.slices(connection, start, end)
        parts = _parts(self._options)
        return [Part(slices, part, parts) for part in range(parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches without end. The offset is `{w, seq, token}`: one made on another database stops the query."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._options = options
        self._target: Position | None = None

    def initialOffset(self) -> dict[str, Any]:
        # called twice and not logged, so it must not depend on the moment
        with _connect() as connection:
            return _offset(bound(connection, self._options.get("from"), START), windows.token(connection))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(int(self._options.get("max_rows", _MAX_ROWS)))

    def prepareForTriggerAvailableNow(self) -> None:
        with _connect() as connection:
            self._target = windows.latest(connection)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with _connect() as connection:
            token = windows.check_token(connection, start["token"])
            newest = self._target or windows.latest(connection)
            end = newest
            if isinstance(limit, ReadMaxRows):
                end = min(windows.end_of(connection, _begin(connection, start), limit.max_rows)[0], newest)
            return _offset(end, token) if end > _position(start) else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with _connect() as connection:
            slices = reader.slices(connection, _begin(connection, start), _position(end))
        parts = _parts(self._options)
        return [Part(slices, part, parts) for part in range(parts)] if slices else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark's checkpoint is the position of a user's own query."""


def _offset(position: Position, token: str) -> dict[str, Any]:
    return {"w": position.window, "seq": position.seq, "token": token}


def _begin(connection: Connection, offset: dict[str, Any]) -> Position:
    """Before everything means: as far back as changes are kept. Any other place must still be there, or reading fails."""
    position = _position(offset)
    return windows.oldest(connection) if position == START else position


def _position(offset: dict[str, Any]) -> Position:
    return Position(int(offset["w"]), int(offset["seq"]))
