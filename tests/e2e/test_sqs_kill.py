"""kill -9 of PostgreSQL and of the API under senders and receivers: an acknowledged message is there until it is deleted."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from botocore.exceptions import BotoCoreError, ClientError
from s3_server import Server, s3_server, start, wait_until_ready
from sqs_clients import sqs

from conftest import Say, fresh_database
from tidings.db.migrate import migrate
from tidings.local.postgres import Postgres
from tidings.local.processes import free_port
from waiting import PATIENCE_SECONDS

KILLS = 3
FAILURES = (ClientError, BotoCoreError)


def until_answered(call: Any, seconds: float = PATIENCE_SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except FAILURES:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def kill_and_start_again(server: Server) -> None:
    family = [*psutil.Process(server.process.pid).children(recursive=True), psutil.Process(server.process.pid)]
    for process in family:
        process.send_signal(signal.SIGKILL)
    server.process.wait(120)
    settings = {
        "TIDINGS_DATABASE__URL": server.database_url,
        "TIDINGS_STORE__BLOBS": f"file://{server.folder}/blobs",
        "TIDINGS_API__PORT": str(server.port),
    }
    with (server.folder / "server.log").open("ab") as log:
        server.process = start(settings, log)
    wait_until_ready(server)


def test_what_was_acknowledged_survives_kills_of_the_database_and_of_the_api(tmp_path: Path, say: Say) -> None:
    postgres = Postgres(tmp_path / "postgres", free_port())
    postgres.start()
    (tmp_path / "s3").mkdir()
    try:
        migrate(postgres.url)
        with s3_server(postgres.url, tmp_path / "s3", TIDINGS_API__WORKERS="1") as server:
            client = sqs(server, connect_timeout=2, read_timeout=10)
            url = client.create_queue(QueueName="killed")["QueueUrl"]
            acknowledged: list[str] = []
            asked: set[str] = set()
            deleted: set[str] = set()
            over = threading.Event()

            def send(who: int) -> None:
                number = 0
                while not over.is_set():
                    body = f"{who}-{number}"
                    number += 1
                    try:
                        client.send_message(QueueUrl=url, MessageBody=body)
                        acknowledged.append(body)
                        over.wait(0.05)
                    except FAILURES:
                        time.sleep(0.1)

            def receive() -> None:
                while not over.is_set():
                    try:
                        for each in client.receive_message(QueueUrl=url, VisibilityTimeout=2).get("Messages", []):
                            asked.add(each["Body"])
                            client.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
                            deleted.add(each["Body"])
                    except FAILURES:
                        time.sleep(0.1)

            threads = [threading.Thread(target=send, args=(who,)) for who in range(4)] + [threading.Thread(target=receive)]
            for thread in threads:
                thread.start()
            try:
                for _ in range(KILLS):
                    time.sleep(1.5)
                    os.kill(postgres.pid, signal.SIGKILL)
                    assert postgres.process is not None
                    postgres.process.wait(120)
                    postgres.start()
                    until_answered(lambda: client.get_queue_url(QueueName="killed"))
                kill_and_start_again(server)
                time.sleep(1)
            finally:
                over.set()
                for thread in threads:
                    thread.join(120)
            left = {row[0] for row in server.query("select body from queue_messages")}
            lost = set(acknowledged) - left - asked
            unanswered = asked - deleted
            say(
                f"{len(acknowledged)} acknowledged, {len(deleted)} deleted, {len(unanswered)} asked to delete and not answered,"
                f" {len(left)} left, {len(lost)} lost"
            )
            assert not lost
            # There is one receiver, and it asks for one at a time: a kill leaves one deletion open at most.
            assert len(unanswered) <= KILLS + 1
            assert len(acknowledged) > 50
            # What a receiver was told is deleted is deleted.
            assert not left & deleted
    finally:
        postgres.stop()


def test_a_move_task_goes_on_after_its_process_was_killed(tmp_path: Path, postgres: Postgres) -> None:
    with s3_server(fresh_database(postgres, "sqs_move"), tmp_path, TIDINGS_API__WORKERS="1") as server:
        client = sqs(server)
        source, letters = (client.create_queue(QueueName=name)["QueueUrl"] for name in ("source", "letters"))
        arns = {
            url: client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
            for url in (source, letters)
        }
        policy = json.dumps({"deadLetterTargetArn": arns[letters], "maxReceiveCount": 1})
        client.set_queue_attributes(QueueUrl=source, Attributes={"RedrivePolicy": policy})
        server.query(
            "insert into queue_messages (pile, body, sender, visible_at, source) select d.pile, 'm' || n, 's', now(), q.id"
            " from queues d, queues q, generate_series(1, 40) n where d.name = 'letters' and q.name = 'source' returning 1"
        )
        client.start_message_move_task(SourceArn=arns[letters], MaxNumberOfMessagesPerSecond=10)
        while not server.query("select from queue_messages m join queues q using (pile) where q.name = 'source'"):
            time.sleep(0.05)
        kill_and_start_again(server)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while client.list_message_move_tasks(SourceArn=arns[letters])["Results"][0]["Status"] != "COMPLETED":
            assert time.monotonic() < deadline
            time.sleep(0.2)
        rows = server.query(
            "select q.name, count(*), count(distinct m.body) from queue_messages m join queues q using (pile) group by 1"
        )
        assert rows == [("source", 40, 40)]
