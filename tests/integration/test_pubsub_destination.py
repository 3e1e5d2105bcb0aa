"""Pub/Sub as a destination: its table of failures cell by cell, against a server that Google's own clients know."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1

from tidings import destinations
from tidings.destinations import Destination
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.local.pubsub import PubSubServer, running
from tidings.settings import Settings

T = TypeVar("T")
PROJECT = "projects/my-project"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PubSubServer]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture
def run(loop: asyncio.AbstractEventLoop) -> Callable[[Awaitable[T]], T]:
    return loop.run_until_complete


@pytest.fixture
def subscriber(server: PubSubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[pubsub_v1.SubscriberClient]:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
    with pubsub_v1.SubscriberClient(credentials=AnonymousCredentials()) as client:
        yield client


@pytest.fixture
def topic(subscriber: pubsub_v1.SubscriberClient) -> str:
    """With a subscription in order."""
    name = f"topic-{next(_numbers)}"
    publisher = pubsub_v1.PublisherClient(credentials=AnonymousCredentials())
    publisher.create_topic(name=f"{PROJECT}/topics/{name}")
    publisher.transport.close()
    request = {"name": subscription(name), "topic": f"{PROJECT}/topics/{name}", "enable_message_ordering": True}
    subscriber.create_subscription(request=request)
    return name


def subscription(topic: str) -> str:
    return f"{PROJECT}/subscriptions/{topic}"


@pytest.fixture
def destination(server: PubSubServer, topic: str, loop: asyncio.AbstractEventLoop) -> Iterator[Destination]:
    made = connect(server, topic)
    yield made
    loop.run_until_complete(made.close())


def connect(server: PubSubServer, topic: str, **more: Any) -> Destination:
    settings = Settings(pubsub={"emulator_host": server.address, **more})
    return destinations.connect(f"arn:gcp:pubsub::my-project:{topic}", settings)


def messages(count: int) -> list[Message]:
    return [Message(f"id-{i}", b"body", {"id": f"id-{i}", "sequencer": f"{i:016X}"}) for i in range(count)]


def arrived(subscriber: pubsub_v1.SubscriberClient, topic: str) -> list[Any]:
    received = subscriber.pull(subscription=subscription(topic), max_messages=1000, timeout=60).received_messages
    return [each.message for each in received]


def verdicts(outcomes: list[Outcome]) -> list[str]:
    return [outcome.verdict.value for outcome in outcomes]


EMPTY = Message("empty", b"", {})
"""Pub/Sub refuses a message without data and attributes, and every message that comes with it."""


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ("not_found", Verdict.WAIT),
        ("permission_denied", Verdict.WAIT),
        ("invalid_argument", Verdict.REJECTED),
        ("resource_exhausted", Verdict.RETRY),
        ("unauthenticated", Verdict.RETRY),
        ("unavailable", Verdict.RETRY),
        ("internal", Verdict.RETRY),
    ],
)
def test_what_pub_sub_answers_decides_who_must_act(server, topic, destination, run, fault, verdict):
    server.set_fault(f"{PROJECT}/topics/{topic}", fault)
    outcomes = run(destination.send(messages(3), 10))
    assert [outcome.verdict for outcome in outcomes] == [verdict] * 3
    assert all(fault.upper() in outcome.reason for outcome in outcomes)
    assert {outcome.after for outcome in outcomes} == {None}
    server.set_fault(f"{PROJECT}/topics/{topic}", None)
    assert run(destination.send(messages(3), 10)) == [SENT] * 3


def test_how_long_pub_sub_asks_us_to_wait_is_in_the_outcome(server, topic, destination, run):
    server.set_fault(f"{PROJECT}/topics/{topic}", "resource_exhausted", seconds=2.5)
    [outcome] = run(destination.send(messages(1), 10))
    assert (outcome.verdict, outcome.after) == (Verdict.RETRY, 2.5)


def test_a_topic_that_nobody_made_waits(server, run):
    missing = connect(server, "missing")
    [outcome] = run(missing.send(messages(1), 10))
    assert (outcome.verdict, "NOT_FOUND" in outcome.reason) == (Verdict.WAIT, True)
    run(missing.close())


@pytest.mark.parametrize("bad", [{0}, {499}, {3, 4, 77}, {0, 999}])
def test_of_a_batch_that_is_refused_only_the_messages_to_blame_are(subscriber, topic, destination, run, bad):
    batch = [EMPTY if i in bad else message for i, message in enumerate(messages(1000))]
    outcomes = run(destination.send(batch, 20))
    assert {i for i, outcome in enumerate(outcomes) if outcome.verdict is Verdict.REJECTED} == bad
    assert sum(outcome is SENT for outcome in outcomes) == 1000 - len(bad)
    ids = [message.attributes["id"] for message in arrived(subscriber, topic)]
    assert ids == [message.id for message in batch if message is not EMPTY], "each once"


def test_what_is_not_found_out_in_time_is_tried_again(server, topic, destination, run):
    server.set_fault(f"{PROJECT}/topics/{topic}", "delay", seconds=0.4)
    outcomes = run(destination.send([EMPTY, *messages(7)], 1.0))
    assert set(verdicts(outcomes)) <= {"sent", "retry", "rejected"}
    assert "retry" in verdicts(outcomes)
    assert outcomes[0].verdict is not Verdict.SENT


def test_a_message_over_the_limit_is_never_sent(server, topic, destination, run):
    name = f"{PROJECT}/topics/{topic}"
    [outcome] = run(destination.send([Message("1", b"x" * 10_000_000, {"id": "1"})], 10))
    assert outcome.verdict is Verdict.REJECTED
    assert "10000" in outcome.reason
    assert "takes 10000000" in outcome.reason
    assert name not in server.stats()


def test_a_message_just_below_the_limit_is_sent(destination, run):
    assert run(destination.send([Message("1", b"x" * 9_990_000, {"id": "1"})], 20)) == [SENT]


def test_attributes_that_pub_sub_would_refuse_are_left_out(subscriber, topic, destination, run):
    long = {"long": "\N{SNOWMAN}" * 342, "fits": "x" * 1024, "k" * 257: "x"}
    many = {f"n{i:03}": "x" for i in range(200)}
    last = {"id": "1", "sequencer": "0A"}  # behind the rest on purpose
    outcomes = run(destination.send([Message("1", b"x", {**long, **last}), Message("2", b"x", {**many, **last})], 10))
    assert outcomes == [SENT] * 2
    first, second = (dict(message.attributes) for message in arrived(subscriber, topic))
    assert first == {"fits": "x" * 1024, **last}
    assert len(second) == 100
    assert last.items() <= second.items()


def test_messages_of_one_object_arrive_in_order_where_ordering_is_set(server, subscriber, topic, run):
    """As Google's own subscriber sees it, which gets the messages of an ordering key one after the other."""
    destination = connect(server, topic, ordering=True)
    long = "k" * 2000  # longer than an ordering key may be
    for n in range(40):
        wave = [Message(f"{group[:5]}-{n}", b"%d" % n, {"id": f"{n}"}, group=group) for group in ("bucket/a", "bucket/b", long)]
        assert run(destination.send(wave, 10)) == [SENT] * 3
    seen: dict[str, list[int]] = defaultdict(list)
    complete = threading.Event()

    def note(message: Any) -> None:
        seen[message.ordering_key].append(int(message.data))
        message.ack()
        if sum(map(len, seen.values())) == 120:
            complete.set()

    stream = subscriber.subscribe(subscription(topic), note)
    assert complete.wait(30)
    stream.cancel()
    stream.result(10)
    assert set(seen) >= {"bucket/a", "bucket/b"}
    assert len(seen) == 3
    assert all(order == list(range(40)) for order in seen.values())
    run(destination.close())


def test_without_the_setting_there_is_no_ordering_key(subscriber, topic, destination, run):
    assert run(destination.send([Message("1", b"x", {"id": "1"}, group="bucket/a")], 10)) == [SENT]
    [message] = arrived(subscriber, topic)
    assert message.ordering_key == ""
