"""The subscriber that publishes to Kafka, over real brokers of librdkafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from catalog_events import commit, created, stored
from kafka_reader import headers, read
from tidings.delivery.settings import KafkaSettings
from tidings.local import kafka
from tidings.settings import Settings
from tidings.subscribers import finding
from tidings.subscribers.dispatcher import Dispatcher
from tidings.subscribers.settings import SubscribersSettings
from waiting import until

SOON = {"message.timeout.ms": 1000}
"""Of brokers that are away it is soon known."""


def start(bootstrap: str, cluster: str = "main", options: dict[str, int] | None = None, **settings: Any) -> Dispatcher:
    clusters = KafkaSettings(clusters={"main": {"bootstrap": bootstrap, "options": options or {}}})
    subscribers = SubscribersSettings(kafka_cluster=cluster, kafka_topic="told", **settings)
    return finding.start(Settings(kafka=clusters, subscribers=subscribers))


@pytest.fixture
def brokers() -> Iterator[kafka.Running]:
    with kafka.running() as running:
        yield running


def test_events_arrive_with_key_headers_and_body(brokers: kafka.Running) -> None:
    dispatcher = start(brokers.bootstrap)
    meta = {"commitTime": "2026-01-02T00:00:00Z", "message": "é"}
    events = [commit(commit_meta=meta), stored("a", "b"), created()]
    dispatcher.publish(events)
    dispatcher.stop()
    told = {headers(message)["event-id"]: message for message in read(brokers.bootstrap, "told")}
    assert {message.key() for message in told.values()} == {b"r:main"}
    assert [json.loads(told[event.id].value()) for event in events] == [event.to_json() for event in events]
    assert headers(told[events[0].id]) == {
        "event-id": events[0].id,
        "spec-version": "1.0.0",
        "api-version": "1",
        "repository-id": "r",
        "tidings-project": "r",
        "initiator": "ada",
        "event-type": "COMMIT",
        "event-creation-time": "2026-01-01T00:00:00.000000Z",
        "commit-creation-time": "2026-01-02T00:00:00Z",
    }
    assert headers(told[events[1].id])["commit-creation-time"] == "2026-01-01T00:00:00Z"
    assert "commit-creation-time" not in headers(told[events[2].id])
    assert dispatcher.feeds[0].status.delivered == 3


def test_brokers_that_are_away_open_the_breaker_and_nobody_waits() -> None:
    dispatcher = start("127.0.0.1:1", options=SOON, breaker_failures=2, retries=0)
    [feed] = dispatcher.feeds

    def opened() -> bool:
        dispatcher.publish([commit()])
        return feed.status.breaker == "open"

    until(opened, "the breaker opens")
    assert "KafkaException" in feed.status.last_error
    dispatcher.stop()


def test_brokers_that_come_back_are_sent_to_again(brokers: kafka.Running, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = start(brokers.bootstrap, options=SOON, breaker_failures=2, breaker_rest_seconds=0.5, retries=0)
    [feed] = dispatcher.feeds
    brokers.set_fault("down")

    def publish() -> None:
        dispatcher.publish([commit(id="kept")])

    until(lambda: publish() or feed.status.breaker == "open", "the breaker opens")
    brokers.set_fault(None)
    until(lambda: publish() or feed.status.breaker == "closed", "and closes")

    def arrives() -> bool:
        dispatcher.publish([created(id="after")])
        return "after" in {headers(message)["event-id"] for message in read(brokers.bootstrap, "told")}

    until(arrives, "an event arrives again")
    dispatcher.stop()
    assert "are lost on their way to Kafka" in caplog.text


def test_a_cluster_that_nobody_has_named_is_told_of_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = start("127.0.0.1:1", cluster="other")
    assert dispatcher.feeds == ()
    assert "names 'other', which is not among kafka.clusters" in caplog.text
    dispatcher.stop()
