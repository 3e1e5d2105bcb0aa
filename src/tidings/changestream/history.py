"""The changes of one bucket between two times, whether a rule wanted them or not.

Windows cover only what some rule wanted, so this reads by time: the partitions that hold it, from end to end, each in pieces
of its blocks. An index on bucket and time would find a small bucket sooner, but writers would pay for it with every append
(docs/operating.md has the measurement), and this is asked once in a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from psycopg import Connection, sql
from pyspark.sql.types import StructType

from tidings.changestream import reader, retention
from tidings.events.schema import CHANGE

SEEN = StructType([CHANGE[name] for name in ("seq", "at", "key", "encoded", "event")])
"""What a piece has of each change: enough to ask whether a rule wants it."""

_BLOCKS = 16_384
"""Of 8 KiB: about half a million changes, some seconds of reading."""


def last_days(connection: Connection, days: int) -> tuple[datetime, datetime]:
    """From when to when, by the database's clock, which is the one that changes are stamped with."""
    row = connection.execute("select clock_timestamp()").fetchone()
    assert row is not None
    end = row[0].astimezone(UTC)
    return end - timedelta(days=days), end


def pieces(connection: Connection, bucket_id: str, start: datetime, end: datetime, blocks: int = _BLOCKS) -> list[str]:
    """One query for each piece: together they find every change of [start, end) once. At least one, though it finds nothing.

    By the id: a bucket that had the same name before does not count.
    """
    found = []
    for name in retention.partitions(connection):
        first, last = retention.bounds(name) or (start, end)
        if first < end and start < last:
            wanted = sql.SQL("bucket_id = {} and at >= {} and at < {}").format(
                bucket_id, max(start, first).isoformat(), min(end, last).isoformat()
            )
            # Through the whole table, which finds the partition by its time: it may be dropped before its turn comes.
            table = "changes" if retention.bounds(name) else name
            query = sql.SQL("select {} from {} where {}").format(
                sql.SQL(", ").join(map(sql.Identifier, SEEN.fieldNames())), sql.Identifier(table), wanted
            )
            found += [f"{query.as_string(connection)} and {place}" for place in _places(_size(connection, name), blocks)]
    return found


def read(url: str, piece: str) -> Iterator[pa.RecordBatch]:
    """The changes of a piece, in no order."""
    return reader.fetch(url, piece)


def _places(size: int, blocks: int) -> Iterator[str]:
    """Conditions that cut a table of `size` blocks. The last one is open: the table may be growing."""
    for first in range(0, max(size, 1), blocks):
        upto = f" and ctid < '({first + blocks},0)'" if first + blocks < size else ""
        yield f"ctid >= '({first},0)'{upto}"


def _size(connection: Connection, partition: str) -> int:
    row = connection.execute(
        "select pg_relation_size(%s::regclass) / current_setting('block_size')::int",
        [sql.Identifier(partition).as_string(connection)],
    ).fetchone()
    return int(row[0]) if row else 0
