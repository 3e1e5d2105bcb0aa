"""The whole stack with Spark on a standalone cluster: a master and two workers, each a process of its own."""

from __future__ import annotations

import random
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

import cluster as shared
from arrivals import PROJECT, Collector
from conftest import Running, Say, running_stack
from flight import Flight
from tidings.local.faults import set_fault
from tidings.local.processes import free_port
from tidings.local.spark_cluster import SparkCluster
from traffic import Writers, all_arrived, collecting, seeded, send_events, verdict
from waiting import until

pytestmark = pytest.mark.chaos  # a stack of its own, for which make test has no time

MANY = 2500  # more than one task takes
PAGE_OF_SPARK = free_port()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    started = SparkCluster(tmp_path_factory.mktemp("spark"), workers=2, cores=3)
    started.start()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def stack(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With time enough for each round, and with everything turned on that shows what Spark knows."""
    folder = tmp_path_factory.mktemp("on-a-cluster")
    events = folder / "events"
    events.mkdir()
    shown = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(PAGE_OF_SPARK),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    settings = shared.settings(cluster, **shown)
    with running_stack(folder, TIDINGS_DELIVERY__BUDGET_SECONDS="10", **settings) as running:
        yield running


@pytest.fixture(scope="module")
def collector(stack: Running) -> Iterator[Collector]:
    with collecting(stack) as collector:
        yield collector


def python_workers(cluster: SparkCluster, number: int) -> list[psutil.Process]:
    """The Python processes below a worker of the cluster, with the daemons that fork them."""
    worker = cluster.workers[number]
    assert worker is not None
    family = psutil.Process(worker.pid).children(recursive=True)
    return [process for process in family if "python" in process.name()]


def executor(cluster: SparkCluster, number: int) -> psutil.Process | None:
    """The JVM that a worker has started, if it has."""
    worker = cluster.workers[number]
    assert worker is not None
    return next((child for child in psutil.Process(worker.pid).children() if child.name() == "java"), None)


def publishers(cluster: SparkCluster, number: int, pubsub: str) -> set[int]:
    """Those below a worker that are connected with Pub/Sub: a client connects when it first publishes."""
    port = int(pubsub.rpartition(":")[2])
    found = set()
    for process in python_workers(cluster, number):
        try:
            connections = process.net_connections("tcp")
        except psutil.Error:  # it has just ended
            continue
        if any(each.status == psutil.CONN_ESTABLISHED and each.raddr and each.raddr.port == port for each in connections):
            found.add(process.pid)
    return found


@contextmanager
def standing_still(stack: Running) -> Iterator[None]:
    """The stream begins no round, so that what is written meanwhile is one."""
    stack.kill("stream", signal.SIGSTOP)
    try:
        yield
    finally:
        stack.kill("stream", signal.SIGCONT)


def test_events_arrive_in_order_and_both_workers_publish(
    cluster: SparkCluster, stack: Running, collector: Collector, say: Say
) -> None:
    seed = seeded()
    bucket = "through-the-cluster"
    send_events(stack, collector, bucket)
    url, pubsub = stack.ready["database"], stack.ready["pubsub"]
    with Writers(stack.ready, [bucket], seed, threads=4, keys=400, pace=0).writing() as writers:
        until(lambda: collector.of(bucket), "events arrive")
        with standing_still(stack):
            done = len(writers.acknowledged)
            until(lambda: len(writers.acknowledged) >= done + MANY, f"{MANY} writes")
    all_arrived(url, collector, [bucket])
    found = verdict(url, collector, writers, [bucket], seed)
    by_worker = [publishers(cluster, number, pubsub) for number in (0, 1)]
    say(f"published by the processes {by_worker[0]} of one worker and {by_worker[1]} of the other: {found}")
    assert (found.lost, found.phantom, found.inversions, found.duplicates) == ([], [], [], 0)
    assert all(by_worker), by_worker
    assert not by_worker[0] & by_worker[1]


def test_code_and_settings_come_with_the_stream(cluster: SparkCluster, stack: Running) -> None:
    """The cluster was started without them, and by nobody who knows of Tidings."""
    assert stack.ready
    for number in (0, 1):
        below = executor(cluster, number)
        assert below is not None
        assert (Path(below.cwd()) / "tidings.zip").is_file()
        assert not [name for name in below.environ() if name.startswith("TIDINGS_")]


def test_no_secret_is_shown_by_spark(cluster: SparkCluster, stack: Running) -> None:
    """Not on a page, in a plan, in the log of events, in a log, nor in a command line."""
    password = urlsplit(stack.ready["database"]).password
    assert password
    (running,) = cluster.state()["activeapps"]
    application = f"http://127.0.0.1:{PAGE_OF_SPARK}"
    rest = f"{application}/api/v1/applications/{running['id']}"
    places = [f"{page}{path}" for page in cluster.pages for path in ("/", "/json/")]
    places += [f"{cluster.pages[0]}/app/?appId={running['id']}", f"{application}/environment/", f"{application}/SQL/"]
    places += [f"{rest}/environment", f"{rest}/sql?details=true&length=100", f"{rest}/allexecutors"]
    shown = {place: urllib.request.urlopen(place, timeout=60).read().decode() for place in places}
    assert "spark.cores.max" in shown[f"{rest}/environment"]
    assert "MapInArrow" in shown[f"{rest}/sql?details=true&length=100"]
    for folder in (cluster.folder, stack.data.parent / "events"):
        files = [file for file in folder.rglob("*") if file.is_file() and file.suffix not in (".zip", ".jar")]
        shown |= {str(file): file.read_text(errors="replace") for file in files}
    assert any("SparkListenerEnvironmentUpdate" in text for text in shown.values())
    for root in (stack.pid("up"), *(worker.pid for worker in (cluster.master, *cluster.workers) if worker)):
        for process in psutil.Process(root).children(recursive=True):
            try:
                shown[f"the command line of {process.pid}"] = " ".join(process.cmdline())
            except psutil.Error:
                continue
    assert [place for place, text in shown.items() if password in text] == []


def written(stack: Running, collector: Collector, bucket: str, seed: int, number: int) -> Writers:
    """At least so many changes, and whatever was under way before has arrived."""
    with Writers(stack.ready, [bucket], seed, threads=4, keys=400, pace=0).writing() as writers:
        until(lambda: len(writers.acknowledged) >= number, f"{number} writes")
    while True:
        arrived = len(collector.arrivals)
        time.sleep(1)
        if len(collector.arrivals) == arrived:
            return writers


def kill(cluster: SparkCluster, number: int, what: str) -> bool:
    """With SIGKILL; whether there was anything to kill."""
    worker, below = cluster.workers[number], executor(cluster, number)
    assert worker is not None
    victims = {
        "a Python worker": [process for process in python_workers(cluster, number) if process.ppid() != (below and below.pid)],
        "an executor": [below] if below else [],
        "a worker": [psutil.Process(worker.pid)],
    }[what]
    for victim in victims:
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            continue
    if what == "a worker":
        worker.wait(120)
    return bool(victims)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [20])
def test_parts_of_the_cluster_that_are_killed_lose_nothing(
    cluster: SparkCluster, stack: Running, collector: Collector, say: Say, kills: int
) -> None:
    """Spark gives the tasks of whoever died to the other worker; what they had sent is sent again, and no more than that."""
    seed = seeded()
    chance = random.Random(seed)
    bucket = f"kill-the-cluster-{kills}"
    send_events(stack, collector, bucket)
    url, driver, log = stack.ready["database"], stack.pid("stream"), stack.data / "logs" / "stream.log"
    exposed, flight = 0, Flight(url, {f"arn:gcp:pubsub::{PROJECT}:{bucket}": bucket})
    writers = written(stack, collector, bucket, seed, 1)
    for turn, what in enumerate((["a Python worker", "an executor", "a worker"] * kills)[:kills]):
        number = chance.randrange(2)
        with standing_still(stack):
            set_fault(stack.ready["pubsub"], f"projects/{PROJECT}/topics/{bucket}", "delay", seconds=0.2)
            more = written(stack, collector, bucket, seed + 1 + turn, MANY)
        writers.acknowledged += more.acknowledged
        arrived = len(collector.arrivals)
        # now both workers send their part of a round, each key's changes one after the other
        until(lambda arrived=arrived: len(collector.arrivals) > arrived, "the round sends", every=0.005)
        time.sleep(chance.uniform(0, 0.5))
        before = flight.now()
        until(lambda what=what, number=number: kill(cluster, number, what), f"there is {what} to kill")
        exposed += max(before, flight.now())
        set_fault(stack.ready["pubsub"], "*", None)
        all_arrived(url, collector, [bucket])
        if what == "a worker":
            until(lambda: "task slots left and needs 4" in log.read_text(), "the stream warns")
            cluster.start_worker(number)
        until(lambda: all(executor(cluster, each) for each in (0, 1)), "both have executors again")
    all_arrived(url, collector, [bucket])
    found = verdict(url, collector, writers, [bucket], seed)
    say(f"{kills} kills, {exposed} changes were under way: {found}")
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    assert 0 < found.duplicates <= exposed, "no kill met a worker that had sent something"
    assert stack.pid("stream") == driver
