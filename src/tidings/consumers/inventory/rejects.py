"""Messages that could not be used: the newest are kept, with the place where each lies in Kafka."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, LiteralString

import psycopg

from tidings.consumers.inventory.telling import Rejected
from tidings.consumers.staging import stage

KEPT = 10_000

_STAGED: dict[str, LiteralString] = {
    "topic": "text",
    "part": "integer",
    "at_offset": "bigint",
    "reason": "text",
    "body": "bytea",
}


def keep(connection: psycopg.Connection[Any], cluster: str, refused: Iterable[Rejected]) -> None:
    """In the caller's transaction. One that was kept before stays as it is."""
    stage(connection, "inventory_refused", _STAGED, refused)
    connection.execute(
        "insert into inventory_rejects (cluster, topic, part, at_offset, reason, body)"
        " select %s, topic, part, at_offset, reason, body from pg_temp.inventory_refused on conflict do nothing",
        [cluster],
    )
    connection.execute("drop table pg_temp.inventory_refused")
    connection.execute(
        "delete from inventory_rejects where id <= (select id from inventory_rejects order by id desc offset %s limit 1)",
        [KEPT],
    )
