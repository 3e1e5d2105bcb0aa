"""Two streams on one database: one delivers, the other waits. One that falls silent is replaced, and does no harm later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from arrivals import Collector
from conftest import Running, Say, running_stack
from tidings.delivery.ownership import IDLE_IN_TRANSACTION_SECONDS, TAKEOVER_SECONDS
from traffic import Writers, all_arrived, collecting, seeded, send_events, verdict
from waiting import until

BUCKET = "two-streams"


class Second:
    """A `tidings stream` that somebody started by mistake."""

    def __init__(self, stack: Running, folder: Path) -> None:
        self._log = folder / "second.log"
        settings = {
            "TIDINGS_DATABASE__URL": stack.ready["database"],
            "TIDINGS_STORE__BLOBS": (stack.data / "blobs").as_uri(),
            "TIDINGS_API__PORT": stack.ready["s3"].rpartition(":")[2],
            "TIDINGS_PUBSUB__EMULATOR_HOST": stack.ready["pubsub"],
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidings", "stream"], stdout=log, stderr=log, env={**os.environ, **settings}
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            send_to_all(tree(self.process.pid), signal.SIGCONT)
            self.process.terminate()
            self.process.wait(120)


class Watch:
    """Every state that the row of the stream was seen in: (epoch, window, seq)."""

    def __init__(self, url: str) -> None:
        self.seen: list[tuple[int, int, int]] = []
        self._url = url
        self._stop = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            until(lambda: self.seen, "the stream's row was read")
            yield self
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stop.wait(0.02):
                row = connection.execute("select epoch, win, seq from stream where name = 'main'").fetchone()
                assert row is not None
                if not self.seen or self.seen[-1] != row:
                    self.seen.append(row)

    @property
    def epoch(self) -> int:
        return self.seen[-1][0]

    @property
    def position(self) -> tuple[int, int]:
        return self.seen[-1][1:]

    def moves(self, epoch: int) -> None:
        """Wait until the stream of this epoch has moved the position."""
        until(lambda: self.epoch >= epoch, f"a stream of epoch {epoch}")
        start = self.position
        until(lambda: self.position > start, f"epoch {epoch} moves the position")


def tree(pid: int) -> list[int]:
    """A process and everything below it: Spark's JVM, and the Python workers below that."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def send_to_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        if psutil.pid_exists(pid):
            os.kill(pid, number)


@pytest.mark.timeout(900)
def test_a_second_stream_waits_takes_over_from_a_silent_one_and_gives_way_again(tmp_path: Path, say: Say) -> None:
    seed = seeded()
    # With time enough for each round: on a busy machine a late answer would make duplicates that look like a second sender.
    with running_stack(tmp_path, TIDINGS_DELIVERY__BUDGET_SECONDS="10") as stack, collecting(stack) as collector:
        send_events(stack, collector, BUCKET)
        url = stack.ready["database"]
        watch = Watch(url)
        with watch.watching(), Writers(stack.ready, [BUCKET], seed, pace=0.3).writing() as writers:  # two streams have to start
            second = Second(stack, tmp_path)
            try:
                _play(stack, second, watch, collector, say)
            finally:
                second.end()
        all_arrived(url, collector, [BUCKET])
        found = verdict(url, collector, writers, [BUCKET], seed)
    say(str(found))
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    assert (writers.refused, writers.unanswered) == ([], 0)
    epochs, positions = [row[0] for row in watch.seen], [row[1:] for row in watch.seen]
    assert epochs == sorted(epochs)
    assert positions == sorted(positions), "the position went back"


def _play(stack: Running, second: Second, watch: Watch, collector: Collector, say: Say) -> None:
    first, epoch = stack.pid("stream"), watch.epoch

    # It waits, for all that it has started.
    until(lambda: "another stream is active" in second.log, "the second stream waits")
    arrived = len(collector.arrivals)
    time.sleep(2)
    until(lambda: len(collector.arrivals) > arrived, "the first goes on")
    assert watch.epoch == epoch
    assert "the stream is ours" not in second.log
    assert len(collector.arrivals) == len(collector.ids()), "both delivered"

    # The first one's driver is stopped; its JVM and its workers go on. Where that happens inside a transaction the database
    # ends its session, and with it the lock, before anybody's patience does.
    stopped = time.monotonic()
    os.kill(first, signal.SIGSTOP)
    watch.moves(epoch + 1)
    say(f"driver stopped: the second delivered after {time.monotonic() - stopped:.1f} s")
    patience = min(IDLE_IN_TRANSACTION_SECONDS, TAKEOVER_SECONDS) - 1
    assert time.monotonic() - stopped > patience, "a stream with signs of life was replaced"
    assert second.log.count("the stream is ours") == 1
    os.kill(first, signal.SIGCONT)
    _stays(watch, epoch + 1)
    assert stack.pid("stream") == first, "the first one waits, it did not die"

    # The second one and everything below it is stopped: the first takes over again.
    silent = tree(second.process.pid)
    stopped = time.monotonic()
    send_to_all(silent, signal.SIGSTOP)
    watch.moves(epoch + 2)
    say(f"whole tree stopped: the first delivered after {time.monotonic() - stopped:.1f} s")
    send_to_all(silent, signal.SIGCONT)
    _stays(watch, epoch + 2)
    assert second.process.poll() is None

    # The first one dies: the second needs no patience, for the lock went with it. The supervisor's new one waits.
    stopped = time.monotonic()
    stack.kill("stream")
    watch.moves(epoch + 3)
    say(f"killed: the second delivered after {time.monotonic() - stopped:.1f} s")
    until(lambda: stack.pid("stream") != first, "the first was started again")

    # The second is stopped as it should have been at once: the first carries on.
    second.process.terminate()
    assert second.process.wait(120) == 0
    watch.moves(epoch + 4)


def _stays(watch: Watch, epoch: int) -> None:
    """Who has woken up finds that it was replaced, and the one who replaced it goes on."""
    time.sleep(4)
    start = watch.position
    until(lambda: watch.position > start, f"epoch {epoch} goes on")
    assert watch.epoch == epoch
