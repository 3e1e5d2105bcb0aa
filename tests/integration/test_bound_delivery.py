"""Whose topic is it, when a message is delivered: what the settings no longer allow waits, with the reason, and is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import psycopg
import pytest
from google.pubsub_v1 import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

import kafka_reader
from sns_elsewhere import sns_elsewhere
from sqs_elsewhere import sqs_elsewhere
from tidings import destinations
from tidings.delivery import dead_letters, redrive
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.local import kafka, pubsub
from tidings.settings import Settings

OURS, OTHER = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
MESSAGE = Message("m1", b"{}", {"id": "m1", "tidings-project": OURS})

Bound = Callable[[str], Settings]
"""The settings in which a place is bound to a project."""
Case = tuple[str, Bound, Callable[[], int], str]
"""An ARN, its settings, how many messages have arrived, and what a reason names."""


@contextmanager
def of_pubsub() -> Iterator[Case]:
    name = "projects/acme-things/topics/things"
    with pubsub.running() as server, grpc.insecure_channel(server.address) as channel:
        PublisherClient(transport=PublisherGrpcTransport(channel=channel)).create_topic(name=name)

        def bound(project: str) -> Settings:
            return Settings(pubsub={"emulator_host": server.address, "projects": {"acme-things": [project]}})

        yield "arn:gcp:pubsub::acme-things:things", bound, lambda: server.stats()[name]["published"], "pubsub.projects"


@contextmanager
def of_kafka() -> Iterator[Case]:
    with kafka.running() as brokers:

        def bound(project: str) -> Settings:
            return Settings(kafka={"clusters": {"main": {"bootstrap": brokers.bootstrap, "topics": {"t": [project]}}}})

        yield (
            "arn:tidings:kafka::main:t1",
            bound,
            lambda: len(kafka_reader.read(brokers.bootstrap, "t1")),
            "kafka.clusters.main.topics",
        )


def account(endpoint: str) -> Bound:
    def bound(project: str) -> Settings:
        known = {"endpoint": endpoint, "access_key_id": "k", "secret": "hush", "projects": project}
        return Settings(external={"accounts": {"123456789012": known}})

    return bound


@contextmanager
def of_queue_elsewhere() -> Iterator[Case]:
    with sqs_elsewhere() as peer:
        arn = "arn:aws:sqs:us-east-1:123456789012:q"
        yield arn, account(peer.endpoint), lambda: len(peer.received), "123456789012"


@contextmanager
def of_topic_elsewhere() -> Iterator[Case]:
    with sns_elsewhere() as peer:
        arn = "arn:aws:sns:us-east-1:123456789012:t"
        yield arn, account(peer.endpoint), lambda: len(peer.received), "123456789012"


def sent(arn: str, settings: Settings, project: str = OURS) -> Outcome:
    async def run() -> list[Outcome]:
        destination = destinations.connect_for(project, arn, settings)
        try:
            return await destination.send([MESSAGE], 10.0)
        finally:
            await destination.close()

    [outcome] = asyncio.run(run())
    return outcome


@pytest.mark.parametrize("of", [of_pubsub, of_kafka, of_queue_elsewhere, of_topic_elsewhere])
def test_what_is_bound_to_another_project_now_waits_with_the_reason_and_goes_on_when_it_is_given_back(of: Any) -> None:
    with of() as (arn, bound, arrived, named):
        assert sent(arn, bound(OURS)) == SENT
        refused = sent(arn, bound(OTHER))
        assert refused.verdict is Verdict.WAIT
        assert named in refused.reason
        assert arn in refused.reason
        assert arrived() == 1
        assert sent(arn, bound(OURS)) == SENT
        assert arrived() == 2


def test_a_subscription_s_queue_elsewhere_is_asked_for_who_subscribed(database: psycopg.Connection, database_url: str) -> None:
    topic = f"arn:aws:sns:us-east-1:{OURS}:changes"
    arn = f"{topic}:00000000-0000-4000-8000-000000000001"
    database.execute("insert into topics (arn, project) values (%s, %s)", [topic, OURS])
    lane = database.execute(
        "insert into lanes (project, destination, state, win, seq) values (%s, %s, 'behind', 0, 0) returning id", [OURS, arn]
    ).fetchone()
    assert lane is not None
    database.execute(
        "insert into subscriptions (arn, topic, project, protocol, endpoint, lane) values (%s, %s, %s, 'sqs', %s, %s)",
        [arn, topic, OURS, "arn:aws:sqs:us-east-1:123456789012:q", lane[0]],
    )
    with sqs_elsewhere() as peer:

        def bound(project: str) -> Settings:
            return account(peer.endpoint)(project).model_copy(
                update={"database": Settings(database={"url": database_url}).database}
            )

        assert sent(arn, bound(OTHER)).verdict is Verdict.WAIT
        assert peer.received == []
        assert sent(arn, bound(OURS)) == SENT
        [entry] = peer.received
        assert entry["MessageAttributes"]["tidings-project"]["StringValue"] == OURS, "beside the envelope too"


def test_a_dead_letter_from_before_messages_named_their_project_is_sent_with_it(
    database: psycopg.Connection, database_url: str
) -> None:
    database.execute("insert into queues (project, name) values (%s, 'q')", [OURS])
    lane = database.execute(
        "insert into lanes (project, destination) values (%s, %s) returning id", [OURS, f"arn:aws:sqs:us-east-1:{OURS}:q"]
    ).fetchone()
    assert lane is not None
    for name, attributes in (("old", {"id": "old"}), ("new", {"id": "new", "tidings-project": OTHER})):
        letter = {"message": name, "win": 1, "seq": 1, "body": "{}", "attributes": attributes, "label": None, "reason": "x"}
        dead_letters.bury(database, lane[0], [letter])
    with psycopg.connect(database_url) as connection:
        letters = dead_letters.listed(connection)
        done = redrive.redrive(connection, Settings(database={"url": database_url}), letters, lambda *_: None)
    assert (done.sent, done.left) == (2, 0)
    rows = database.execute("select attributes from queue_messages").fetchall()
    named = {row["id"]["StringValue"]: row["tidings-project"]["StringValue"] for (row,) in rows}
    assert named == {"old": OURS, "new": OTHER}
