"""CEL expressions over Arrow batches, by CEL itself: for those that cannot be columns (`cel_columns.py`)."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from tidings.cel import variables
from tidings.cel.expression import NO_MEMORY, Expression, ExpressionFailed
from tidings.delivery.unanswered import Unanswered
from tidings.errors import ExpressionMistake

log = logging.getLogger(__name__)


UNREADY = ""
"""The format of a row whose filter had no time left: no plan has it, so its lane ends there in this round."""
_SHARE_SECONDS, _SHARE_OF_ROW = 0.25, 0.0002


class FilterTime:
    """What the filters of each project have taken of one task's time.

    Beyond a share, their lanes leave the round at the first change that was not looked at, and go on beside it. The share
    grows with what was looked at: filters that are quick for each change have no end.
    """

    def __init__(self) -> None:
        self._left: dict[str, float] = {}

    def is_over(self, project: str) -> bool:
        return self._left.get(project, _SHARE_SECONDS) < 0

    def add(self, project: str, seconds: float) -> None:
        self._left[project] = self._left.get(project, _SHARE_SECONDS) + _SHARE_OF_ROW - seconds


def matches(
    batch: pa.RecordBatch, columns: Collection[str], taken: FilterTime | None = None
) -> tuple[pa.RecordBatch, list[Unanswered]]:
    """The rows that their `filter` wants, if it is none of those that are `columns`; it is taken from the rows that stay.

    An expression that has no answer for an event does not want it; those are counted. Rows of a project that has `taken` too
    much time stay, and are `UNREADY`.
    """
    taken = taken or FilterTime()
    filters = batch.column("filter")
    if filters.null_count == batch.num_rows or "catalog" not in batch.schema.names:  # then nobody can say it yet, either
        return batch, []
    own = {text for text in pc.unique(filters).to_pylist() if text is not None and text not in columns}
    if not own:
        return batch, []
    names = ("filter", "project", "catalog", "metadata")
    texts, projects, said, roles = (batch.column(name).to_pylist() for name in names)
    kept: list[int] = []
    unready: set[int] = set()
    failed: dict[int, str] = {}
    for i, text in enumerate(texts):
        if text not in own:
            kept.append(i)
            continue
        if taken.is_over(projects[i]):
            kept.append(i)
            unready.add(i)
            continue
        began = time.thread_time()
        try:
            if _wants(text, said[i], roles[i]):
                kept.append(i)
        except ExpressionFailed as error:
            failed[i] = str(error)
        taken.add(projects[i], time.thread_time() - began)
    left = batch.take(pa.array(kept, pa.int64()))
    passed = pa.array([None if texts[i] in own else texts[i] for i in kept], pa.string())
    left = left.set_column(left.schema.get_field_index("filter"), "filter", passed)
    if unready:
        formats = left.column("format").to_pylist()
        told = pa.array([UNREADY if i in unready else formats[at] for at, i in enumerate(kept)], pa.string())
        left = left.set_column(left.schema.get_field_index("format"), "format", told)
    return left, _counted(batch, failed)


def _counted(batch: pa.RecordBatch, failed: dict[int, str]) -> list[Unanswered]:
    """For each rule how many changes they were: a change has a row for each lane of the rule."""
    if not failed:
        return []
    rules, seqs = batch.column("rule").to_pylist(), batch.column("seq").to_pylist()
    changes: dict[str, set[int]] = {}
    reasons: dict[str, str] = {}
    for i, reason in failed.items():
        changes.setdefault(rules[i], set()).add(seqs[i])
        reasons[rules[i]] = reason
    return [Unanswered(int(rule), len(of_rule), reasons[rule]) for rule, of_rule in changes.items()]


def _wants(text: str, said: str | None, roles: str | None) -> bool:
    """Raises ExpressionFailed where an expression has no answer."""
    try:
        expression = _expression(text)
        if isinstance(expression, str):
            raise ExpressionFailed(expression)
        values = variables.of_json(json.loads(said or "{}"), json.loads(roles or "[]"), expression.variables)
        return expression.evaluate(values)
    except MemoryError:  # of one event; it must not end the task, which has others
        raise ExpressionFailed(NO_MEMORY) from None


@lru_cache(maxsize=1000)
def _expression(text: str) -> Expression | str:
    """Or why it is not evaluated."""
    try:
        return Expression(text)
    except ExpressionMistake as mistake:  # it was right when it was registered, by another version of the library or of ours
        log.error("a filter that was registered is refused now, and matches nothing: %s", mistake)
        return f"this filter is refused now; register another one: {mistake.summary}"
