"""Partitions of the log: made ahead, dropped when their time is over and nobody needs them, and never in anybody's way."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import psycopg
import pytest
from psycopg import sql

import writers
from tidings.changestream import reader, retention, windows
from tidings.changestream.settings import ChangestreamSettings
from tidings.db.pool import make_pool
from tidings.errors import ForeignPosition
from tidings.events.positions import START, Position
from tidings.local.postgres import Postgres
from writers import Writer, position

DAILY = ChangestreamSettings(partition_hours=24)
NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=30)
"""When everything that the tests write is older than the retention."""

Drop = Callable[[psycopg.Connection, str], bool]


@pytest.fixture
def writer(database_url: str) -> Iterator[Writer]:
    with writers.writer_to(database_url) as made:
        yield made


@pytest.fixture(autouse=True)
def _impatient(database: psycopg.Connection) -> None:
    """What waits for a lock without end is a failure, not a pause."""
    database.execute("set statement_timeout = '10s'")


@pytest.fixture
def partitioned(database: psycopg.Connection) -> psycopg.Connection:
    retention.make_ahead(database, DAILY, datetime.now(UTC))
    return database


def rows_in(database: psycopg.Connection, partition: str) -> int:
    row = database.execute(sql.SQL("select count(*) from {}").format(sql.Identifier(partition))).fetchone()
    assert row is not None
    return int(row[0])


def dated(database: psycopg.Connection) -> list[str]:
    return [name for name in retention.partitions(database) if name != "changes_default"]


def stand_at(database: psycopg.Connection, place: Position) -> None:
    database.execute("update stream set win = %s, seq = %s", place)


def add_lane(database: psycopg.Connection, state: str, cursor: Position | None) -> None:
    win, seq = cursor or (None, None)
    database.execute(
        "insert into lanes (project, destination, state, win, seq) values ('p', gen_random_uuid()::text, %s, %s, %s)",
        [state, win, seq],
    )


def test_partitions_are_made_for_the_coming_days_without_a_gap_and_only_once(database: psycopg.Connection) -> None:
    settings = ChangestreamSettings(partition_hours=6)
    made = retention.make_ahead(database, settings, NOW)
    assert dated(database) == made
    ends = [name.split("_")[1:] for name in made]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))
    assert ends[0][0] <= f"{NOW:%Y%m%dT%H%M}"
    assert ends[-1][1] >= f"{NOW + timedelta(hours=48):%Y%m%dT%H%M}"
    assert retention.make_ahead(database, settings, NOW) == []
    assert len(retention.make_ahead(database, settings, NOW + timedelta(hours=6))) == 1
    for _ in range(2):
        retention.keep_up(database, settings, NOW + timedelta(hours=12))
    assert len(dated(database)) == len(made) + 2


def test_a_change_goes_to_the_partition_of_its_time_and_has_its_indexes(
    partitioned: psycopg.Connection, writer: Writer
) -> None:
    writer.put("a")
    row = partitioned.execute("select relname from changes c join pg_class t on t.oid = c.tableoid").fetchone()
    assert row is not None
    assert row[0] in dated(partitioned)
    query = "select count(*) from pg_index where indrelid = %s::regclass"
    assert partitioned.execute(query, [f'"{row[0]}"']).fetchone() == (2,)


def at_every_hour(database: psycopg.Connection, hours: int) -> None:
    database.execute(
        """
        insert into changes (seq, at, key, project, bucket, bucket_id, event, principal, source_ip, request_id, config, rules)
        select nextval('change_seq'), %s + make_interval(hours => h), 'k' || h, 'p', 'b', 'b', 'ObjectCreated:Put',
               '', '', '', 1, '1'
        from generate_series(0, %s) h
        """,
        [NOW, hours],
    )


@pytest.mark.parametrize("change", [(6, 24), (24, 6), (6, 5)])
def test_another_width_makes_no_partitions_that_overlap_and_no_change_is_refused(
    database: psycopg.Connection, writer: Writer, change: tuple[int, int]
) -> None:
    for step, width in enumerate(change):
        retention.keep_up(database, ChangestreamSettings(partition_hours=width), NOW + timedelta(hours=step))
    known = dated(database)
    at_every_hour(database, 400)
    assert len(writer.read()) == 401
    for later in range(0, 400, 37):
        retention.keep_up(database, ChangestreamSettings(partition_hours=change[1]), NOW + timedelta(hours=later))
    assert set(known) <= set(dated(database))
    assert len(writer.read()) == 401


def test_what_has_no_partition_is_in_the_default_one_and_is_read_like_all_else(
    database: psycopg.Connection, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    """A change that came before the first partition was made: its period stays in the default one, the next gets its own."""
    (before,) = writer.put("a")
    caplog.set_level(logging.INFO)
    made = retention.make_ahead(database, DAILY, datetime.now(UTC))
    assert len(made) == 2
    assert "default partition" in caplog.text
    (after,) = writer.put("b")
    assert rows_in(database, "changes_default") == 2
    assert writers.etags(writer.read()) == [before, after]


def test_while_one_process_is_at_it_another_leaves_it_alone(database: psycopg.Connection, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("select pg_advisory_lock(%s)", [0x72657461696E])
        retention.keep_up(database, DAILY, NOW)
        assert dated(database) == []
        other.execute("select pg_advisory_unlock_all()")
        retention.keep_up(database, DAILY, NOW)
        assert len(dated(database)) == 3


class Log(NamedTuple):
    """A log over three periods: what is in it, in the order of positions, and the partition of each change."""

    database: psycopg.Connection
    rows: list[tuple[Position, str]]
    empty: set[str]

    @property
    def end(self) -> Position:
        return self.rows[-1][0]

    @property
    def places(self) -> list[Position]:
        """Every position that a cursor can have: before all, at each change, just before each change."""
        at = [place for place, _ in self.rows]
        return sorted({START, *at, *(place.just_before for place in at), *(Position(place.window, 0) for place in at)})

    def droppable(self, lowest: Position) -> set[str]:
        needed = {partition for place, partition in self.rows if place > lowest}
        return set(dated(self.database)) - needed

    def after(self, cursor: Position) -> list[tuple[int, str]]:
        """What a reader gets from here to the end. On the test's own connection, which may have dropped things just now."""
        return [
            row
            for piece in reader.slices(self.database, cursor, self.end)
            for row in self.database.execute(
                f"select seq, etag from changes where {piece.condition} order by seq".encode()
            ).fetchall()
        ]


@pytest.fixture
def log(database: psycopg.Connection, writer: Writer) -> Log:
    """Three windows over three periods, out of step: a change of the oldest period came late and is in the second window."""
    today = datetime.now(UTC)
    periods = [today - timedelta(days=20), today - timedelta(days=10), today]
    for period in periods:
        retention.make_ahead(database, DAILY, period)
    with writer.held() as transaction:
        writer.run(writer.put_in(transaction, "late/a"))
        writer.put("a", "b", "c")
        windows.latest(database)
        writer.put("d", "unwanted")
        writer.run(writer.put_in(transaction, "late/b"))
    database.execute("update changes set rules = null where key = 'unwanted'")
    windows.latest(database)
    writer.put("e", "f")
    windows.latest(database)
    for period, keys in zip(periods, (["late/a", "a", "b"], ["c", "d", "unwanted"], ["late/b", "e", "f"]), strict=True):
        database.execute("update changes set at = %s where key = any(%s)", [period, keys])
    partition: dict[int, str] = dict(
        database.execute("select seq, relname from changes c join pg_class t on t.oid = c.tableoid").fetchall()
    )
    rows = [(position(change), partition[change["seq"]]) for change in writer.read()]
    assert [row[0] for row in rows] == [(1, 2), (1, 3), (1, 4), (2, 1), (2, 5), (2, 7), (3, 8), (3, 9)]
    return Log(database, rows, set(dated(database)) - set(partition.values()))


def test_a_partition_is_dropped_when_every_change_in_it_is_before_the_stream_and_not_earlier(log: Log) -> None:
    outcomes = set()
    for place in log.places:
        with log.database.transaction(force_rollback=True):
            stand_at(log.database, place)
            owed, droppable = log.after(place), log.droppable(place)
            assert set(retention.drop_expired(log.database, DAILY, LATER)) == droppable
            assert log.after(place) == owed
            outcomes.add(len(droppable - log.empty))
    assert outcomes == {0, 1, 2, 3}


def test_a_partition_that_a_lane_still_needs_is_kept(log: Log) -> None:
    for place, state in itertools.product(log.places, ("behind", "ready")):
        with log.database.transaction(force_rollback=True):
            stand_at(log.database, log.end)
            add_lane(log.database, "live", None)
            add_lane(log.database, state, place)
            add_lane(log.database, state, log.end)
            owed, droppable = log.after(place), log.droppable(place)
            assert set(retention.drop_expired(log.database, DAILY, LATER)) == droppable
            assert log.after(place) == owed
            assert log.after(log.end) == []


def drop_unchecked(connection: psycopg.Connection, name: str) -> bool:
    connection.execute(sql.SQL("drop table {}").format(sql.Identifier(name)))
    return True


def drop_by_number(connection: psycopg.Connection, name: str) -> bool:
    """Every number in it is at or before the cursor's: forgets those that came late."""
    query = "select coalesce(max(c.seq), 0) <= (select seq from stream) from {} c"
    done = connection.execute(sql.SQL(query).format(sql.Identifier(name))).fetchone() == (True,)
    return done and drop_unchecked(connection, name)


def drop_by_window(connection: psycopg.Connection, name: str) -> bool:
    """Every change in it is visible in the cursor's window: forgets those that the cursor has not come to inside of it."""
    query = """
        select not exists (select from {} c where rules is not null and not pg_visible_in_snapshot(
            xid, coalesce((select snapshot from windows w join stream s on s.win = w.id), '1:1:')))
    """
    done = connection.execute(sql.SQL(query).format(sql.Identifier(name))).fetchone() == (True,)
    return done and drop_unchecked(connection, name)


def test_a_drop_that_checks_less_loses_changes(log: Log) -> None:
    drops: list[Drop] = [drop_unchecked, drop_by_number, drop_by_window]
    lost = dict.fromkeys(drops, 0)
    for place, drop in itertools.product(log.places, drops):
        with log.database.transaction(force_rollback=True):
            stand_at(log.database, place)
            owed = log.after(place)
            for name in dated(log.database):
                drop(log.database, name)
            lost[drop] += log.after(place) != owed
    assert min(lost.values()) > 0, lost


def test_nothing_is_dropped_before_its_time(log: Log) -> None:
    stand_at(log.database, log.end)
    settings = ChangestreamSettings(partition_hours=24, retention_hours=24 * 15)
    before = dated(log.database)
    dropped = retention.drop_expired(log.database, settings, datetime.now(UTC))
    assert log.rows[0][1] in dropped, "the changes of twenty days ago"
    kept = {partition for _, partition in log.rows[2:3] + log.rows[-1:]}
    assert kept <= set(dated(log.database)), "those of ten days ago, and today's"
    assert len(dropped) == 3 == len(before) - len(dated(log.database))


def test_changes_that_nobody_wanted_keep_no_partition(partitioned: psycopg.Connection, writer: Writer) -> None:
    partitioned.execute("delete from bucket_eventing_configs")
    writer.put("a", "b")
    assert partitioned.execute("select count(*) from changes").fetchone() == (2,)
    assert len(retention.drop_expired(partitioned, DAILY, LATER)) == 3
    assert partitioned.execute("select count(*) from changes").fetchone() == (0,)


def test_a_partition_that_is_kept_beyond_its_time_is_told_of(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    retention.keep_up(log.database, DAILY, LATER)
    assert caplog.text.count("a lane still needs it: kept") == 3
    assert len(log.after(START)) == len(log.rows)


def test_changes_in_the_default_partition_are_kept_for_a_cursor_that_needs_them(
    database: psycopg.Connection, writer: Writer
) -> None:
    kept = writer.put("a", "b")
    retention.keep_up(database, DAILY, datetime.now(UTC))
    windows.latest(database)
    retention.keep_up(database, DAILY, LATER)
    assert writers.etags(writer.read()) == kept


def test_a_long_transaction_keeps_its_partition_and_its_change_is_delivered(
    partitioned: psycopg.Connection, writer: Writer
) -> None:
    with writer.held() as transaction:
        late = writer.run(writer.put_in(transaction, "late"))
        writer.put("a")
        stand_at(partitioned, windows.latest(partitioned))
        assert retention.drop_expired(partitioned, DAILY, LATER) == [], "in use"
    place = windows.last(partitioned).end
    assert len(retention.drop_expired(partitioned, DAILY, LATER)) == 2, "the empty ones"
    assert writers.etags(writer.read(place)) == [late]
    assert retention.drop_expired(partitioned, DAILY, LATER) == []
    stand_at(partitioned, windows.last(partitioned).end)
    assert len(retention.drop_expired(partitioned, DAILY, LATER)) == 1


def test_a_drop_that_looks_before_it_has_the_lock_takes_the_late_change_with_it(
    partitioned: psycopg.Connection, writer: Writer
) -> None:
    with writer.held() as transaction:
        late = writer.run(writer.put_in(transaction, "late"))
        writer.put("a")
        place = windows.latest(partitioned)
        stand_at(partitioned, place)
        (name,) = [each for each in dated(partitioned) if rows_in(partitioned, each)]
        with beside(writer.url, lambda other: drop_by_window(other, name)) as done:
            wait_until_it_waits(partitioned)
            writer.run(transaction.commit())
            assert done() is True
    assert late not in writers.etags(writer.read(place))


def test_windows_that_no_cursor_needs_are_forgotten_and_reading_from_every_cursor_goes_on(log: Log, writer: Writer) -> None:
    for place in log.places:
        with log.database.transaction(force_rollback=True):
            stand_at(log.database, log.end)
            add_lane(log.database, "behind", place)
            owed = [log.after(place), log.after(log.end)]
            retention.drop_expired(log.database, DAILY, LATER)
            kept = [window.id for window in windows.between(log.database, 0, 9)]
            assert kept == list(range(max(place.window - 1, 1), 4))
            assert [log.after(place), log.after(log.end)] == owed
            assert windows.end_of(log.database, place, 100) == (log.end if owed[0] else place, len(owed[0]))
            assert windows.end_of(log.database, log.end, 100) == (log.end, 0)
    stand_at(log.database, log.end)
    retention.drop_expired(log.database, DAILY, LATER)
    (new,) = writer.put("new")
    assert windows.latest(log.database).window == 4
    assert writers.etags(writer.read(log.end)) == [new]


def test_reading_can_begin_at_the_oldest_place_that_is_kept_and_nowhere_before_it(log: Log, writer: Writer) -> None:
    assert windows.oldest(log.database) == START
    stand_at(log.database, Position(3, 8))
    retention.drop_expired(log.database, DAILY, LATER)
    oldest = windows.oldest(log.database)
    assert oldest == Position(2, 7)
    assert [position(change) for change in writer.read(oldest)] == [(3, 8), (3, 9)]
    assert windows.end_of(log.database, oldest, 1) == (Position(3, 8), 1)
    assert windows.end_of(log.database, oldest, 100) == (Position(3, 9), 2)
    for place in (START, Position(1, 0), Position(1, 4), Position(2, 6)):
        with pytest.raises(ForeignPosition):
            reader.slices(log.database, place, log.end)
        with pytest.raises(ForeignPosition):
            windows.end_of(log.database, place, 100)


def put_in_time(writer: Writer, seconds: float) -> bool:
    """Whether a put on a connection of its own is done in time. One that is not is given up."""

    async def put() -> None:
        async with make_pool(writer.url, 1) as pool:
            await asyncio.wait_for(writer.put_in(pool, "quick"), seconds)

    try:
        asyncio.run(put())
    except TimeoutError:
        return False
    return True


@contextmanager
def beside(url: str, work: Callable[[psycopg.Connection], object]) -> Iterator[Callable[[], object]]:
    """Work on a connection and a thread of its own; what is yielded waits for its result."""
    with psycopg.connect(url, autocommit=True, application_name="beside") as connection, ThreadPoolExecutor(1) as pool:
        connection.execute("set statement_timeout = '10s'")
        future = pool.submit(work, connection)
        yield future.result


def wait_until_it_waits(database: psycopg.Connection) -> None:
    query = "select wait_event_type from pg_stat_activity where application_name = 'beside' and datname = current_database()"
    for _ in range(2000):
        if database.execute(query).fetchone() == ("Lock",):
            return
        threading.Event().wait(0.005)
    raise AssertionError("it does not wait for a lock")


def test_making_partitions_does_not_wait_for_a_long_transaction_nor_a_writer_for_it(
    partitioned: psycopg.Connection, writer: Writer
) -> None:
    with writer.held() as transaction:
        writer.run(writer.put_in(transaction, "long"))
        assert len(retention.make_ahead(partitioned, DAILY, NOW + timedelta(days=20))) == 3
        assert put_in_time(writer, 5)


def test_making_partitions_gives_up_soon_where_the_long_transaction_is_in_the_default_one(
    database: psycopg.Connection, writer: Writer
) -> None:
    with writer.held() as transaction:
        writer.run(writer.put_in(transaction, "long"))
        assert retention.make_ahead(database, DAILY, NOW + timedelta(days=20)) == []
        assert put_in_time(writer, 5)
    assert len(retention.make_ahead(database, DAILY, NOW + timedelta(days=20))) == 3


def test_dropping_gives_up_soon_where_somebody_reads_and_comes_back_later(
    partitioned: psycopg.Connection, writer: Writer
) -> None:
    writer.put("a")
    stand_at(partitioned, windows.latest(partitioned))
    with psycopg.connect(writer.url) as long:
        long.execute("select count(*) from changes")
        assert retention.drop_expired(partitioned, DAILY, LATER) == []
        assert put_in_time(writer, 5)
    stand_at(partitioned, windows.latest(partitioned))
    assert len(retention.drop_expired(partitioned, DAILY, LATER)) == 3


@pytest.mark.parametrize(
    "statement",
    [
        "create table extra partition of changes for values from ('2001-01-01') to ('2001-01-02')",
        "drop table {}",
    ],
)
def test_the_same_in_place_and_without_a_limit_stops_every_writer_behind_a_long_transaction(
    partitioned: psycopg.Connection, writer: Writer, statement: str
) -> None:
    empty = sql.Identifier(dated(partitioned)[-1])
    with writer.held() as transaction:
        writer.run(writer.put_in(transaction, "long"))
        with beside(writer.url, lambda other: other.execute(sql.SQL(statement).format(empty))) as done:
            wait_until_it_waits(partitioned)
            assert not put_in_time(writer, 1)
            writer.run(transaction.commit())
            done()
    assert put_in_time(writer, 5)


def test_a_reader_does_not_wait_while_a_partition_is_checked(partitioned: psycopg.Connection, writer: Writer) -> None:
    """The lock of the check is held until the end of the transaction: here one that the test ends."""
    writer.put("a")
    end = windows.latest(partitioned)
    with partitioned.transaction():
        assert len(retention.drop_expired(partitioned, DAILY, LATER)) == 2
    with partitioned.transaction():
        assert retention.drop_expired(partitioned, DAILY, LATER) == [], "checked and kept"
        (piece,) = reader.slices(partitioned, START, end)
        query = f"select key from changes where {piece.condition}".encode()
        with beside(writer.url, lambda other: other.execute(query).fetchall()) as done:
            assert done() == [("a",)]


@pytest.mark.parametrize(("mode", "deadlocks"), [("share", 0), ("access exclusive", 1)])
def test_a_partition_that_is_locked_against_readers_ends_in_a_deadlock_with_one(
    partitioned: psycopg.Connection, writer: Writer, mode: str, deadlocks: int
) -> None:
    """Lock, check, drop; and a reader who comes at the check."""
    name = sql.Identifier(dated(partitioned)[-1])
    found = 0

    def reads(other: psycopg.Connection) -> None:
        nonlocal found
        try:
            other.execute("select count(*) from changes")
        except psycopg.errors.DeadlockDetected:
            found += 1

    with psycopg.connect(writer.url) as dropper:
        dropper.execute(sql.SQL(f"lock table {{}} in {mode} mode").format(name))
        with beside(writer.url, reads) as done:
            if deadlocks:
                wait_until_it_waits(partitioned)
            else:
                done()
            try:
                dropper.execute(sql.SQL("drop table {}").format(name))
            except psycopg.errors.DeadlockDetected:
                found += 1
                dropper.rollback()
            done()
    assert found == deadlocks


def test_nothing_is_told_when_all_is_well(partitioned: psycopg.Connection, writer: Writer) -> None:
    settings = ChangestreamSettings(warn_transaction_seconds=0.01)
    assert retention.warnings(partitioned, settings, datetime.now(UTC)) == []
    writer.put("a")
    windows.latest(partitioned)
    assert retention.warnings(partitioned, settings, datetime.now(UTC)) == []


def test_an_old_transaction_is_told_of_if_it_can_hold_changes_back(
    database: psycopg.Connection, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    soon, usual = ChangestreamSettings(warn_transaction_seconds=0.01), ChangestreamSettings()
    with writer.held() as transaction:
        writer.run(writer.put_in(transaction, "long"))
        threading.Event().wait(0.05)
        (warning,) = retention.warnings(database, soon, NOW)
        assert "oldest transaction in progress" in warning
        assert retention.warnings(database, usual, NOW) == []
        retention.keep_up(database, soon, NOW)
        assert "oldest transaction in progress" in caplog.text
    assert retention.warnings(database, soon, NOW) == []


def test_an_old_transaction_that_writes_nothing_or_elsewhere_is_not_told_of(
    database: psycopg.Connection, database_url: str, postgres: Postgres
) -> None:
    soon = ChangestreamSettings(warn_transaction_seconds=0.01)
    with psycopg.connect(database_url) as reading, psycopg.connect(postgres.url) as elsewhere:
        reading.execute("select count(*) from changes")
        elsewhere.execute("select pg_current_xact_id()")
        threading.Event().wait(0.05)
        assert retention.warnings(database, soon, NOW) == []


def test_a_cursor_that_the_retention_comes_near_to_is_told_of(database: psycopg.Connection, writer: Writer) -> None:
    settings = ChangestreamSettings(retention_hours=168, warn_retention_hours=24)

    def told(now: datetime = NOW) -> tuple[float | None, int]:
        hours = retention.hours_until_retention(database, settings, now)
        return hours and round(hours, 3), len(retention.warnings(database, settings, now))

    assert told() == (None, 0), "there is nothing"
    writer.put("a", "b")
    windows.latest(database)
    writer.put("c")
    end = windows.latest(database)
    for window, age in ((1, 150), (2, 100)):
        database.execute("update windows set cut_at = %s where id = %s", [NOW - timedelta(hours=age), window])
    assert told() == (18, 1), "the stream needs the first window"
    stand_at(database, Position(1, 1))
    assert told() == (18, 1), "the rest of it"
    stand_at(database, Position(1, 2))
    assert told() == (68, 0), "only the second"
    assert told(NOW + timedelta(hours=45)) == (23, 1)
    stand_at(database, end)
    assert told(NOW + timedelta(hours=200)) == (None, 0), "everything is delivered"
    add_lane(database, "live", None)
    assert told() == (None, 0)
    add_lane(database, "behind", Position(1, 1))
    assert told() == (18, 1), "a lane needs it"
    assert told(NOW + timedelta(hours=20)) == (-2, 1)
