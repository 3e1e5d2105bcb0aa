"""Rows that workers write as CSV are what PostgreSQL reads."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg

from tidings.consumers.rows_as_csv import as_csv
from tidings.consumers.staging import stage_csv


def test_rows_come_through_copy_as_they_are(database: psycopg.Connection[Any]) -> None:
    columns: dict[str, LiteralString] = {"number": "smallint", "said": "text", "flag": "boolean", "large": "bigint"}
    texts = ("", None, "\\.", "\\N", 'a"b', "a,b", "a\r\nb", "\n\\.\n", " a ", "\u0085\u2028\ufeff😀")
    rows = [(number, text, number % 2 == 0, None if number % 3 else 2**63 - 1) for number, text in enumerate(texts)]
    with database.transaction():
        stage_csv(database, "rows_told", columns, [as_csv(rows[:4], columns), as_csv([], columns), as_csv(rows[4:], columns)])
        assert database.execute("select * from rows_told order by number").fetchall() == rows
