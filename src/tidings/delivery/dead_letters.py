"""Dead letters: messages that no retry can help, kept until somebody sends them again or discards them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import Connection
from psycopg.rows import dict_row
from psycopg.types.json import Json

# A letter that dies again, because its change was sent again, is the same letter.
_BURY = """
insert into dead_letters (lane, message, win, seq, bucket, key, event, body, attributes, label, reason)
select %(lane)s, d.message, d.win, d.seq, coalesce(c.bucket, s.bucket), coalesce(c.key, s.key),
       coalesce(c.event, s.event), d.body, d.attributes, d.label, d.reason
from json_to_recordset(%(letters)s)
    as d(message text, win bigint, seq bigint, body text, attributes jsonb, label text, reason text)
left join changes c on c.seq = d.seq and c.rules is not null and c.id = split_part(d.message, '.', 1)
left join (backfills b join backfill_changes s on s.backfill = b.id)
    on b.lane = %(lane)s and s.n = d.win and s.id = split_part(d.message, '.', 1)
on conflict (lane, message) do update set reason = excluded.reason, state = 'dead', died_at = now(), ended_at = null
"""

_LISTED = """
select d.id, d.lane, l.project, l.destination, d.bucket, d.key, d.event, d.message, d.win, d.seq, d.reason, d.state,
       d.died_at, d.ended_at, d.body, d.attributes, d.label
from dead_letters d join lanes l on l.id = d.lane
"""


def bury(connection: Connection, lane: int, letters: Sequence[dict[str, Any]]) -> None:
    """Inside the transaction that moves the lane past them."""
    if letters:
        connection.execute(_BURY, {"lane": lane, "letters": Json(list(letters))})


def listed(
    connection: Connection, lane: int | None = None, state: str | None = "dead", most: int = 1000
) -> list[dict[str, Any]]:
    """Dead letters, in the order in which a lane would have sent them."""
    return _rows(
        connection,
        "where (%(lane)s::bigint is null or d.lane = %(lane)s) and (%(state)s::text is null or d.state = %(state)s)"
        " order by d.lane, d.win, d.seq limit %(most)s",
        {"lane": lane, "state": state, "most": most},
    )


def one(connection: Connection, id_: int) -> dict[str, Any] | None:
    return next(iter(_rows(connection, "where d.id = %(id)s", {"id": id_})), None)


def count(connection: Connection, lane: int | None = None) -> int:
    row = connection.execute(
        "select count(*) from dead_letters where state = 'dead' and (%(lane)s::bigint is null or lane = %(lane)s)",
        {"lane": lane},
    ).fetchone()
    assert row is not None
    return int(row[0])


def end(connection: Connection, ids: Sequence[int], state: str) -> int:
    """These were sent, or are not wanted any more."""
    return connection.execute(
        "update dead_letters set state = %s, ended_at = now() where id = any(%s) and state = 'dead'", [state, list(ids)]
    ).rowcount


def forget(connection: Connection, days: float) -> int:
    """Drop those that are older than their retention, whatever became of them; returns how many."""
    return connection.execute(
        "delete from dead_letters where died_at < now() - make_interval(secs => %s)", [days * 86_400]
    ).rowcount


def _rows(connection: Connection, condition: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(f"{_LISTED} {condition}".encode(), values).fetchall()
