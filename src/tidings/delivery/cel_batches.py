"""CEL expressions over Arrow batches, by CEL itself: for those that cannot be columns (`cel_columns.py`)."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from tidings.cel import variables
from tidings.cel.expression import Expression, ExpressionFailed
from tidings.errors import ExpressionMistake

log = logging.getLogger(__name__)


def matches(batch: pa.RecordBatch, columns: Collection[str]) -> pa.RecordBatch:
    """The rows that their `filter` wants, if it is none of those that are `columns`; it is taken from the rows that stay."""
    filters = batch.column("filter")
    if filters.null_count == batch.num_rows or "catalog" not in batch.schema.names:  # then nobody can say it yet, either
        return batch
    own = {text for text in pc.unique(filters).to_pylist() if text is not None and text not in columns}
    if not own:
        return batch
    texts, said, roles = filters.to_pylist(), batch.column("catalog").to_pylist(), batch.column("metadata").to_pylist()
    kept = [i for i, text in enumerate(texts) if text not in own or _wants(text, said[i], roles[i])]
    left = batch.take(pa.array(kept, pa.int64()))
    passed = pa.array([None if texts[i] in own else texts[i] for i in kept], pa.string())
    return left.set_column(left.schema.get_field_index("filter"), "filter", passed)


def _wants(text: str, said: str | None, roles: str | None) -> bool:
    """An expression that has no answer for an event does not want it."""
    expression = _expression(text)
    if expression is None:
        return False
    values = variables.of_json(json.loads(said or "{}"), json.loads(roles or "[]"), expression.variables)
    try:
        return expression.evaluate(values)
    except ExpressionFailed:
        return False


@lru_cache(maxsize=1000)
def _expression(text: str) -> Expression | None:
    try:
        return Expression(text)
    except ExpressionMistake as mistake:  # it was right when it was registered, by another version of the library
        log.error("a filter that was registered is not understood any more, and matches nothing: %s", mistake)
        return None
