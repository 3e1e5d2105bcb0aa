"""Processes are killed with SIGKILL while writes flow: nothing is lost, nothing is invented, the order of each key holds."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from urllib.parse import quote

import psutil
import pytest

import cluster
from arrivals import Collector
from conftest import Running, Say
from flight import Flight, epoch, position, total
from late_writer import committing_late
from places import Outside, outside, places, stack_with
from traffic import Caller, Verdict, Writers, all_arrived, collecting, seeded, send_events, verdict
from waiting import until

AWAY_SECONDS = 15.0


@pytest.fixture(scope="module")
def there() -> Iterator[Outside]:
    with outside() as made:
        yield made


@pytest.fixture(scope="module")
def stack(there: Outside, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With time enough for each round: on a busy machine a late answer would make duplicates that no kill explains."""
    patience = {"TIDINGS_DELIVERY__BUDGET_SECONDS": "120", "TIDINGS_DELIVERY__PUBLISH_TIMEOUT_SECONDS": "120"}
    with stack_with(there, tmp_path_factory.mktemp("kill"), **patience) as running:
        yield running


@pytest.fixture(scope="module")
def collector(stack: Running) -> Iterator[Collector]:
    with collecting(stack) as collector:
        yield collector


def flight_of(stack: Running, there: Outside, collector: Collector, prefix: str) -> Flight:
    """Buckets with three destinations: Pub/Sub, Kafka, and a subscriber's webhook."""
    made = places(stack, there, collector, prefix, ("pubsub", "kafka", "webhook"))
    return Flight(stack.ready["database"], {place.lane: place.name for place in made.values()})


def dead(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def kill_stream(stack: Running, flight: Flight, chance: random.Random) -> dict[str, int]:
    """Kill the stream at a random moment in which a round is under way; returns how many messages that round may hold."""
    time.sleep(chance.uniform(0, 1.5))
    until(flight.now, "a round is under way", every=0.01)
    time.sleep(chance.uniform(0, 0.1))
    pid = stack.kill("stream")
    until(lambda: dead(pid), "the stream is dead")
    exposed = flight.beyond(flight.cursors())
    before = position(flight.url)
    until(lambda: stack.pid("stream") != pid, "the stream was started again")
    until(lambda: position(flight.url) > before, "it delivers again")
    return exposed


def judge(collector: Collector, writers: Writers, flight: Flight, seed: int) -> Verdict:
    buckets = list(flight.lanes.values())
    all_arrived(flight.url, collector, buckets)
    found = verdict(flight.url, collector, writers, buckets, seed)
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    return found


@pytest.mark.timeout(900)
def test_a_stream_that_is_killed_loses_nothing_and_keeps_the_order(
    stack: Running, there: Outside, collector: Collector, say: Say
) -> None:
    """A duplicate is a change that was sent, but whose position was not stored when the process died.

    So there are at most as many as there were changes beyond the stored position at each kill. Beside the writers there are
    transactions that commit late: who reads on from the last number would not see them.
    """
    seed, kills, objects = seeded(), int(os.environ.get("KILLS") or 2), 400
    chance = random.Random(seed)
    flight = flight_of(stack, there, collector, "stream")
    buckets = list(flight.lanes.values())
    with Writers(stack.ready, buckets, seed).writing() as writers, committing_late(flight.url, buckets, seed):
        exposed = total([kill_stream(stack, flight, chance) for _ in range(kills)])
        until(lambda: len(writers.acknowledged) >= objects, f"{objects} writes")
    found = judge(collector, writers, flight, seed)
    say(f"{kills} kills, {sum(exposed.values())} messages were under way: {found}")
    assert (writers.refused, found.unanswered) == ([], 0)
    for bucket, number in exposed.items():
        assert found.duplicates_at[bucket] <= number


def test_a_worker_of_spark_that_is_killed_costs_a_round_and_no_more(
    stack: Running, there: Outside, collector: Collector, say: Say
) -> None:
    """The round fails, and the stream begins it again without a new start of Spark. A cluster tries it again by itself."""
    seed = seeded()
    chance = random.Random(seed)
    flight, driver = flight_of(stack, there, collector, "worker"), stack.pid("stream")
    buckets = list(flight.lanes.values())
    exposed = []
    with Writers(stack.ready, buckets, seed).writing() as writers:
        until(lambda: all(collector.of(bucket) for bucket in buckets), "events arrive")
        first = epoch(flight.url)
        # until two of them were at work: one that waits for work is not missed
        while len(exposed) < 4 if cluster.wanted() else epoch(flight.url) < first + 2:
            until(flight.now, "a round is under way", every=0.01)
            time.sleep(chance.uniform(0, 0.1))
            cursors = flight.cursors()
            kill_workers(driver)
            exposed.append(flight.beyond(cursors))
            before = position(flight.url)
            until(lambda before=before: position(flight.url) > before, "it delivers again")
            time.sleep(chance.uniform(0.5, 1))
    found = judge(collector, writers, flight, seed)
    say(f"{len(exposed)} kills, {sum(total(exposed).values())} messages were under way: {found}")
    for bucket, number in total(exposed).items():
        assert found.duplicates_at[bucket] <= number
    assert stack.pid("stream") == driver


def kill_workers(driver: int) -> None:
    for worker in workers(driver):
        worker.kill()


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
            until(lambda done=done: len(writers.acknowledged) > done + 20, "writes are acknowledged")
            time.sleep(chance.uniform(0, 0.5))
            pid = stack.kill("api")
            until(lambda pid=pid: stack.pid("api") != pid, "the API was started again")
        done = len(writers.acknowledged)
        until(lambda: len(writers.acknowledged) > done + 20, "writes are acknowledged")
    all_arrived(url, collector, [bucket])
    found = verdict(url, collector, writers, [bucket], seed)
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    assert found.unanswered > 0, "no request met a dead API"
    caller = Caller(stack.ready)
    for (name, key), body in writers.present.items():
        answer = caller.call("GET", f"/{name}/{quote(key)}")
        assert (answer.status, answer.body) == (200, body) if body is not None else answer.status == 404


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_while_the_database_is_away_the_stream_waits_and_then_goes_on_by_itself(
    stack: Running, there: Outside, collector: Collector, say: Say
) -> None:
    seed = seeded()
    flight, driver = flight_of(stack, there, collector, "away"), stack.pid("stream")
    with Writers(stack.ready, list(flight.lanes.values()), seed).writing() as writers:
        until(lambda: len(writers.acknowledged) > 100, "writes are acknowledged")
        cursors = flight.cursors()
        with nobody_starts_it_again(stack):
            gone = stack.kill("postgres")
            moment = time.time()
            time.sleep(AWAY_SECONDS)
        until(lambda: stack.pid("postgres") != gone, "the database was started again")
        exposed = flight.beyond(cursors, moment)
        done = len(writers.acknowledged)
        until(lambda: len(writers.acknowledged) > done + 100, "writes are acknowledged again")
    found = judge(collector, writers, flight, seed)
    say(f"{AWAY_SECONDS:g} s without a database, {sum(exposed.values())} messages were under way: {found}")
    for bucket, number in exposed.items():
        assert found.duplicates_at[bucket] <= number
    assert stack.pid("stream") == driver, "it was not the same stream that went on"


class nobody_starts_it_again:
    """While `tidings up` stands still, what dies stays dead."""

    def __init__(self, stack: Running) -> None:
        self._up = stack.process.pid

    def __enter__(self) -> None:
        os.kill(self._up, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self._up, signal.SIGCONT)


# The long form.


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_forty_kills_of_everything_lose_nothing_invent_nothing_and_reorder_nothing(
    stack: Running, there: Outside, collector: Collector, say: Say
) -> None:
    seed, kills, objects = int(os.environ.get("SEED") or 20_261_115), 40, 20_000
    chance = random.Random(seed)
    flight = flight_of(stack, there, collector, "forty")
    buckets = list(flight.lanes.values())
    roles = ["stream", "worker", "api", "postgres"] * (kills // 4)
    chance.shuffle(roles)
    exposed = []
    with Writers(stack.ready, buckets, seed, threads=6, keys=120, pace=0.1).writing() as writers:
        until(lambda: all(collector.of(bucket) for bucket in buckets), "events arrive")
        with committing_late(flight.url, buckets, seed):
            for role in roles:
                time.sleep(chance.uniform(0.5, 3))
                cursors, driver = flight.cursors(), stack.pid("stream")
                if role == "worker":
                    kill_workers(driver)
                else:
                    killed = stack.kill(role)
                moment = time.time()
                if role != "worker":
                    until(lambda role=role, killed=killed: stack.pid(role) != killed, f"{role} was started again")
                if role != "api":  # what the API has under way, it has not sent to anybody
                    exposed.append(flight.beyond(cursors, moment))
                before, done = position(flight.url), len(writers.acknowledged)
                until(lambda before=before: position(flight.url) > before, f"it delivers again after {role}")
                until(lambda done=done: len(writers.acknowledged) > done, f"it takes writes after {role}")
            until(lambda: len(writers.acknowledged) >= objects, f"{objects} writes", every=1)
    all_arrived(flight.url, collector, buckets, 300)
    found = verdict(flight.url, collector, writers, buckets, seed)
    bounds = total(exposed)
    say(f"{kills} kills, {bounds} messages were under way, duplicates {dict(found.duplicates_at)}: {found}")
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    assert len(writers.acknowledged) >= objects
    for bucket, number in bounds.items():
        assert found.duplicates_at[bucket] <= number
