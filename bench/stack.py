"""A stack of its own for a figure: `tidings up`, as a user would start it, and a bucket or two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import psycopg

from bench.measure import CannotMeasure, Progress
from tidings.events.arn import PubSubTopic
from tidings.local.processes import die_with_parent

TOPIC = PubSubTopic("bench-project", "bench-events")
PREFIX = "data/"
_START_SECONDS = 180.0
_STOP_SECONDS = 90.0


def bucket(ready: dict[str, Any], name: str, *, eventing: bool = False) -> None:
    """A new bucket, which sends everything below PREFIX to TOPIC or has no configuration at all."""
    import boto3  # a client, and not one that is measured

    s3 = boto3.client(
        "s3",
        endpoint_url=ready["s3"],
        region_name=ready["region"],
        aws_access_key_id=ready["access_key_id"],
        aws_secret_access_key=ready["secret_access_key"],
    )
    s3.create_bucket(Bucket=name)
    if eventing:
        rule = {
            "TopicArn": TOPIC.arn,
            "Events": ["s3:ObjectCreated:*"],
            "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": PREFIX}]}},
        }
        s3.put_bucket_notification_configuration(Bucket=name, NotificationConfiguration={"TopicConfigurations": [rule]})


class Stack:
    """What the ready file of a running stack says, and what a figure needs to do with it."""

    def __init__(self, ready: dict[str, Any], data: Path) -> None:
        self.ready = ready
        self.data = data
        self.up: int = ready["pids"]["up"]
        self.database = psycopg.connect(ready["database"], autocommit=True)

    def wait_until_delivered(self, seconds: float) -> None:
        """Until the stream and all lanes have passed every change that is there now: nothing is left to do but to poll."""
        (last,) = self._row("select coalesce(max(seq), 0) from changes where rules is not null")
        deadline = time.monotonic() + seconds
        while True:
            done, live = self._row("select (select seq from stream), not exists (select from lanes where state <> 'live')")
            if done >= last and live:
                return
            if time.monotonic() > deadline:
                raise CannotMeasure(f"The stream has come to {done} of {last} changes and does not get further.")
            time.sleep(0.1)

    def _row(self, query: str) -> tuple[Any, ...]:
        row = self.database.execute(query.encode()).fetchone()
        assert row is not None
        return row

    @contextmanager
    def without_stream(self) -> Iterator[None]:
        """The stream's processes stand still, between two rounds, for as long as the block lasts."""
        driver = psutil.Process(self.ready["pids"]["stream"])
        processes = [driver, *driver.children(recursive=True)]
        try:
            self._stop_between_rounds(processes)
            yield
        finally:
            for process in processes:
                process.send_signal(signal.SIGCONT)

    def _stop_between_rounds(self, processes: list[psutil.Process]) -> None:
        """An open transaction of a process that stands still would hold back the whole database."""
        for _ in range(100):
            for process in processes:
                process.send_signal(signal.SIGSTOP)
            time.sleep(0.1)
            (busy,) = self._row(
                "select count(*) from pg_stat_activity where application_name like 'tidings %' and state <> 'idle'"
            )
            if not busy:
                return
            for process in processes:
                process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        raise CannotMeasure("The stream does not come to rest.")


@contextmanager
def running(progress: Progress) -> Iterator[Stack]:
    """Everything that `tidings up` starts, on free ports, its data in a temporary folder."""
    with TemporaryDirectory(prefix="tidings-bench-") as folder:
        progress("starting a stack")
        data, ready, log = Path(folder) / "data", Path(folder) / "ready.json", Path(folder) / "up.log"
        command = [sys.executable, "-m", "tidings", "up", "--data", str(data), "--port", "0"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, "--ready-file", str(ready)], stdout=out, stderr=out, preexec_fn=die_with_parent()
            )
        try:
            _wait(process, ready, log)
            stack = Stack(json.loads(ready.read_text()), data)
            os.environ["PUBSUB_EMULATOR_HOST"] = stack.ready["pubsub"]  # how Google's clients learn of it
            try:
                yield stack
            finally:
                stack.database.close()
                del os.environ["PUBSUB_EMULATOR_HOST"]
        finally:
            progress("stopping the stack")
            process.terminate()
            process.wait(_STOP_SECONDS)


def _wait(process: subprocess.Popen[bytes], ready: Path, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise CannotMeasure(f"The stack did not start: {lines[-1] if lines else 'it said nothing'}")
        time.sleep(0.1)
