"""A command's way to the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidings import settings as settings_module
from tidings.errors import OperatorError

if TYPE_CHECKING:
    from psycopg import Connection


_NO_TABLES = "The database has no tables of Tidings yet: run `tidings migrate` first."


@contextmanager
def database(acts: bool = True) -> Iterator[Connection]:
    """A connection for one command. What it commits in the end is in the audit log, if the command is an act.

    Without `acts` the command only looks something up.
    """
    from psycopg.errors import UndefinedTable
    from psycopg.pq import TransactionStatus

    from tidings import audit
    from tidings.db.connecting import connect_once

    with connect_once(settings_module.load().database_url) as connection:
        try:
            yield connection
            if acts:
                audit.append_current(connection)
        except BaseException as error:
            if connection.info.transaction_status is not TransactionStatus.IDLE:
                audit.rolled_back()
            if isinstance(error, UndefinedTable):
                raise OperatorError(_NO_TABLES) from None
            raise
