"""Who may move the stream: one at a time, the next as soon as that one is gone or silent, and never backwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager

import psycopg
import pytest

from tidings import audit
from tidings.delivery import lanes, ownership
from tidings.delivery.ownership import Owner
from tidings.errors import Superseded
from tidings.events.positions import START, Position

FIRST, SECOND, THIRD = Position(1, 10), Position(2, 20), Position(3, 30)


@pytest.fixture
def holder(database_url: str) -> Iterator[psycopg.Connection]:
    with ownership.connect(database_url, "holder") as connection:
        yield connection


@pytest.fixture
def rival(database_url: str) -> Iterator[psycopg.Connection]:
    with ownership.connect(database_url, "rival") as connection:
        yield connection


def own(connection: psycopg.Connection) -> Owner:
    owner = ownership.acquire(connection, threading.Event())
    assert owner is not None
    return owner


def test_a_rebase_is_in_the_audit_log_with_what_it_changes(
    holder: psycopg.Connection, rival: psycopg.Connection, database: psycopg.Connection
) -> None:
    written = "select action, outcome from audit_log"
    with audit.acting(audit.act_of_command("stream --rebase")):
        assert ownership.acquire(holder, threading.Event(), rebase=True)
    assert database.execute(written).fetchall() == [("stream --rebase", "ok")]
    with audit.acting(audit.act_of_command("stream --rebase")) as act:
        stopped = threading.Event()
        stopped.set()
        assert ownership.acquire(rival, stopped, rebase=True) is None
        assert not act.written


@contextmanager
def waiting(connection: psycopg.Connection) -> Iterator[Future[Owner | None]]:
    """Somebody else who wants the stream; told to stop at the end of the block."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(ownership.acquire, connection, stop)
        finally:
            stop.set()


def move(connection: psycopg.Connection, owner: Owner, start: Position, end: Position, *reports: lanes.Report) -> None:
    lanes.end_round(connection, owner.epoch, start, end, [], reports, 1.0)


def position(database: psycopg.Connection) -> Position:
    row = database.execute("select win, seq from stream").fetchone()
    assert row is not None
    return Position(*row)


def silence(database: psycopg.Connection) -> None:
    """As if the owner had not been heard of for longer than anybody waits."""
    database.execute("update stream set alive_at = now() - make_interval(secs => %s)", [ownership.TAKEOVER_SECONDS + 1])


def test_the_first_owner_begins_where_the_stream_stands(database: psycopg.Connection, holder: psycopg.Connection) -> None:
    owner = own(holder)
    assert owner == Owner(1, START)
    move(holder, owner, START, FIRST)
    assert position(database) == FIRST


def test_a_second_one_waits_as_long_as_the_first_lives_and_stops_when_it_is_told_to(
    holder: psycopg.Connection, rival: psycopg.Connection
) -> None:
    owner = own(holder)
    with waiting(rival) as wanted:
        with pytest.raises(NotYet):
            wanted.result(timeout=0.8)
        assert ownership.show_sign_of_life(holder, owner.epoch), "and the first was left alone"
    assert wanted.result() is None
    move(holder, owner, START, FIRST)


def test_a_second_one_gets_the_stream_when_the_first_is_gone(
    database: psycopg.Connection, holder: psycopg.Connection, rival: psycopg.Connection
) -> None:
    first = own(holder)
    move(holder, first, START, FIRST)
    with waiting(rival) as wanted:
        with pytest.raises(NotYet):
            wanted.result(timeout=0.2)
        holder.close()
        assert wanted.result(timeout=120) == Owner(first.epoch + 1, FIRST)
    assert position(database) == FIRST


def test_an_owner_that_shows_no_sign_of_life_is_replaced_and_its_session_ended(
    database: psycopg.Connection, holder: psycopg.Connection, rival: psycopg.Connection
) -> None:
    first = own(holder)
    move(holder, first, START, FIRST)
    silence(database)
    with waiting(rival) as wanted:
        assert wanted.result(timeout=120) == Owner(first.epoch + 1, FIRST)
    with pytest.raises(psycopg.OperationalError):
        move(holder, first, FIRST, SECOND)
    assert position(database) == FIRST


def test_only_the_session_that_holds_the_stream_is_ended(
    database: psycopg.Connection, database_url: str, holder: psycopg.Connection, rival: psycopg.Connection
) -> None:
    with ownership.connect(database_url, "bystander") as bystander:
        bystander.execute("select pg_advisory_lock(4711)")
        own(holder)
        silence(database)
        with waiting(rival) as wanted:
            assert wanted.result(timeout=120) is not None
        assert bystander.execute("select 1").fetchone() == (1,)


def test_who_takes_over_is_not_taken_for_silent(
    database: psycopg.Connection, database_url: str, holder: psycopg.Connection, rival: psycopg.Connection
) -> None:
    own(holder)
    silence(database)
    with waiting(rival) as wanted:
        second = wanted.result(timeout=120)
    assert second is not None
    with ownership.connect(database_url, "third") as third, waiting(third) as next_:
        with pytest.raises(NotYet):
            next_.result(timeout=0.8)
        assert ownership.show_sign_of_life(rival, second.epoch)


def test_an_owner_that_is_heard_of_is_not_replaced(
    database: psycopg.Connection, holder: psycopg.Connection, rival: psycopg.Connection
) -> None:
    """By a sign of life, or by the end of a round."""
    owner = own(holder)
    for heard in (
        lambda: ownership.show_sign_of_life(holder, owner.epoch),
        lambda: move(holder, owner, START, FIRST),
    ):
        silence(database)
        heard()
        with waiting(rival) as wanted, pytest.raises(NotYet):
            wanted.result(timeout=0.8)


def test_what_an_old_owner_ends_moves_nothing(
    database: psycopg.Connection, database_url: str, holder: psycopg.Connection
) -> None:
    """It was stopped for a while and wakes up with another session: only its epoch tells that it is over."""
    (lane,) = database.execute("insert into lanes (project, destination) values ('p', 'd') returning id").fetchone() or ()
    old = own(holder)
    move(holder, old, START, FIRST)
    holder.close()
    with ownership.connect(database_url, "new") as connection, ownership.connect(database_url, "zombie") as zombie:
        new = own(connection)
        failed = lanes.Report(lane, 0, SECOND.just_before, error="down")
        with pytest.raises(Superseded):
            move(zombie, old, FIRST, SECOND, failed)
        assert position(database) == FIRST
        assert database.execute("select state, win, seq, attempts from lanes").fetchone() == ("live", None, None, 0)
        move(connection, new, FIRST, SECOND, failed)
        assert position(database) == SECOND
        assert database.execute("select state, win, seq, attempts from lanes").fetchone() == ("behind", 2, 19, 1)
        with pytest.raises(Superseded):
            move(zombie, old, FIRST, SECOND, failed)
        assert not ownership.show_sign_of_life(zombie, old.epoch)
        assert ownership.show_sign_of_life(connection, new.epoch)


def test_a_sign_of_life_of_an_old_owner_does_not_count_for_the_new_one(
    database: psycopg.Connection, database_url: str, holder: psycopg.Connection
) -> None:
    old = own(holder)
    holder.close()
    with ownership.connect(database_url, "new") as connection, ownership.connect(database_url, "zombie") as zombie:
        own(connection)
        silence(database)
        before = database.execute("select alive_at from stream").fetchone()
        assert not ownership.show_sign_of_life(zombie, old.epoch)
        assert database.execute("select alive_at from stream").fetchone() == before


def test_a_round_that_ends_twice_or_starts_elsewhere_moves_nothing(
    database: psycopg.Connection, holder: psycopg.Connection
) -> None:
    owner = own(holder)
    move(holder, owner, START, SECOND)
    for start, end in ((START, SECOND), (START, FIRST), (FIRST, THIRD)):
        with pytest.raises(Superseded):
            move(holder, owner, start, end)
        assert position(database) == SECOND
    move(holder, owner, SECOND, THIRD)
    assert position(database) == THIRD


def test_an_owner_that_only_compares_positions_lets_a_zombie_move_the_stream(
    database_url: str, holder: psycopg.Connection
) -> None:
    """Why there is an epoch: the position alone is the same for both, until one of them has moved it."""
    own(holder)
    holder.close()
    with ownership.connect(database_url, "new") as connection, ownership.connect(database_url, "zombie") as zombie:
        new = own(connection)
        moved = zombie.execute("update stream set win = 1, seq = 10 where name = 'main' and (win, seq) = (0, 0)")
        assert moved.rowcount == 1
        with pytest.raises(Superseded):
            move(connection, new, START, SECOND)


def test_many_who_start_at_once_own_it_one_after_the_other(database: psycopg.Connection, database_url: str) -> None:
    """Each moves the stream by one and leaves. Nobody finds it where another is still at work, and it never goes back."""
    database.execute("update stream set alive_at = now()")
    active: list[int] = []
    begun: list[Position] = []

    def once(number: int) -> None:
        with ownership.connect(database_url, f"stream {number}") as connection:
            owner = own(connection)
            active.append(number)
            assert active == [number]
            begun.append(owner.position)
            time.sleep(0.02)
            move(connection, owner, owner.position, Position(owner.position.window + 1, 0))
            active.remove(number)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(once, number) for number in range(4)]:
            done.result()
    assert begun == [Position(window, 0) for window in range(4)]
    assert position(database) == Position(4, 0)
    assert database.execute("select epoch from stream").fetchone() == (4,)


def test_a_holder_stopped_inside_a_transaction_does_not_keep_its_locks(
    holder: psycopg.Connection, rival: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped just before the commit that moves the stream: its session would hold the row until it wakes up."""
    monkeypatch.setattr(ownership, "TAKEOVER_SECONDS", 1.0)  # only a shorter wait: nothing else depends on it
    before = own(holder)
    holder.execute("begin")
    holder.execute("update stream set alive_at = now() - interval '1 hour'")
    rival.execute("set lock_timeout = '30s'")
    with waiting(rival) as other:
        taken = other.result(timeout=120)
    assert taken is not None
    assert taken.epoch == before.epoch + 1
    holder.close()
