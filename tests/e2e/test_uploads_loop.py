"""The whole loop of seed 004 on one machine, nothing simulated: put, change, rule with filters, stream, queue, consumer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from s3_server import s3_server
from upload_place import Place, front, place

from tidings import settings as settings_module
from tidings.consumers.uploads import job
from tidings.consumers.uploads.consuming import Outcome, Tally
from tidings.consumers.uploads.init import RULE
from tidings.delivery import shipping
from tidings.delivery.stream import Stream
from tidings.settings import WORKERS_VARIABLE, Settings
from waiting import until


@contextmanager
def delivering(spark: SparkSession, settings: Settings) -> Iterator[None]:
    stream = Stream(spark, settings)
    thread = threading.Thread(target=stream.run)
    thread.start()
    try:
        yield
    finally:
        stream.stop()
        thread.join(120)


def with_filters(of: Place, prefix: str, suffix: str) -> None:
    s3 = of.s3
    found = s3.get_bucket_notification_configuration(Bucket=of.bucket)
    found.pop("ResponseMetadata")
    [rule] = found["QueueConfigurations"]
    assert rule["Id"] == RULE
    rules = [{"Name": "prefix", "Value": prefix}, {"Name": "suffix", "Value": suffix}]
    rule["Filter"] = {"Key": {"FilterRules": rules}}
    s3.put_bucket_notification_configuration(Bucket=of.bucket, NotificationConfiguration=found)


def test_what_is_posted_is_in_the_registry_and_what_the_rule_filters_out_is_not(
    spark: SparkSession, spark_database: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"TIDINGS_API__WORKERS": "1", "TIDINGS_BUCKET_EVENTING__DESTINATIONS": '["queue"]'}
    with s3_server(settings_module.load().database_url, tmp_path, **environment) as server:
        made = place(server, "uploads-loop")
        for name, value in made.environment.items():
            if name.startswith("TIDINGS_UPLOADS"):
                monkeypatch.setenv(name, value)
        monkeypatch.setenv("TIDINGS_UPLOADS__ROUND_SECONDS", "3")
        settings = settings_module.load()
        before = spark.sparkContext.environment[WORKERS_VARIABLE]
        shipping.ship_settings(spark, settings)
        try:
            with_filters(made, f"{server.project}/", ".pdf")
            with delivering(spark, settings), front(made, tmp_path) as (client, _):
                for name in ("a.pdf", "b.txt", "ü b.pdf"):
                    file = {"file": (name, b"content", "application/pdf")}
                    assert client.post("/api/uploads", data={"name": name}, files=file).status_code == 200
                made.upload("elsewhere", "c.pdf")
                until(lambda: made.waiting() == 4, "two notifications beside two test events")
                assert job.run(spark, settings, once=True, stop=threading.Event()) == {Outcome.IGNORED: 2, Outcome.RECORDED: 2}
                assert set(made.rows()) == {(server.project, "a.pdf"), (server.project, "ü b.pdf")}
                _follows(spark, settings, made)
                assert [each["name"] for each in client.get("/api/uploads").json()["uploads"]] == ["a.pdf", "n.pdf", "ü b.pdf"]
        finally:
            spark.sparkContext.environment[WORKERS_VARIABLE] = before
    assert spark_database.execute("select count(*) from upload_registry").fetchone() == (3,)


def _follows(spark: SparkSession, settings: Settings, made: Place) -> None:
    """Without `once` it goes on round after round until it is told to stop."""
    stop, done = threading.Event(), list[Tally]()
    running = threading.Thread(target=lambda: done.append(job.run(spark, settings, once=False, stop=stop)))
    running.start()
    made.upload(made.server.project, "n.pdf")
    until(lambda: len(made.rows()) == 3, "it is recorded")
    until(lambda: made.waiting() == 0, "it is acknowledged")
    stop.set()
    running.join(120)
    assert len(done) == 1, "it has stopped"
