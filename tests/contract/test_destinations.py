"""One suite for every destination, and for the public fake: what `tidings.destinations` demands of them.

A destination's case has a real peer of its own, and the ways to disturb it. A new file in `destinations/` needs one here.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import psycopg
import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from grpc import insecure_channel

import kafka_reader
import relay
from sns_elsewhere import attributes_of, sns_elsewhere
from sqs_elsewhere import sqs_elsewhere
from tidings import destinations, plugins
from tidings.destinations import Destination
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.local import kafka, pubsub
from tidings.settings import Settings
from tidings.testing import MemoryDestination
from waiting import PATIENCE_SECONDS
from webhooks import Answer, webhook

Arrived = list[tuple[bytes, dict[str, str]]]
"""Bodies and attributes."""


def _not_said() -> Arrived:
    raise AssertionError("this case does not say what arrived at its peer: give it `arrived`")


def _nothing() -> None:
    pass


@dataclass
class Case:
    """A destination and the ways to disturb its peer. Without `break_it` there is no peer that could fail."""

    destination: Destination
    break_it: Callable[[], None] | None
    hang: Callable[[], None] | None
    mend: Callable[[], None]
    received: Callable[[], int]
    words: str = "UNAVAILABLE"
    """Among what is said when it is broken."""
    arrived: Callable[[], Arrived] = _not_said
    too_large: int | None = None
    """A size of body that no message may have; None where there is no limit."""


def of_memory(_: pytest.FixtureRequest) -> Iterator[Case]:
    fake = MemoryDestination()

    def answer(outcome: Outcome, delay: float = 0.0) -> Callable[[], None]:
        def set_answer() -> None:
            fake.answer, fake.delay = (lambda _: outcome), delay

        return set_answer

    failed = Outcome(Verdict.RETRY, "UNAVAILABLE")
    yield Case(
        fake,
        answer(failed),
        answer(SENT, 60.0),
        answer(SENT),
        lambda: len(fake.received),
        arrived=lambda: [(message.body, message.attributes) for message in fake.received],
    )


def of_pubsub(_: pytest.FixtureRequest) -> Iterator[Case]:
    topic = "projects/my-project/topics/my-topic"
    subscription = "projects/my-project/subscriptions/my-subscription"
    with pubsub.running() as server, insecure_channel(server.address) as channel:
        PublisherClient(transport=PublisherGrpcTransport(channel=channel)).create_topic(name=topic)
        subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        subscriber.create_subscription(name=subscription, topic=topic)

        def arrived() -> Arrived:
            pulled = subscriber.pull(subscription=subscription, max_messages=1000).received_messages
            return [(each.message.data, dict(each.message.attributes)) for each in pulled]

        settings = Settings(pubsub={"emulator_host": server.address})
        yield Case(
            destinations.connect("arn:gcp:pubsub::my-project:my-topic", settings),
            lambda: server.set_fault(topic, "unavailable"),
            lambda: server.set_fault(topic, "hang"),
            lambda: server.set_fault(topic, None),
            lambda: server.stats()[topic]["published"],
            arrived=arrived,
            too_large=10_000_000,
        )


def of_kafka(_: pytest.FixtureRequest) -> Iterator[Case]:
    with kafka.running() as brokers:

        def mend() -> None:
            brokers.go_on()
            brokers.set_fault(None)

        def arrived() -> Arrived:
            return [(each.value(), kafka_reader.headers(each)) for each in kafka_reader.read(brokers.bootstrap, "my-topic")]

        settings = Settings(kafka={"clusters": {"local": {"bootstrap": brokers.bootstrap, "projects": "*"}}})
        yield Case(
            destinations.connect("arn:tidings:kafka::local:my-topic", settings),
            lambda: brokers.set_fault("down"),
            brokers.hang,
            mend,
            lambda: len(arrived()),
            words="_TRANSPORT",
            arrived=arrived,
            too_large=1_000_000,
        )


def of_log(_: pytest.FixtureRequest) -> Iterator[Case]:
    lines: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lines.append  # type: ignore[method-assign]
    logger = logging.getLogger("tidings.destinations.log")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def arrived() -> Arrived:
        return [(vars(line)["body"].encode(), vars(line)["attributes"]) for line in lines]

    connected = destinations.connect("arn:tidings:log:::my-log", Settings())
    yield Case(connected, None, None, _nothing, lambda: len(lines), arrived=arrived)
    logger.removeHandler(handler)
    logger.setLevel(level)


def of_queue(request: pytest.FixtureRequest) -> Iterator[Case]:
    url: str = request.getfixturevalue("database_url")
    project = str(uuid.uuid4())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("insert into queues (project, name) values (%s, 'q')", [project])

        def arrived() -> Arrived:
            rows = connection.execute("select body, attributes from queue_messages order by id").fetchall()
            return [(body.encode(), {name: value["StringValue"] for name, value in said.items()}) for body, said in rows]

        port = urlsplit(url).port
        assert port is not None
        with relay.running(("127.0.0.1", port)) as way:
            settings = Settings(database={"url": url.replace(f":{port}/", f":{way.port}/")})
            yield Case(
                destinations.connect(f"arn:aws:sqs:us-east-1:{project}:q", settings),
                way.refuse,
                way.hang,
                way.mend,
                lambda: len(arrived()),
                "the database",
                arrived,
                too_large=262_144,
            )


def of_queue_elsewhere(_: pytest.FixtureRequest) -> Iterator[Case]:
    with sqs_elsewhere() as peer:
        account = {"endpoint": peer.endpoint, "access_key_id": "key", "secret": "secret", "projects": "*"}
        settings = Settings(external={"accounts": {"123456789012": account}})

        def break_it() -> None:
            peer.refusal = (503, "UNAVAILABLE", {})

        def mend() -> None:
            peer.refusal = None
            peer.silent.clear()

        def arrived() -> Arrived:
            return [
                (
                    each["MessageBody"].encode(),
                    {name: value["StringValue"] for name, value in each["MessageAttributes"].items()},
                )
                for each in peer.received
            ]

        yield Case(
            destinations.connect("arn:aws:sqs:us-east-1:123456789012:q", settings),
            break_it,
            peer.silent.set,
            mend,
            lambda: len(peer.received),
            arrived=arrived,
            too_large=262_144,
        )


def of_sns(request: pytest.FixtureRequest) -> Iterator[Case]:
    url: str = request.getfixturevalue("database_url")
    project = str(uuid.uuid4())
    topic = f"arn:aws:sns:us-east-1:{project}:t"
    arn = f"{topic}:{uuid.uuid4()}"
    with webhook() as hook, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("insert into topics (arn, project) values (%s, %s)", [topic, project])
        lane = "insert into lanes (project, destination, state, win, seq) values (%s, %s, 'behind', 0, 0) returning id"
        row = connection.execute(lane, [project, arn]).fetchone()
        assert row is not None
        connection.execute(
            "insert into subscriptions (arn, topic, project, protocol, endpoint, lane) values (%s, %s, %s, 'http', %s, %s)",
            [arn, topic, project, hook.url, row[0]],
        )
        settings = Settings(database={"url": url}, outgoing={"allow_http": True, "allow": ["127.0.0.0/8"]})
        destination = destinations.connect(arn, settings)

        def answer(status: int, delay: float = 0.0) -> Callable[[], None]:
            return lambda: setattr(hook, "answer", lambda _: Answer(status, b"UNAVAILABLE", delay=delay))

        def arrived() -> Arrived:
            said = [got.envelope for got in hook.received]
            attributes = [{name: each["Value"] for name, each in one["MessageAttributes"].items()} for one in said]
            return [(one["Message"].encode(), found) for one, found in zip(said, attributes, strict=True)]

        yield Case(
            destination,
            answer(503),
            answer(200, 5.0),
            answer(200),
            lambda: len(hook.received),
            arrived=arrived,
            too_large=262_144,
        )


def of_sns_elsewhere(_: pytest.FixtureRequest) -> Iterator[Case]:
    with sns_elsewhere() as peer:
        account = {"endpoint": peer.endpoint, "access_key_id": "key", "secret": "secret", "projects": "*"}
        settings = Settings(external={"accounts": {"123456789012": account}})

        def mend() -> None:
            peer.refusal = None
            peer.silent.clear()

        yield Case(
            destinations.connect("arn:aws:sns:us-east-1:123456789012:t", settings),
            lambda: setattr(peer, "refusal", (503, "UNAVAILABLE")),
            peer.silent.set,
            mend,
            lambda: len(peer.received),
            arrived=lambda: [(each["Message"].encode(), attributes_of(each)) for each in peer.received],
            too_large=262_144,
        )


CASES: dict[str, Callable[[pytest.FixtureRequest], Iterator[Case]]] = {
    "kafka": of_kafka,
    "log": of_log,
    "memory": of_memory,
    "pubsub": of_pubsub,
    "queue": of_queue,
    "queue-elsewhere": of_queue_elsewhere,
    "sns": of_sns,
    "sns-elsewhere": of_sns_elsewhere,
}
"""By the destination's name; a second case of one has a word behind it."""


def test_every_destination_has_a_case() -> None:
    assert {name.partition("-")[0] for name in CASES} - {"memory"} == set(plugins.names("destinations"))


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    yield from CASES[request.param](request)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def messages(count: int) -> list[Message]:
    return [Message(f"id-{i}", b'{"n": %d}' % i, {"id": f"id-{i}", "sequencer": f"{i:016X}"}) for i in range(count)]


def test_every_message_gets_an_outcome_and_arrives(case: Case, loop: asyncio.AbstractEventLoop) -> None:
    assert loop.run_until_complete(case.destination.send(messages(3), 10.0)) == [SENT] * 3
    assert case.received() == 3
    loop.run_until_complete(case.destination.close())


def test_bodies_and_all_attributes_arrive(case: Case, loop: asyncio.AbstractEventLoop) -> None:
    sent = [
        Message("a", b"{}", {"id": "a", "sequencer": "0" * 16, "traceparent": "00-1-2-01", "replay": "r1"}, b"key", "group"),
        Message("b", '"\N{SNOWMAN}"'.encode(), {"id": "b", "sequencer": "1" * 16, "content-type": "text/plain; charset=utf-8"}),
    ]
    assert loop.run_until_complete(case.destination.send(sent, 10.0)) == [SENT] * 2
    arrived = {attributes["id"]: (body, attributes) for body, attributes in case.arrived()}
    assert arrived == {message.id: (message.body, message.attributes) for message in sent}
    loop.run_until_complete(case.destination.close())


def test_the_largest_batch_is_taken(case: Case, loop: asyncio.AbstractEventLoop) -> None:
    outcomes = loop.run_until_complete(case.destination.send(messages(case.destination.max_batch), 20.0))
    assert outcomes == [SENT] * case.destination.max_batch
    assert case.received() == case.destination.max_batch
    loop.run_until_complete(case.destination.close())


def test_a_message_over_the_limit_is_refused_for_good_and_its_neighbours_are_sent(
    case: Case, loop: asyncio.AbstractEventLoop
) -> None:
    if case.too_large is None:
        return  # nothing to refuse
    before, after = messages(2)
    large = Message("large", b"x" * case.too_large, {"id": "large"})
    outcomes = loop.run_until_complete(case.destination.send([before, large, after], 20.0))
    assert [outcome.verdict for outcome in outcomes] == [Verdict.SENT, Verdict.REJECTED, Verdict.SENT]
    sizes = [int(number) for number in re.findall(r"\d{6,}", outcomes[1].reason)]
    assert sizes[0] > case.too_large >= sizes[1], "the reason has the size of the message, and the limit"
    assert case.received() == 2
    loop.run_until_complete(case.destination.close())


def test_a_failure_is_an_outcome_with_the_peer_s_words_and_passes(case: Case, loop: asyncio.AbstractEventLoop) -> None:
    if case.break_it is None:
        assert case.hang is None
        return  # no peer
    case.break_it()
    outcomes = loop.run_until_complete(case.destination.send(messages(2), 3.0))
    assert [outcome.verdict for outcome in outcomes] == [Verdict.RETRY] * 2
    assert all(case.words in outcome.reason for outcome in outcomes)
    case.mend()
    assert loop.run_until_complete(case.destination.send(messages(2), 20.0)) == [SENT] * 2
    loop.run_until_complete(case.destination.close())


def test_a_peer_that_hangs_holds_the_caller_no_longer_than_it_said(case: Case, loop: asyncio.AbstractEventLoop) -> None:
    """Also one that answered before; and what it did not confirm is not said to be sent."""
    assert loop.run_until_complete(case.destination.send(messages(1), 10.0)) == [SENT]
    if case.hang is None:
        assert case.break_it is None
        return  # no peer
    case.hang()
    outcomes = loop.run_until_complete(asyncio.wait_for(case.destination.send(messages(5), 0.5), PATIENCE_SECONDS))
    assert [outcome.verdict for outcome in outcomes] == [Verdict.RETRY] * 5
    assert all("0.5 s" in outcome.reason for outcome in outcomes)
    case.mend()
    assert loop.run_until_complete(case.destination.send(messages(5), 20.0)) == [SENT] * 5
    loop.run_until_complete(case.destination.close())
