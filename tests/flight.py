"""What may be under way to a destination when a process is killed: a bound for the duplicates that the kill makes.

A round never goes beyond the newest window and never beyond `max_rows`. So it is what lies in the windows that were cut before
the kill, and beyond the cursor that the destination's lane had then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg

from tidings.delivery.settings import DeliverySettings
from waiting import PATIENCE_SECONDS

_CURSORS = """
    select l.destination, coalesce(l.win, s.win), coalesce(l.seq, s.seq) from stream s, lanes l
    where s.name = 'main' and l.destination = any(%s)
"""
_BEYOND = """
    select count(*) from changes
    where rules is not null and bucket = %(bucket)s
      and pg_visible_in_snapshot(xid, (select snapshot from windows where cut_at <= %(moment)s order by id desc limit 1))
      and not pg_visible_in_snapshot(xid, coalesce((select snapshot from windows where id = %(win)s - 1), '1:1:'))
      and not (seq <= %(seq)s
               and pg_visible_in_snapshot(xid, coalesce((select snapshot from windows where id = %(win)s), '1:1:')))
"""

Cursors = dict[str, tuple[int, int]]


def ask(url: str, query: str, values: Any = (), seconds: float = PATIENCE_SECONDS) -> list[Any]:
    """The rows of a query, on a connection of its own; if the database is away, when it is back."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
                return connection.execute(query.encode(), values).fetchall()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, f"the database was not back within {seconds:g} s"
            time.sleep(0.1)


@dataclass(frozen=True)
class Flight:
    """`lanes` has the bucket of each destination."""

    url: str
    lanes: Mapping[str, str]

    def cursors(self) -> Cursors:
        return {arn: (win, seq) for arn, win, seq in ask(self.url, _CURSORS, [list(self.lanes)])}

    def beyond(self, cursors: Cursors, moment: float | None = None) -> dict[str, int]:
        """For each bucket: how many changes lie beyond these cursors, in windows that were cut before the moment."""
        before = datetime.fromtimestamp(moment or time.time(), UTC)
        found = {}
        for arn, (win, seq) in cursors.items():
            bucket = self.lanes[arn]
            values = {"bucket": bucket, "moment": before, "win": win, "seq": seq}
            found[bucket] = min(ask(self.url, _BEYOND, values)[0][0], DeliverySettings().max_rows)
        return found

    def now(self) -> int:
        """How many messages the round under way may have sent already."""
        return sum(self.beyond(self.cursors()).values())


def position(url: str) -> tuple[int, int]:
    [row] = ask(url, "select win, seq from stream where name = 'main'")
    return row[0], row[1]


def epoch(url: str) -> int:
    [row] = ask(url, "select epoch from stream where name = 'main'")
    return int(row[0])


def total(found: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Bucket by bucket, the sum of several."""
    return {bucket: sum(each.get(bucket, 0) for each in found) for each in found for bucket in each}
