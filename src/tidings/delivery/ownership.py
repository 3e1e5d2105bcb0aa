"""Who may move the stream: an advisory lock decides who starts, an epoch decides whose writes count.

The lock belongs to a database session, so it is free as soon as its holder dies. A holder that is stopped without dying keeps
its session; it shows no sign of life then, and whoever waits ends that session. When it wakes up its epoch no longer counts.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

import psycopg
from psycopg import Connection

from tidings import audit
from tidings.changestream import windows
from tidings.db.connecting import noticing
from tidings.events.positions import Position

log = logging.getLogger(__name__)

_LOCK = 0x73747265616D  # "stream" in ASCII
SIGN_OF_LIFE_SECONDS = 2.0
TAKEOVER_SECONDS = 15.0
IDLE_IN_TRANSACTION_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Owner:
    """What the one who owns the stream knows when it starts."""

    epoch: int
    position: Position


def acquire(connection: Connection, stop: threading.Event, rebase: bool = False) -> Owner | None:
    """Wait until the stream is ours; None if we were told to stop before. The lock lives as long as the connection."""
    waiting = False
    suspect: int | None = None
    while not stop.is_set():
        if _try_lock(connection):
            return _next_epoch(connection, rebase)
        if not waiting:
            log.info("another stream is active; waiting for it to end")
            waiting = True
        silent = _silent_holder(connection)
        if silent is not None and silent == suspect:  # twice: a new holder has the lock a moment before it shows life
            _end(connection, silent)
        suspect = silent
        stop.wait(0.5)
    return None


def _try_lock(connection: Connection) -> bool:
    row = connection.execute("select pg_try_advisory_lock(%s)", [_LOCK]).fetchone()
    return bool(row and row[0])


def _next_epoch(connection: Connection, rebase: bool) -> Owner:
    with connection.transaction():
        row = connection.execute("select token, win, seq from stream where name = 'main' for update").fetchone()
        assert row is not None
        token = windows.token(connection) if rebase else windows.check_token(connection, row[0])
        if rebase:  # another database may count its transactions from anew: every lane there is, is an old one
            connection.execute("update lanes set xid = '3'")
            audit.append_current(connection)
        epoch = connection.execute(
            "update stream set epoch = epoch + 1, token = %s, alive_at = now() where name = 'main' returning epoch",
            [token],
        ).fetchone()
        assert epoch is not None
        return Owner(epoch[0], Position(row[1], row[2]))


def _silent_holder(connection: Connection) -> int | None:
    """The database session that holds the lock, if its stream shows no sign of life."""
    row = connection.execute(
        """
        select l.pid from pg_locks l, stream s
        where l.locktype = 'advisory' and l.granted
          and (l.classid, l.objid) = ((%(lock)s >> 32)::oid, (%(lock)s & 4294967295)::oid)
          and l.database = (select oid from pg_database where datname = current_database())
          and s.name = 'main' and s.alive_at < now() - make_interval(secs => %(takeover)s)
        """,
        {"lock": _LOCK, "takeover": TAKEOVER_SECONDS},
    ).fetchone()
    return int(row[0]) if row else None


def _end(connection: Connection, pid: int) -> None:
    connection.execute("select pg_terminate_backend(%s)", [pid])
    log.warning("the active stream (database session %s) showed no sign of life for %s s: taken over", pid, TAKEOVER_SECONDS)


def show_sign_of_life(connection: Connection, epoch: int) -> bool:
    """False if the stream is no longer ours."""
    return connection.execute("update stream set alive_at = now() where name = 'main' and epoch = %s", [epoch]).rowcount == 1


def connect(url: str, name: str) -> Connection:
    """A connection of the stream's own, from which a dead database shows itself.

    And the other way round: a stream that is stopped inside a transaction must not hold its locks until it wakes up.
    """
    connection = psycopg.connect(noticing(url), autocommit=True, application_name=f"tidings {name}")
    connection.execute(f"set idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_SECONDS:g}s'")
    return connection
