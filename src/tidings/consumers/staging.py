"""Rows on their way into a registry: one or a million go the same way, into a table of the transaction's own.

What the registry makes of them is a statement over the whole table, so that there is one merge and no loop of statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import sql


def stage(
    connection: psycopg.Connection[Any],
    table: LiteralString,
    columns: Mapping[str, LiteralString],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Copy rows into a new temporary table, which ends with the transaction. `columns` has the type of each."""
    declared = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in columns.items()
    )
    named = sql.Identifier(table)
    connection.execute(sql.SQL("create temporary table {} ({}) on commit drop").format(named, declared))
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    with connection.cursor().copy(sql.SQL("copy pg_temp.{} ({}) from stdin").format(named, names)) as copy:
        for row in rows:
            copy.write_row(row)
    connection.execute(sql.SQL("analyze pg_temp.{}").format(named))
