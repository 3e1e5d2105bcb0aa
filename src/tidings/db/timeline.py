"""Which database this is."""

from __future__ import annotations

from typing import LiteralString

TOKEN: LiteralString = (
    "(select system_identifier::text from pg_control_system()) || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)"  # noqa: S105 a statement
)
"""SQL, and no secret: this server and its timeline, which is another one after a failover or a restore."""
