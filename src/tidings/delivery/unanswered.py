"""Filters that had no answer for an event: counted where they are evaluated, written down where a round ends.

From a worker to the driver they travel as rows without a lane, one for each filter and batch, beside those of rules that are
gone. So they cost nothing where each filter has an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from psycopg import Connection
from psycopg.types.json import Json

# A subscription that was deleted meanwhile needs none. The row of one that is there is locked, so that it stays there.
_WRITE = """
insert into unanswered_filters as u (rule, times, reason, at)
select s.rule, f.times, f.reason, now()
from json_to_recordset(%s) as f(rule bigint, times bigint, reason text)
join catalog_subscriptions s on s.rule = f.rule order by s.rule for key share of s
on conflict (rule) do update set times = u.times + excluded.times, reason = excluded.reason, at = excluded.at
"""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """How many events the filter of a subscription had no answer for, and why it had none for the last of them."""

    rule: int
    times: int
    reason: str

    def to_text(self) -> str:
        return json.dumps([self.rule, self.times, self.reason])

    @classmethod
    def from_text(cls, text: str) -> Unanswered:
        return cls(*json.loads(text))


def merge(found: Iterable[Unanswered]) -> list[Unanswered]:
    """One for each subscription."""
    merged: dict[int, Unanswered] = {}
    for each in found:
        before = merged.get(each.rule)
        merged[each.rule] = Unanswered(each.rule, each.times + (before.times if before else 0), each.reason)
    return list(merged.values())


def with_rows(batch: pa.RecordBatch, found: Iterable[Unanswered]) -> pa.RecordBatch:
    """Routed changes, and behind them what their filters had no answer for: in place of the rule's own name."""
    rows = [{"config_json": each.to_text()} for each in found]
    if not rows:
        return batch
    both = pa.Table.from_batches([batch, pa.RecordBatch.from_pylist(rows, schema=batch.schema)])
    return both.combine_chunks().to_batches()[0]


def write(connection: Connection, found: Iterable[Unanswered]) -> None:
    """Where the owner sees it (`rules/catalog_subscriptions.py`)."""
    rows = [{"rule": each.rule, "times": each.times, "reason": each.reason.replace("\0", "")} for each in found]
    if rows:
        connection.execute(_WRITE, [Json(rows)])
