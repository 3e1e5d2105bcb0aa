"""How the read path connects: a database that is gone without a word is noticed within seconds."""

from __future__ import annotations

from psycopg.conninfo import make_conninfo


def noticing(url: str) -> str:
    """The same database, for a connection that does not wait for ever: not while it connects, nor for a host that is gone."""
    return make_conninfo(
        url, connect_timeout=5, keepalives_idle=5, keepalives_interval=2, keepalives_count=3, tcp_user_timeout=15_000
    )
