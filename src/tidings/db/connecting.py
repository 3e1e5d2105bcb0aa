"""How commands and the read path connect: a database that is gone without a word is noticed within seconds."""

from __future__ import annotations

import psycopg
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from tidings.errors import OperatorError


def connect_once(url: str) -> Connection:
    """A connection for a command; one sentence where the database does not answer."""
    try:
        return psycopg.connect(url, connect_timeout=5)
    except psycopg.OperationalError as error:
        reason = str(error).strip().splitlines()[-1]
        raise OperatorError(f"The database does not answer: {reason}. Check TIDINGS_DATABASE__URL.") from None


def noticing(url: str) -> str:
    """The same database, for a connection that does not wait for ever: not while it connects, nor for a host that is gone."""
    return make_conninfo(
        url, connect_timeout=5, keepalives_idle=5, keepalives_interval=2, keepalives_count=3, tcp_user_timeout=15_000
    )
