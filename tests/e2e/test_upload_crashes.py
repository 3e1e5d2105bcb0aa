"""The consumer killed between any two of its steps, and removals that meet it half-way: nothing lost, twice or back again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
from s3_server import Server, s3_server
from upload_place import Place, front, place

import gate
from conftest import fresh_database
from gate import Gate, Request
from tidings.consumers.uploads.consuming import Outcome, Tally
from tidings.local.postgres import Postgres
from waiting import until

NAMES = {("org", f"n-{number}") for number in range(5)}
RUN = """
from tidings import settings
from tidings.consumers.uploads.consuming import Consumer

Consumer(settings.load()).work(600)
"""

Choose = Callable[[Request], str | None]


def asks_for_an_object(request: Request) -> bool:
    return request.method == "HEAD" and request.path.count("/") > 1


def acknowledges(request: Request) -> bool:
    return request.target == "AmazonSQS.DeleteMessageBatch"


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"TIDINGS_API__WORKERS": "1", "TIDINGS_BUCKET_EVENTING__DESTINATIONS": '["queue"]'}
    folder = tmp_path_factory.mktemp("crashes")
    with s3_server(fresh_database(postgres, "upload_crashes"), folder, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def made(server: Server) -> Place:
    return place(server, "crashes")


@pytest.fixture
def ready(made: Place) -> Place:
    made.clean()
    return made


@pytest.fixture(scope="module")
def client(made: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with front(made, tmp_path_factory.mktemp("front")) as (running, _):
        yield running


@pytest.fixture
def way(server: Server) -> Iterator[Gate]:
    with gate.running(("127.0.0.1", server.port)) as running:
        yield running


@contextmanager
def killed(of: Place, way: Gate, folder: Path) -> Iterator[None]:
    """A consumer as a process, behind the gate; when the block ends, it is killed where it stands."""
    with (folder / "consumer.log").open("wb") as log:
        environment = {
            **of.environment,
            "TIDINGS_UPLOADS__ENDPOINT": way.endpoint,
            "TIDINGS_UPLOADS__VISIBILITY_SECONDS": "4",
        }
        process = subprocess.Popen([sys.executable, "-c", RUN], env=environment, stdout=log, stderr=log)
    try:
        yield
        assert process.poll() is None, (folder / "consumer.log").read_text()
    finally:
        process.kill()
        process.wait()
    way.drop()


def everything_is_recorded_by_the_next(of: Place) -> Tally:
    """What the next consumer did until the queue was empty."""
    done = Tally()

    def drained() -> bool:
        done.update(of.consume())
        return of.waiting() == 0

    until(drained, "the queue is empty")
    assert set(of.rows()) == NAMES
    assert of.waiting(of.letters) == 0
    return done


@pytest.mark.parametrize(
    ("choose", "recorded", "again"),
    [
        pytest.param(lambda each: "before" if asks_for_an_object(each) else None, False, 5, id="after-receive"),
        pytest.param(lambda each: "after" if asks_for_an_object(each) else None, False, 5, id="during-head"),
        pytest.param(lambda each: "before" if acknowledges(each) else None, True, 5, id="after-upsert-before-delete"),
        pytest.param(lambda each: "after" if acknowledges(each) else None, True, 0, id="after-delete-before-its-answer"),
    ],
)
def test_a_consumer_that_is_killed_loses_nothing_and_records_nothing_twice(
    ready: Place, way: Gate, tmp_path: Path, choose: Choose, recorded: bool, again: int
) -> None:
    ready.notify(*[ready.upload(*name) for name in sorted(NAMES)])
    way.choose = choose
    with killed(ready, way, tmp_path):
        assert way.held.wait(60)
        assert set(ready.rows()) == (NAMES if recorded else set())
    assert everything_is_recorded_by_the_next(ready) == ({Outcome.RECORDED: again} if again else {})


def test_a_consumer_that_is_killed_after_head_and_before_its_upsert_loses_nothing(
    ready: Place, way: Gate, tmp_path: Path
) -> None:
    ready.notify(*[ready.upload(*name) for name in sorted(NAMES)])
    with psycopg.connect(ready.server.database_url) as other:
        other.execute("lock table upload_registry in access exclusive mode")
        with killed(ready, way, tmp_path):
            until(lambda: _waits_to_write(ready), "it has asked the store and waits to write")
            assert sum(map(asks_for_an_object, way.seen)) == 5
        other.rollback()
    assert everything_is_recorded_by_the_next(ready) == {Outcome.RECORDED: 5}


def _waits_to_write(of: Place) -> bool:
    waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query ilike '%%into upload_registry%%'"
    return bool(of.server.query(waiting))


def test_a_consumer_that_saw_an_object_before_it_was_removed_does_not_bring_it_back(
    ready: Place, way: Gate, client: httpx.Client
) -> None:
    key = ready.upload(ready.server.project, "report")
    ready.notify(key)
    with ThreadPoolExecutor(2) as threads:
        way.choose = lambda each: "after" if asks_for_an_object(each) else None
        consuming = threads.submit(ready.consume, endpoint=way.endpoint)
        assert way.held.wait(60), "the consumer knows that the object is there"
        removing = threads.submit(client.delete, "/api/uploads/report")
        until(lambda: removing.done() or _waits_for_the_lock(ready), "the removal is done, or waits")
        way.release()
        assert consuming.result(60) == {Outcome.RECORDED: 1}
        assert removing.result(60).status_code == 200
    assert ready.rows() == {}
    assert ready.s3.list_objects_v2(Bucket=ready.bucket, Prefix=ready.server.project)["KeyCount"] == 0


def _waits_for_the_lock(of: Place) -> bool:
    return bool(of.server.query("select 1 from pg_locks where locktype = 'advisory' and not granted"))


def test_a_late_event_does_not_bring_back_what_was_removed_but_a_newer_upload_does(ready: Place, client: httpx.Client) -> None:
    project = ready.server.project
    ready.notify(ready.upload(project, "report"))
    assert ready.consume() == {Outcome.RECORDED: 1}
    assert client.delete("/api/uploads/report").status_code == 200
    assert ready.rows() == {}
    ready.notify(f"{project}/report")
    assert ready.consume() == {Outcome.GONE: 1}
    assert ready.rows() == {}
    posted = client.post("/api/uploads", data={"name": "report"}, files={"file": ("r.txt", b"newer", "text/plain")})
    assert posted.status_code == 200
    ready.notify(f"{project}/report")
    assert ready.consume() == {Outcome.RECORDED: 1}
    assert list(ready.rows()) == [(project, "report")]


def test_a_removal_that_the_store_does_not_take_changes_nothing_and_can_be_asked_for_again(
    ready: Place, way: Gate, tmp_path: Path
) -> None:
    key = ready.upload(ready.server.project, "report")
    ready.notify(key)
    ready.consume()
    with front(ready, tmp_path, TIDINGS_UPLOADS__ENDPOINT=way.endpoint) as (client, _):
        way.choose = lambda each: 503 if each.method == "DELETE" else None
        refused = client.delete("/api/uploads/report")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "Unavailable")
        assert len(ready.rows()) == 1
        way.release()
        assert client.delete("/api/uploads/report").json() == {"success": True, "name": "report"}
    assert ready.rows() == {}
