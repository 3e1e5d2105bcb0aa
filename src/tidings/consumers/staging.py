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
    _create(connection, table, columns)
    with connection.cursor().copy(_copy(table, columns)) as copy:
        for row in rows:
            copy.write_row(row)
    connection.execute(sql.SQL("analyze pg_temp.{}").format(sql.Identifier(table)))


def stage_csv(
    connection: psycopg.Connection[Any],
    table: LiteralString,
    columns: Mapping[str, LiteralString],
    pieces: Iterable[bytes],
) -> None:
    """The same for rows that somebody has written as CSV already, as Spark's workers do: a null is nothing between commas."""
    _create(connection, table, columns)
    with connection.cursor().copy(_copy(table, columns) + sql.SQL(" (format csv)")) as copy:
        for piece in pieces:
            copy.write(piece)
    connection.execute(sql.SQL("analyze pg_temp.{}").format(sql.Identifier(table)))


def _create(connection: psycopg.Connection[Any], table: LiteralString, columns: Mapping[str, LiteralString]) -> None:
    declared = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in columns.items()
    )
    connection.execute(sql.SQL("create temporary table {} ({}) on commit drop").format(sql.Identifier(table), declared))


def _copy(table: LiteralString, columns: Mapping[str, LiteralString]) -> sql.Composed:
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("copy pg_temp.{} ({}) from stdin").format(sql.Identifier(table), names)
