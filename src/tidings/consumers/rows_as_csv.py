"""Rows as `COPY … (format csv)` takes them, written where they were read: Arrow does it a column at a time."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import csv

_TYPES = {"boolean": pa.bool_(), "bigint": pa.int64(), "smallint": pa.int16()}
_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="needed")


def as_csv(rows: Sequence[Sequence[Any]], columns: Mapping[str, str]) -> bytes:
    """`columns` has the type of each in PostgreSQL. Text is always in quotes, which tells '' from a null: that is nothing."""
    if not rows:
        return b""
    values = zip(zip(*rows, strict=True), columns.values(), strict=True)
    arrays = [pa.array(column, _TYPES.get(type_, pa.string())) for column, type_ in values]
    out = io.BytesIO()
    csv.write_csv(pa.table(arrays, names=list(columns)), out, _OPTIONS)
    return out.getvalue()
