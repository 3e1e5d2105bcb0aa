"""A command's way to the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidings import settings as settings_module
from tidings.errors import OperatorError

if TYPE_CHECKING:
    from psycopg import Connection


@contextmanager
def database() -> Iterator[Connection]:
    """A connection for one command."""
    from psycopg.errors import UndefinedTable

    from tidings.db.connecting import connect_once

    with connect_once(settings_module.load().database_url) as connection:
        try:
            yield connection
        except UndefinedTable:
            raise OperatorError("The database has no tables of Tidings yet: run `tidings migrate` first.") from None
