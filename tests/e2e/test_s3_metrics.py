"""GET /-/metrics of a server with two processes: whichever is asked, the figures are those of both."""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from google.pubsub_v1 import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from grpc import insecure_channel
from prometheus_client.parser import text_string_to_metric_families
from s3_server import Server, request, s3_server

import canary
from tidings.api.figures import ApiFigures, may_read
from tidings.db.pool import make_pool
from tidings.local import pubsub
from tidings.local.postgres import Postgres
from tidings.local.processes import free_port
from tidings.settings import Settings
from waiting import PATIENCE_SECONDS, until

CONFIGURATION = """<NotificationConfiguration><TopicConfiguration><Topic>arn:gcp:pubsub::my-project:{topic}</Topic>
<Event>s3:ObjectCreated:*</Event></TopicConfiguration></NotificationConfiguration>"""


def scraped(server: Server) -> str:
    with urllib.request.urlopen(f"{server.endpoint}/-/metrics", timeout=60) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        text = str(answer.read().decode())
    canary.seen(text)
    return text


def figures(server: Server) -> dict[str, float]:
    return {
        f"{sample.name}{{{','.join(f'{name}={value}' for name, value in sorted(sample.labels.items()))}}}": sample.value
        for family in text_string_to_metric_families(scraped(server))
        for sample in family.samples
    }


def of_database(seen: dict[str, float]) -> list[str]:
    return [name for name in seen if "configurations" in name or "lane" in name]


@pytest.fixture(scope="module")
def topic() -> Iterator[pubsub.PubSubServer]:
    with pubsub.running() as server:
        client = PublisherClient(transport=PublisherGrpcTransport(channel=insecure_channel(server.address)))
        client.create_topic(name="projects/my-project/topics/there")
        yield server


def put_until_both_have_served(server: Server, prefix: str) -> int:
    """Returns how many PUTs it took; each process has a host id of its own."""
    hosts: set[str] = set()
    number = 0
    while number < 20 or len(hosts) < 2:
        number += 1
        answer = request(server, "PUT", f"/secret-bucket/{prefix}-{number}", body=b"x")
        assert answer.status == 200
        hosts.add(answer.headers["x-amz-id-2"])
        assert number < 500, "one process serves nothing"
    return number


def workers(server: Server) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children()


def test_figures_are_those_of_all_processes_together_and_name_nobody(
    database_url: str, tmp_path: Path, topic: pubsub.PubSubServer
) -> None:
    (tmp_path / "scratch").mkdir()
    environment = {"TIDINGS_PUBSUB__EMULATOR_HOST": topic.address, "TMPDIR": str(tmp_path / "scratch")}
    with s3_server(database_url, tmp_path, TIDINGS_API__WORKERS="2", **environment) as server:
        assert request(server, "PUT", "/secret-bucket").status == 200
        written = put_until_both_have_served(server, "secret-key")
        missing = [request(server, "GET", "/secret-bucket/nothing").status for _ in range(7)]
        unsigned = urllib.request.Request(f"{server.endpoint}/secret-bucket/nothing", method="PUT")
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(unsigned, timeout=60)
        for name, status in (("there", 200), ("away", 400), ("gone", 400)):
            body = CONFIGURATION.format(topic=name).encode()
            assert request(server, "PUT", "/secret-bucket", "notification", body).status == status
        server.query("update lanes set state = 'behind', win = 0, seq = 0, since = now() - interval '1 hour' returning id")

        for _ in range(12):  # either process may be the one that answers
            seen = figures(server)
            assert seen["tidings_requests_total{operation=PutObject,status_class=2xx}"] == written
            assert seen["tidings_requests_total{operation=GetObject,status_class=4xx}"] == len(missing)
            assert seen["tidings_requests_total{operation=unknown,status_class=4xx}"] == 1
            assert seen["tidings_test_events_total{outcome=sent}"] == 1
            assert seen["tidings_test_events_total{outcome=refused}"] == 2
            assert seen["tidings_notification_configurations{}"] == 1
            assert (seen["tidings_lanes{state=behind}"], seen["tidings_lanes{state=live}"]) == (1, 0)
            assert 3600 <= seen["tidings_lane_oldest_behind_seconds{}"] < 4600

        text = scraped(server)
        [(private, public)] = server.query("select id::text, public_id::text from projects")
        for name in (private, public, private.replace("-", ""), "secret", "my-project", "there", server.access_key_id):
            assert name not in text, name

        killed = workers(server)[0]
        killed.kill()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len([each for each in workers(server) if each.is_running() and each != killed]) < 2:
            assert time.monotonic() < deadline, "the killed process was not replaced"
            time.sleep(0.1)
        assert figures(server)["tidings_requests_total{operation=PutObject,status_class=2xx}"] == written
        written += put_until_both_have_served(server, "later")
        for _ in range(6):
            assert figures(server)["tidings_requests_total{operation=PutObject,status_class=2xx}"] == written
        assert len(list((tmp_path / "scratch").glob("tidings-metrics-*"))) == 1
        server.process.terminate()
        server.process.wait(120)
        assert list((tmp_path / "scratch").iterdir()) == []


def test_without_the_database_its_figures_are_left_out_and_the_counts_are_there(tmp_path: Path) -> None:
    postgres = Postgres(tmp_path / "postgres", free_port())
    postgres.start()
    try:
        with s3_server(postgres.url, tmp_path) as server:
            assert request(server, "PUT", "/bucket").status == 200
            assert figures(server)["tidings_notification_configurations{}"] == 0
            postgres.stop()
            until(lambda: not of_database(figures(server)), "what the database said is old")
            assert figures(server)["tidings_requests_total{operation=CreateBucket,status_class=2xx}"] == 1
    finally:
        postgres.stop()


def _status(server: Server, **headers: str) -> int:
    asked = urllib.request.Request(f"{server.endpoint}/-/metrics", headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


@pytest.mark.parametrize(("setting", "here", "through_a_proxy"), [("", 404, 404), ("loopback", 200, 404), ("open", 200, 200)])
def test_figures_are_shown_to_nobody_unless_the_operator_says_to_whom(
    database_url: str, tmp_path: Path, setting: str, here: int, through_a_proxy: int
) -> None:
    with s3_server(database_url, tmp_path, TIDINGS_API__METRICS=setting or Settings().api.metrics) as server:
        assert (_status(server), _status(server, **{"X-Forwarded-For": "192.0.2.1"})) == (here, through_a_proxy)


@pytest.mark.parametrize("client", ["192.0.2.1", "10.0.0.1", "::ffff:192.0.2.1", "", "localhost"])
def test_who_is_not_on_this_machine_is_not_on_loopback(client: str) -> None:
    assert not may_read("loopback", client, {})
    assert all(may_read("loopback", here, {}) for here in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"))


def test_the_database_is_asked_once_for_many_questions(database_url: str) -> None:
    async def ask() -> tuple[int, float]:
        async with make_pool(database_url, 2) as pool:
            shown, began = ApiFigures(pool), time.monotonic()
            texts = {await shown.shown() for _ in range(200)}
            assert all(b"tidings_notification_configurations" in text for text in texts)
            return pool.get_stats()["requests_num"], time.monotonic() - began

    asked, seconds = asyncio.run(ask())
    assert asked <= 1 + seconds / 5
