"""Apply the numbered SQL files that this database has not seen, each once, in order, under a lock."""

from __future__ import annotations

import logging
import re
from importlib import import_module, resources

import psycopg
from psycopg.sql import SQL, Identifier

from tidings.errors import OperatorError

_log = logging.getLogger(__name__)

# Any constant will do, as long as every Tidings takes the same one ("tidings" in ASCII).
_LOCK = 0x746964696E6773
_OLDEST_SERVER = 180000
_STEPS = {20: "tidings.db.migrations.seal_secrets"}
"""What follows a migration's SQL in its transaction: `run(connection)`."""


def migrations() -> list[tuple[int, str, str]]:
    """(number, name, SQL) of every migration in the package, in order."""
    found = []
    for file in resources.files("tidings.db").joinpath("migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append((int(match[1]), match[2], file.read_text()))
    return sorted(found)


def migrate(url: str) -> list[str]:
    """Bring the database up to date; returns the names of what was applied now."""
    applied = []
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.info.server_version < _OLDEST_SERVER:
            raise OperatorError(f"PostgreSQL {connection.info.server_version // 10000} is too old: Tidings needs 18 or newer.")
        connection.execute("select pg_advisory_lock(%s)", [_LOCK])
        connection.execute(
            "create table if not exists schema_migrations "
            "(number integer primary key, name text not null, applied_at timestamptz not null default now())"
        )
        known = {row[0] for row in connection.execute("select number from schema_migrations")}
        ours = migrations()
        newer = known - {number for number, _, _ in ours}
        if newer:
            raise OperatorError(
                f"The database has migration {max(newer)}, which this version of Tidings does not know: run the newer version."
            )
        for number, name, sql in ours:
            if number in known:
                continue
            with connection.transaction():
                connection.execute(sql.encode())  # bytes: a migration is a script, not a template
                if number in _STEPS:
                    import_module(_STEPS[number]).run(connection)
                connection.execute("insert into schema_migrations (number, name) values (%s, %s)", [number, name])
            applied.append(f"{number:04}_{name}")
        _write_anew(connection)
    return applied


def _write_anew(connection: psycopg.Connection) -> None:
    """The tables of `stale_tables`. An update or a dropped column leaves what was there in the table's files."""
    warnings: list[str] = []
    connection.add_notice_handler(lambda notice: warnings.append(notice.message_primary or ""))
    for (name,) in connection.execute("select name from stale_tables order by name").fetchall():
        warnings.clear()
        connection.execute(SQL("vacuum full {}").format(Identifier(name)))
        if warnings:  # PostgreSQL skips what this role may not write anew
            words = "%s still has secrets from before their encryption in its files (%s). As its owner run: vacuum full %s;"
            _log.warning(f"{words} Then run `tidings migrate` again.", name, warnings[0], name)
            continue
        connection.execute("delete from stale_tables where name = %s", [name])
