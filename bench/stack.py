"""A stack of its own for a figure: `tidings up`, as a user would start it, and a bucket or two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
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


def client(ready: dict[str, Any]) -> Any:
    import boto3  # a client, and not one that is measured

    return boto3.client(
        "s3",
        endpoint_url=ready["s3"],
        region_name=ready["region"],
        aws_access_key_id=ready["access_key_id"],
        aws_secret_access_key=ready["secret_access_key"],
    )


def bucket(ready: dict[str, Any], name: str, *, eventing: bool = False) -> None:
    """A new bucket, which sends everything below PREFIX to TOPIC or has no configuration at all."""
    s3 = client(ready)
    s3.create_bucket(Bucket=name)
    if eventing:
        rule = {
            "TopicArn": TOPIC.arn,
            "Events": ["s3:ObjectCreated:*"],
            "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": PREFIX}]}},
        }
        s3.put_bucket_notification_configuration(Bucket=name, NotificationConfiguration={"TopicConfigurations": [rule]})


def configured(connection: psycopg.Connection, project: str, buckets: int) -> None:
    """Buckets bench-0, bench-1 and so on, each with a rule that wants everything below PREFIX."""
    wanted = {"project": project, "buckets": buckets, "arn": TOPIC.arn, "topic": TOPIC.name, "prefix": PREFIX}
    for statement in (
        "insert into lanes (project, destination) values (%(project)s, %(arn)s) on conflict do nothing",
        "insert into bucket_metainfos (project_id, name, config) select id, 'bench-' || n, 1"
        " from projects, generate_series(0, %(buckets)s - 1) n where public_id = %(project)s",
        "insert into bucket_eventing_configs"
        " (project_id, bucket_name, config_id, topic_name, events, filter_prefix, lane, since)"
        " select p.id, b.name, 'bench', %(topic)s, '{s3:ObjectCreated:*}', %(prefix)s, l.id, 1 from projects p"
        " join bucket_metainfos b on b.project_id = p.id join lanes l on l.project = p.public_id"
        " where p.public_id = %(project)s order by substr(b.name, 7)::int",
        "analyze",
    ):
        connection.execute(statement, wanted)


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
def running(progress: Progress, environment: Mapping[str, str] = MappingProxyType({})) -> Iterator[Stack]:
    """Everything that `tidings up` starts, on free ports, its data in a temporary folder."""
    with TemporaryDirectory(prefix="tidings-bench-") as folder:
        progress("starting a stack")
        data, ready, log = Path(folder) / "data", Path(folder) / "ready.json", Path(folder) / "up.log"
        command = [sys.executable, "-m", "tidings", "up", "--data", str(data), "--port", "0"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, "--ready-file", str(ready)],
                stdout=out,
                stderr=out,
                env={**os.environ, **environment},
                preexec_fn=die_with_parent(),
            )
        try:
            _wait(process, ready, log)
            stack = Stack(json.loads(ready.read_text()), data)
            os.environ["PUBSUB_EMULATOR_HOST"] = stack.ready["pubsub"]  # how Google's clients learn of it
            try:
                yield stack
            finally:
                stack.database.close()
                os.environ.pop("PUBSUB_EMULATOR_HOST", None)  # of two stacks the one that ends first has removed it
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
