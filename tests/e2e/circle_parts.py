"""The parts of the circle: consumers that are started again when they end, and messages that come twice and late."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

import kafka_reader
from tidings.local.processes import die_with_parent, end
from waiting import until

_AGAIN_SECONDS = 0.5
_STOP_SECONDS = 60.0
_ECHOED = 0.15
"""How large a part of the messages comes again."""
_LATE = 15
"""So many of these wait at a time: what comes again comes later than most that followed it."""


def kill_tree(pid: int) -> None:
    """SIGKILL for a process and all below it. First the root: it must not see its children die."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()


class Kept:
    """`tidings …` as a process, started again whenever it ends, as whoever manages services does it."""

    def __init__(self, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> None:
        self._command = [sys.executable, "-m", "tidings", *arguments]
        self._environment = {**os.environ, **environment}
        self.log = log
        self.ended: list[int] = []
        """The statuses with which it ended without having been killed by us."""
        self._running: subprocess.Popen[bytes] | None = None
        self._killed: set[int] = set()
        self._stop = threading.Event()
        # The kernel takes the thread that has started a process for its parent: one thread does it all.
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        while not self._stop.is_set():
            with self.log.open("ab") as out:
                process = subprocess.Popen(
                    self._command,
                    env=self._environment,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,  # as the stack's own parts
                    preexec_fn=die_with_parent(signal.SIGKILL),
                )
            self._running = process
            while process.poll() is None and not self._stop.wait(0.1):
                pass
            if process.poll() is None:
                end(process, _STOP_SECONDS)
                return
            self._running = None
            if process.pid not in self._killed:
                self.ended.append(process.returncode)
                self._stop.wait(_AGAIN_SECONDS)

    def kill(self) -> None:
        process = until(lambda: self._running, f"it was started again: {self.last_words()}")
        self._killed.add(process.pid)
        kill_tree(process.pid)

    def stop(self) -> None:
        self._stop.set()
        self._keeper.join()

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


class Echo:
    """Puts messages of a topic into it again, each once, later and in any partition: disorder within a key for certain."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._chance = random.Random(f"{seed}/echo")
        self._stop = threading.Event()
        self.count = 0
        self._failures: list[BaseException] = []

    @contextmanager
    def echoing(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
        assert not self._failures, self._failures

    def _run(self) -> None:
        options = {"bootstrap.servers": self._bootstrap}
        reader = Consumer({**options, "group.id": "echo", "enable.auto.commit": False})
        producer = Producer(options)
        try:
            self._echo(reader, producer)
            producer.flush(30)
        except BaseException as error:
            self._failures.append(error)
        finally:
            reader.close()

    def _echo(self, reader: Consumer, producer: Producer) -> None:
        partitions = list(reader.list_topics(self._topic, timeout=60).topics[self._topic].partitions)
        reader.assign([TopicPartition(self._topic, partition, 0) for partition in partitions])
        waiting, known = [], set()
        while not self._stop.is_set() or waiting:
            message = None if self._stop.is_set() else reader.poll(0.2)
            if message is not None and message.error() is None:
                id_ = kafka_reader.headers(message).get("id")
                if id_ not in known and self._chance.random() < _ECHOED:
                    waiting.append(message)
                known.add(id_)
            if len(waiting) > _LATE or (self._stop.is_set() and waiting):
                again = waiting.pop(self._chance.randrange(len(waiting)))
                where = {"key": again.key(), "headers": again.headers(), "partition": self._chance.choice(partitions)}
                producer.produce(self._topic, again.value(), **where)
                producer.poll(0)
                self.count += 1


def lag(bootstrap: str, topic: str, positions: Mapping[int, int]) -> int:
    """How many messages of the topic lie beyond these positions."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "lag", "enable.auto.commit": False})
    try:
        behind = 0
        for partition in reader.list_topics(topic, timeout=60).topics[topic].partitions:
            low, high = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
            behind += high - max(low, positions.get(partition, 0))
        return behind
    finally:
        reader.close()
