"""Processes are killed with SIGKILL while writes flow: nothing is lost, nothing is invented, the order of each key holds."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from urllib.parse import quote

import psutil
import psycopg
import pytest

import cluster
from conftest import Running, Say, running_stack
from tidings.delivery.settings import DeliverySettings
from traffic import Caller, Collector, Writers, all_arrived, collecting, seeded, send_events, until, verdict

START_SECONDS = 180.0  # Spark starts in eight seconds on two quiet cores

_STANDING = """
    with cursor as (
        select coalesce(l.win, s.win) as win, coalesce(l.seq, s.seq) as seq
        from stream s, lanes l where s.name = 'main' and l.destination = %s
    )
    select count(*) from changes, cursor
    where rules is not null and bucket = %s
      and pg_visible_in_snapshot(xid, (select snapshot from windows order by id desc limit 1))
      and not pg_visible_in_snapshot(xid, coalesce((select snapshot from windows where id = win - 1), '1:1:'))
      and not (changes.seq <= cursor.seq
               and pg_visible_in_snapshot(xid, coalesce((select snapshot from windows where id = win), '1:1:')))
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With time enough for each round: on a busy machine a late answer would make duplicates that no kill explains."""
    with running_stack(tmp_path_factory.mktemp("kill"), TIDINGS_DELIVERY__BUDGET_SECONDS="10") as running:
        yield running


@pytest.fixture(scope="module")
def collector(stack: Running) -> Iterator[Collector]:
    with collecting(stack) as collector:
        yield collector


def in_flight(database: psycopg.Connection, bucket: str) -> int:
    """How many changes are in a window and beyond the lane's cursor: what the round under way may have sent already.

    A round never goes beyond the newest window, and never beyond `max_rows`. Read after a kill this is a bound for the
    duplicates that it makes: nobody cuts a window now, and if the position still moves there are fewer.
    """
    row = database.execute(_STANDING, [f"arn:gcp:pubsub::tidings-test:{bucket}", bucket]).fetchone()
    assert row is not None
    return min(row[0], DeliverySettings().max_rows)


def position(database: psycopg.Connection) -> tuple[int, int]:
    row = database.execute("select win, seq from stream where name = 'main'").fetchone()
    assert row is not None
    return row


def epoch(database: psycopg.Connection) -> int:
    row = database.execute("select epoch from stream where name = 'main'").fetchone()
    assert row is not None
    return int(row[0])


def dead(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def kill_stream(stack: Running, database: psycopg.Connection, bucket: str, chance: random.Random) -> int:
    """Kill the stream at a random moment in which a round is under way; returns how many changes that round may hold."""
    time.sleep(chance.uniform(0, 1.5))
    until(lambda: in_flight(database, bucket), 30, "a round is under way", every=0.01)
    time.sleep(chance.uniform(0, 0.1))
    pid = stack.kill("stream")
    until(lambda: dead(pid), 10, "the stream is dead")
    exposed = in_flight(database, bucket)
    before = position(database)
    until(lambda: stack.pid("stream") != pid, 30, "the stream was started again")
    until(lambda: position(database) > before, START_SECONDS, "it delivers again")
    return exposed


@pytest.mark.parametrize(
    ("kills", "objects"),
    [
        pytest.param(5, 1000, marks=pytest.mark.timeout(900)),
        pytest.param(20, 5000, marks=[pytest.mark.chaos, pytest.mark.timeout(3600)]),
    ],
)
def test_a_stream_that_is_killed_loses_nothing_and_keeps_the_order(
    stack: Running, collector: Collector, say: Say, kills: int, objects: int
) -> None:
    """A duplicate is a change that was sent, but whose position was not stored when the process died.

    So there are at most as many as there were changes beyond the stored position at each kill.
    """
    seed = seeded()
    chance = random.Random(seed)
    bucket = f"kill-the-stream-{kills}"
    send_events(stack, collector, bucket)
    url = stack.ready["database"]
    with psycopg.connect(url, autocommit=True) as database, Writers(stack.ready, [bucket], seed).writing() as writers:
        exposed = [kill_stream(stack, database, bucket, chance) for _ in range(kills)]
        until(lambda: len(writers.acknowledged) >= objects, 120, f"{objects} writes")
    all_arrived(url, collector, [bucket])
    found = verdict(url, collector, writers, [bucket], seed)
    say(f"{kills} kills, {sum(exposed)} changes were under way: {found}")
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    assert writers.refused == []
    assert found.unanswered == 0
    assert found.duplicates <= sum(exposed)


def test_a_worker_of_spark_that_is_killed_costs_a_round_and_no_more(stack: Running, collector: Collector, say: Say) -> None:
    """The round fails, and the stream begins it again without a new start of Spark. A cluster tries it again by itself."""
    seed = seeded()
    chance = random.Random(seed)
    bucket = "kill-a-worker"
    send_events(stack, collector, bucket)
    url, driver = stack.ready["database"], stack.pid("stream")
    exposed = []
    with psycopg.connect(url, autocommit=True) as database, Writers(stack.ready, [bucket], seed).writing() as writers:
        until(lambda: collector.of(bucket), START_SECONDS, "events arrive")
        first = epoch(database)
        # until two of them were at work: one that waits for work is not missed
        while len(exposed) < 4 if cluster.wanted() else epoch(database) < first + 2:
            until(lambda: in_flight(database, bucket), 30, "a round is under way", every=0.01)
            time.sleep(chance.uniform(0, 0.1))
            for worker in workers(driver):
                worker.kill()
            exposed.append(in_flight(database, bucket))
            before = position(database)
            until(lambda before=before: position(database) > before, 60, "it delivers again")
            time.sleep(chance.uniform(0.5, 1))
    all_arrived(url, collector, [bucket])
    found = verdict(url, collector, writers, [bucket], seed)
    say(f"{len(exposed)} kills, {sum(exposed)} changes were under way: {found}")
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    assert found.duplicates <= sum(exposed)
    assert stack.pid("stream") == driver


def workers(driver: int) -> list[psutil.Process]:
    """The Python processes that Spark's daemon forks for its tasks, without the daemon."""
    family = psutil.Process(driver).children(recursive=True) + cluster.below(driver)
    daemons = {process.pid for process in family if process.ppid() in {java.pid for java in family if java.name() == "java"}}
    return [process for process in family if process.ppid() in daemons]


def test_an_api_that_is_killed_has_kept_all_it_acknowledged(stack: Running, collector: Collector) -> None:
    seed = seeded()
    chance = random.Random(seed)
    bucket = "kill-the-api"
    send_events(stack, collector, bucket)
    url = stack.ready["database"]
    with Writers(stack.ready, [bucket], seed).writing() as writers:
        for _ in range(3):
            done = len(writers.acknowledged)
            until(lambda done=done: len(writers.acknowledged) > done + 20, START_SECONDS, "writes are acknowledged")
            time.sleep(chance.uniform(0, 0.5))
            pid = stack.kill("api")
            until(lambda pid=pid: stack.pid("api") != pid, 30, "the API was started again")
        done = len(writers.acknowledged)
        until(lambda: len(writers.acknowledged) > done + 20, START_SECONDS, "writes are acknowledged")
    all_arrived(url, collector, [bucket])
    found = verdict(url, collector, writers, [bucket], seed)
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    assert found.unanswered > 0, "no request met a dead API"
    caller = Caller(stack.ready)
    for (name, key), body in writers.present.items():
        answer = caller.call("GET", f"/{name}/{quote(key)}")
        assert (answer.status, answer.body) == (200, body) if body is not None else answer.status == 404
