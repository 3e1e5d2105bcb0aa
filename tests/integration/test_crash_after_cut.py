"""PostgreSQL is killed right after a window was cut: the window stands, and no transaction id in it is handed out again."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import psycopg
import pytest

import writers
from tidings.changestream import reader, windows
from tidings.db.migrate import migrate
from tidings.db.pool import make_pool
from tidings.delivery import ownership
from tidings.errors import ForeignPosition
from tidings.events.positions import START, Position
from tidings.local.postgres import Postgres
from tidings.local.processes import free_port
from waiting import PATIENCE_SECONDS
from writers import Change, Writer, position

ROUNDS = 4
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A server of our own, to be killed.

    A process that dies loses what it had in memory; what it wrote stays, flushed or not. So flushing is left out here:
    that is what starting again after a crash spends its time with.
    """
    made = Postgres(tmp_path_factory.mktemp("killed"), free_port())
    made.initialise()
    with (made.data / "postgresql.auto.conf").open("a") as configuration:
        configuration.write("fsync = off\n")
    made.start()
    with psycopg.connect(made.url, autocommit=True) as connection:
        connection.execute("create database template")
    migrate(made.url.removesuffix("/tidings") + "/template")
    yield made
    made.stop()


@pytest.fixture
def url(server: Postgres) -> str:
    name = f"test_{next(_numbers)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"create database {name} template template".encode())
    return server.url.removesuffix("/tidings") + f"/{name}"


@pytest.fixture
def writer(url: str) -> Iterator[Writer]:
    with writers.writer_to(url) as made:
        yield made


def crash(server: Postgres) -> None:
    """kill -9, the server and everything that it started; nothing has time to write anything."""
    assert server.process is not None
    everyone = [server.process.pid, *(child.pid for child in psutil.Process(server.pid).children(recursive=True))]
    for pid in everyone:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.process.wait()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(_lives(pid) for pid in everyone):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def nothing_written_in_the_background(server: Postgres) -> Iterator[None]:
    """The log reaches the disk only where a commit waits for it: on a busy server that is chance, here it is certain."""
    with psycopg.connect(server.url) as connection:
        rows = connection.execute(
            "select pid from pg_stat_activity where backend_type in ('walwriter', 'background writer', 'checkpointer')"
        ).fetchall()
    assert len(rows) == 3
    for (pid,) in rows:
        os.kill(pid, signal.SIGSTOP)
    yield
    assert not any(_lives(pid) for (pid,) in rows), "a crash ends the block"


def burn_transaction_ids(url: str, count: int = 50) -> None:
    """Transactions that take an id and write nothing else: PostgreSQL does not wait for the disk at their end."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(count):
            connection.execute("select pg_current_xact_id()")


def next_id(connection: psycopg.Connection) -> int:
    row = connection.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
    assert row is not None
    return int(row[0])


def read(url: str, start: Position, end: Position) -> list[Change]:
    with psycopg.connect(url, autocommit=True) as connection:
        pieces = reader.slices(connection, start, end)
    return [row for batch in reader.read(url, pieces, 0, 1) for row in batch.to_pylist()]


def put(url: str, writer: Writer, key: str) -> str:
    """A put on a connection of its own: those of the pool died with the server."""

    async def work() -> str:
        async with make_pool(url, 1) as pool:
            return await writer.put_in(pool, key)

    return asyncio.run(work())


def test_a_snapshot_that_was_only_read_loses_changes_after_a_crash(server: Postgres, url: str, writer: Writer) -> None:
    """A reader that remembers snapshots itself: "seen" is what is visible in the last one that it read."""
    put(url, writer, "before")
    with nothing_written_in_the_background(server):
        burn_transaction_ids(url)
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute("select pg_current_snapshot()::text").fetchone()
            assert row is not None
            remembered, reached = row[0], next_id(connection)
        crash(server)
    server.start()
    after = put(url, writer, "after")
    with psycopg.connect(url, autocommit=True) as connection:
        assert next_id(connection) < reached, "ids are handed out again"
        new = connection.execute(
            "select etag from changes where not pg_visible_in_snapshot(xid, %s::pg_snapshot)", [remembered]
        ).fetchall()
        assert connection.execute("select count(*) from changes where etag = %s", [after]).fetchone() == (1,)
    assert new == [], "the change is there, and counts as seen"


def test_a_window_that_was_cut_loses_nothing_after_the_same_crash(server: Postgres, url: str, writer: Writer) -> None:
    put(url, writer, "before")
    with nothing_written_in_the_background(server):
        burn_transaction_ids(url)
        with psycopg.connect(url, autocommit=True) as connection:
            end = windows.latest(connection)
            reached = next_id(connection)
        before = read(url, START, end)
        crash(server)
    server.start()
    after = put(url, writer, "after")
    with psycopg.connect(url, autocommit=True) as connection:
        assert next_id(connection) > reached
        assert windows.last(connection).end == end
        newest = windows.latest(connection)
    assert read(url, START, end) == before
    assert writers.etags(read(url, end, newest)) == [after]


def test_writers_that_did_not_wait_for_the_disk_are_durable_once_they_are_in_a_window(
    server: Postgres, url: str, writer: Writer
) -> None:
    """What was read from a window may have been delivered: it must not be undone by a crash."""

    async def carelessly() -> None:
        async with make_pool(url + "?options=-csynchronous_commit%3Doff", 1) as pool:
            for key in "abcde":
                await writer.put_in(pool, key)

    with nothing_written_in_the_background(server):
        asyncio.run(carelessly())
        with psycopg.connect(url, autocommit=True) as connection:
            end = windows.latest(connection)
        before = read(url, START, end)
        asyncio.run(carelessly())
        crash(server)
    server.start()
    assert [change["key"] for change in before] == list("abcde")
    assert read(url, START, end) == before
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute("select count(*) from changes").fetchone() == (5,), (
            "those in no window were lost, as they chose"
        )


def test_kill_after_a_cut_again_and_again_loses_nothing_and_delivers_nothing_twice(
    server: Postgres, url: str, writer: Writer
) -> None:
    """Writers at work, windows cut and read at once, the server killed in the moment a cut returns; the position survives
    elsewhere, as it would in the checkpoint of a reader. Every change that was confirmed to its writer comes, once."""
    confirmed: list[str] = []
    delivered: list[Change] = []
    place = START
    for turn in range(ROUNDS):
        with writing_until_the_server_dies(url, writer, confirmed), psycopg.connect(url, autocommit=True) as connection:
            until = len(confirmed) + 25
            while len(confirmed) < until:
                end = windows.latest(connection)
                delivered, place = delivered + read(url, place, end), end
            burn_transaction_ids(url, 20)
            with psycopg.connect(url) as open_at_the_crash:
                open_at_the_crash.execute("select pg_current_xact_id()")
                end = windows.latest(connection)
                if turn % 2:  # used at once, or only after the crash
                    delivered, place = delivered + read(url, place, end), end
                crash(server)
        server.start()
        delivered, place = delivered + read(url, place, end), end
    with psycopg.connect(url, autocommit=True) as connection:
        end = windows.latest(connection)
        delivered += read(url, place, end)
        stored = [row[0] for row in connection.execute("select id from changes")]
        etags = {row[0] for row in connection.execute("select etag from changes")}
    assert len(confirmed) >= 25 * ROUNDS
    assert set(confirmed) <= etags, "the database kept what it confirmed"
    assert sorted(change["id"] for change in delivered) == sorted(stored)
    assert delivered == read(url, START, end), "and the same again"
    assert [position(change) for change in delivered] == sorted(position(change) for change in delivered)


@contextmanager
def writing_until_the_server_dies(url: str, writer: Writer, confirmed: list[str]) -> Iterator[None]:
    async def one(name: str) -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            for number in range(100_000):
                confirmed.append(await writer.put_in(writers.Held(connection), f"{name}{number % 5}"))

    async def both() -> None:
        for task in asyncio.as_completed([one("a"), one("b")]):
            with suppress(psycopg.OperationalError):
                await task

    beside = threading.Thread(target=asyncio.run, args=(both(),))
    beside.start()
    try:
        yield
    except psycopg.OperationalError:
        pass  # the connection that we hold ends with the server, too
    finally:
        beside.join()


def test_a_database_that_was_recovered_from_its_archive_is_another_one(server: Postgres, url: str, writer: Writer) -> None:
    """A new timeline, as after a restore or a failover: the stored position stops the stream, and `rebase` goes on."""
    never = threading.Event()
    put(url, writer, "before")
    with ownership.connect(url, "stream") as connection:
        owner = ownership.acquire(connection, never)
        end = windows.latest(connection)
        token = windows.token(connection)
    server.stop()
    (server.data / "recovery.signal").touch()
    configuration = server.data / "postgresql.auto.conf"
    configuration.write_text(configuration.read_text() + "restore_command = 'false'\n")
    server.start()
    with ownership.connect(url, "stream") as connection:
        wait_until_recovered(connection)
        now = windows.token(connection)
        assert now.split("/")[0] == token.split("/")[0], "the same system"
        assert now > token, "on a later timeline"
        with pytest.raises(ForeignPosition):
            ownership.acquire(connection, never)
    with ownership.connect(url, "stream") as connection:
        again = ownership.acquire(connection, never, rebase=True)
    assert owner is not None
    assert again == ownership.Owner(owner.epoch + 1, owner.position)
    assert [change["key"] for change in read(url, START, end)] == ["before"]


def wait_until_recovered(connection: psycopg.Connection) -> None:
    for _ in range(500):
        if connection.execute("select pg_is_in_recovery()").fetchone() == (False,):
            return
        time.sleep(0.02)
    raise AssertionError("the server is still in recovery")
