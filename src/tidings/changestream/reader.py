"""Reading changes as Arrow record batches: any range of positions, in parts, in order, the same rows every time."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from psycopg import sql

from tidings.changestream import windows
from tidings.db.connecting import noticing
from tidings.errors import ForeignPosition
from tidings.events.changes import UNREAD
from tidings.events.positions import Position
from tidings.events.schema import STORED

if TYPE_CHECKING:
    from psycopg import Connection


# A change whose rules could not be read when it was written is for all rules of its bucket that are as old as itself; for none,
# if there are none, which the pipeline then says. What it says of others was true when it was written, and is told as it is.
RULES = f"""case when rules = '{UNREAD}' then coalesce((
    select string_agg(r.rule::text, ',' order by r.rule)
    from bucket_eventing_configs r join bucket_metainfos b on b.project_id = r.project_id and b.name = r.bucket_name
    where b.id = changes.bucket_id and r.since <= changes.config), '0') else rules end as rules"""


class Slice(NamedTuple):
    """A part of one window: its number, and the SQL condition that selects the part.

    `dense` says that the part is most of what lies between its lowest and its highest seq: then the index on seq gives it
    in order, and sorting it, which for a million changes goes through the disk, is a waste.
    """

    window: int
    condition: str
    dense: bool = False
    staged: bool = False
    """What a backfill has put beside the log, in its own order: the number of a row stands in the place of a window."""

    @classmethod
    def of(
        cls,
        previous: windows.Window,
        window: windows.Window,
        after: int,
        upto: int,
        rules: Sequence[int] | None = None,
        prefix: str = "",
    ) -> Slice:
        """The changes with `after` < seq <= `upto`; if given, only matches of `rules`, and keys that begin with `prefix`."""
        conditions = [
            "rules is not null",
            windows.added_by(previous),
            f"pg_visible_in_snapshot(xid, '{window.snapshot}')",
        ]
        low, high = max(after + 1, window.lo), min(upto, window.hi)
        conditions.append(f"seq between {low} and {high}")
        if rules is not None:
            wanted = ",".join([*(str(int(rule)) for rule in rules), UNREAD])
            conditions.append(f"string_to_array(rules, ',') && '{{{wanted}}}'::text[]")
        if prefix:
            conditions.append(f"starts_with(key, {sql.Literal(prefix).as_string(None)})")
        return cls(window.id, " and ".join(conditions), dense=high - low < 4 * window.n + 1000)


def slices(
    connection: Connection, start: Position, end: Position, rules: Sequence[int] | None = None, prefix: str = ""
) -> list[Slice]:
    """What to read for (start, end], one slice for each window."""
    if end <= start:
        return []
    first = start.window if start.window > 0 else 1
    stored = {w.id: w for w in windows.between(connection, first - 1, end.window)}
    stored.setdefault(0, windows.BEFORE_ALL)
    found = []
    for id_ in range(first, end.window + 1):
        window, previous = stored.get(id_), stored.get(id_ - 1)
        after = start.seq if id_ == start.window else -1
        if window and after >= window.hi:
            continue  # read to its end: what was before it no longer matters
        if not window or not previous:
            raise ForeignPosition(f"Window {id_} is gone: the retention has passed position {start}.")
        upto = end.seq if id_ == end.window else window.hi
        found.append(Slice.of(previous, window, after, upto, rules, prefix))
    return found


def read(url: str, wanted: Sequence[Slice], part: int, parts: int, stored: Sequence[str] = STORED) -> Iterator[pa.RecordBatch]:
    """The changes of the slices, in order of position; of `parts` readers this is number `part`. `stored` are the columns.

    The parts are made by key, so that each holds whole keys and nothing has to be shuffled to keep their order.
    """
    mine = f" and (hashtextextended(key, 0) & {0x7FFFFFFF}) % {parts} = {part}" if parts > 1 else ""
    columns = ", ".join(RULES if column == "rules" else column for column in stored)
    for piece in wanted:
        if piece.staged:
            query = f"select n as window, {columns} from backfill_changes as changes where {piece.condition}{mine} order by n"
        else:
            select = f"select {piece.window}::bigint as window, {columns} from changes"
            query = f"{select} where {piece.condition}{mine} order by seq"
        yield from fetch(url, query, piece.dense)


def fetch(url: str, query: str, dense: bool = False) -> Iterator[pa.RecordBatch]:
    """What a query finds. `dense` as in a slice."""
    try:
        cursor = _executed(url, query, dense)
    except Exception:  # kept from an earlier round, and the database was started again since
        _connection.cache_clear()
        cursor = _executed(url, query, dense)
    with cursor:
        try:
            yield from cursor.fetch_record_batch()
        except Exception:
            _connection.cache_clear()
            raise


def _executed(url: str, query: str, dense: bool) -> Any:
    cursor = _connection(url, os.getpid()).cursor()
    cursor.execute(f"set enable_sort = {'off' if dense else 'on'}")
    cursor.execute(query)
    return cursor


@lru_cache(maxsize=4)
def _connection(url: str, _pid: int) -> Any:
    """One connection for each process: Spark reuses its Python workers, and connecting costs more than a small read."""
    import adbc_driver_postgresql.dbapi as adbc  # heavy, and only readers need it

    connection = adbc.connect(noticing(url), autocommit=True)
    with connection.cursor() as cursor:
        cursor.execute("set max_parallel_workers_per_gather = 0")  # the parts are the parallelism
    return connection


atexit.register(_connection.cache_clear)  # later the driver is half taken down and complains
