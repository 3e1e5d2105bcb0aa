"""Partitions of the log: made ahead of time, dropped after the retention, never ahead of a cursor. And what to warn of."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta

import psycopg
from psycopg import Connection, sql

from tidings.changestream.settings import ChangestreamSettings

log = logging.getLogger(__name__)

_LOCK = 0x72657461696E  # "retain" in ASCII
_AHEAD = timedelta(hours=48)
_NAME = re.compile(r"changes_(\d{8}T\d{4})_(\d{8}T\d{4})")
_STAMP = "%Y%m%dT%H%M"

# Whoever waits for a lock on the log makes its writers and readers wait behind him. What does not succeed is done later.
_BE_BRIEF = "set local lock_timeout = '200ms'"

# Every cursor that may still need changes: the stream's own, and that of each lane which is not live.
_LOWEST_CURSOR = """
    select win, seq from (
        select win, seq from stream union all select win, seq from lanes where state not in ('live', 'closed')
    ) as c
    order by win, seq limit 1
"""


def keep_up(connection: Connection, settings: ChangestreamSettings, now: datetime | None = None) -> None:
    """Make the partitions of the next days, drop those whose time is over, warn of what an operator should see."""
    now = now or datetime.now(UTC)
    row = connection.execute("select pg_try_advisory_lock(%s)", [_LOCK]).fetchone()
    if not (row and row[0]):
        return  # another process is at it
    try:
        make_ahead(connection, settings, now)
        drop_expired(connection, settings, now)
        for warning in warnings(connection, settings, now):
            log.warning("%s", warning)
    finally:
        connection.execute("select pg_advisory_unlock(%s)", [_LOCK])


def hold(connection: Connection) -> None:
    """Until the end of this transaction nothing is dropped or forgotten; waits for who is at it.

    For a new cursor at an old place: what is committed before the next upkeep begins is seen by it.
    """
    connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])


def make_ahead(connection: Connection, settings: ChangestreamSettings, now: datetime) -> list[str]:
    """Make the partitions that are missing from now on. What has no partition goes to the default one: nothing is refused."""
    width = timedelta(hours=settings.partition_hours)
    start = datetime.fromtimestamp(now.timestamp() // width.total_seconds() * width.total_seconds(), UTC)
    made = []
    while start < now + _AHEAD:
        name = f"changes_{start:{_STAMP}}_{start + width:{_STAMP}}"
        if not _overlaps(connection, start, start + width) and _make(connection, name, start, start + width):
            made.append(name)
        start += width
    return made


def _make(connection: Connection, name: str, start: datetime, end: datetime) -> bool:
    """Made beside the log, then attached. `create table ... partition of` would wait for open writers, and others for it."""
    table = sql.Identifier(name)
    bounds = (sql.Literal(start.isoformat()), sql.Literal(end.isoformat()))
    attach = sql.SQL("alter table changes attach partition {} for values from ({}) to ({})").format(table, *bounds)
    try:
        with connection.transaction():
            connection.execute(_BE_BRIEF)
            connection.execute(sql.SQL("create table {} (like changes including defaults)").format(table))
            connection.execute(attach)
    except psycopg.errors.CheckViolation:
        log.info("changes of %s are in the default partition and stay there", start.isoformat())
        return False
    except psycopg.errors.LockNotAvailable:
        log.info("the log is in use; the partition of %s is made later", start.isoformat())
        return False
    return True


def partitions(connection: Connection) -> list[str]:
    rows = connection.execute(
        "select relname from pg_inherits join pg_class c on c.oid = inhrelid where inhparent = 'changes'::regclass order by 1"
    ).fetchall()
    return [row[0] for row in rows]


def bounds(name: str) -> tuple[datetime, datetime] | None:
    """From when to when the partition holds changes; None for the default one, which has what fits no other."""
    match = _NAME.fullmatch(name)
    if not match:
        return None
    first, last = (datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC) for stamp in match.groups())
    return first, last


def _overlaps(connection: Connection, start: datetime, end: datetime) -> bool:
    made = filter(None, map(bounds, partitions(connection)))
    return any(first < end and start < last for first, last in made)


def expired(connection: Connection, settings: ChangestreamSettings, now: datetime) -> list[tuple[str, datetime]]:
    """The partitions that are wholly older than the retention, and when the time of each was over."""
    limit = now - timedelta(hours=settings.retention_hours)
    return [(name, held[1]) for name in partitions(connection) if (held := bounds(name)) and held[1] <= limit]


def drop_expired(connection: Connection, settings: ChangestreamSettings, now: datetime) -> list[str]:
    """Drop every partition that is wholly older than the retention and wholly before the lowest cursor."""
    dropped = [name for name, _ in expired(connection, settings, now) if _drop(connection, name)]
    if dropped:
        _forget_windows(connection, now - timedelta(hours=settings.retention_hours))
        log.info("dropped %s partition(s) of the log: %s", len(dropped), ", ".join(dropped))
    return dropped


def _drop(connection: Connection, name: str) -> bool:
    """Lock, check, drop. Without the lock a long transaction could commit its change between the check and the drop.

    The lock keeps writers out and lets readers in: they lock the whole log before its partitions, the drop wants the whole
    log after this one, and with a stronger lock the two would end in a deadlock.
    """
    table = sql.Identifier(name)
    try:
        with connection.transaction():
            connection.execute(_BE_BRIEF)
            connection.execute(sql.SQL("lock table {} in share mode").format(table))
            if _has_undelivered(connection, table):
                log.warning("%s is older than the retention, but a lane still needs it: kept", name)
                return False
            connection.execute(sql.SQL("drop table {}").format(table))
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        log.info("%s is in use; it is dropped later", name)
        return False
    return True


def _has_undelivered(connection: Connection, table: sql.Identifier) -> bool:
    """A change in the partition is after the lowest cursor: not visible in its window, or behind it inside the window."""
    cursor = connection.execute(_LOWEST_CURSOR.encode()).fetchone()
    assert cursor is not None
    window, seq = cursor
    before, own = (_snapshot(connection, window - 1), _snapshot(connection, window))
    row = connection.execute(
        sql.SQL(
            "select exists (select from {} where rules is not null and not pg_visible_in_snapshot(xid, {}) "
            "and not (seq <= {} and pg_visible_in_snapshot(xid, {})))"
        ).format(table, sql.Literal(before), sql.Literal(seq), sql.Literal(own))
    ).fetchone()
    assert row is not None
    return bool(row[0])


def _snapshot(connection: Connection, window: int) -> str:
    """A window's snapshot; one in which nothing is visible if there is no such window."""
    row = connection.execute("select snapshot::text from windows where id = %s", [window]).fetchone()
    return row[0] if row else "1:1:"


def _forget_windows(connection: Connection, limit: datetime) -> None:
    """Windows of dropped changes are of no use, but the one before the lowest cursor's is: it says what is new."""
    connection.execute(
        f"delete from windows where cut_at < %s and id < (select win - 1 from ({_LOWEST_CURSOR}) as c)".encode(),
        [limit],
    )


def warnings(connection: Connection, settings: ChangestreamSettings, now: datetime) -> list[str]:
    """What an operator should look at before it becomes a problem."""
    found = []
    oldest = connection.execute(
        """
        select pid, extract(epoch from clock_timestamp() - xact_start), coalesce(application_name, '')
        from pg_stat_activity
        where datname = current_database() and backend_xid is not null and xact_start is not null
        order by xact_start limit 1
        """
    ).fetchone()
    if oldest and oldest[1] > settings.warn_transaction_seconds:
        found.append(
            f"the oldest transaction in progress (session {oldest[0]} {oldest[2]!r}) is {oldest[1]:.0f} s old: "
            "its changes cannot be delivered before it ends"
        )
    hours = hours_until_retention(connection, settings, now)
    if hours is not None and hours < settings.warn_retention_hours:
        found.append(f"retention reaches the slowest lane's cursor in {hours:.1f} h: its changes are kept beyond it")
    return found


def hours_until_retention(connection: Connection, settings: ChangestreamSettings, now: datetime) -> float | None:
    """How long until the oldest change that a lane still needs is as old as the retention; None if nothing is owed."""
    row = connection.execute(
        f"select min(w.cut_at) from windows w, ({_LOWEST_CURSOR}) as c where (w.id, w.hi) > (c.win, c.seq)".encode()
    ).fetchone()
    if row is None or row[0] is None:
        return None
    oldest: datetime = row[0]
    return settings.retention_hours - (now - oldest).total_seconds() / 3600
