"""One suite for every destination, and for the public fake: what `tidings.destinations` demands of them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import psycopg
import pytest
from google.pubsub_v1 import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from grpc import insecure_channel

from sqs_elsewhere import sqs_elsewhere
from tcp_proxy import Proxy
from tidings import destinations, plugins
from tidings.destinations import Destination
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.local import pubsub
from tidings.settings import Settings
from tidings.testing import MemoryDestination
from webhooks import Answer, webhook


@dataclass
class Case:
    """A destination and the ways to disturb its peer."""

    destination: Destination
    break_it: Callable[[], None]
    hang: Callable[[], None]
    mend: Callable[[], None]
    received: Callable[[], int]
    words: str = "UNAVAILABLE"
    """What it says while it is broken."""


def of_memory(_: pytest.FixtureRequest) -> Iterator[Case]:
    fake = MemoryDestination()

    def answer(outcome: Outcome, delay: float = 0.0) -> Callable[[], None]:
        def set_answer() -> None:
            fake.answer, fake.delay = (lambda _: outcome), delay

        return set_answer

    failed = Outcome(Verdict.RETRY, "UNAVAILABLE")
    yield Case(fake, answer(failed), answer(SENT, 60.0), answer(SENT), lambda: len(fake.received))


def of_pubsub(_: pytest.FixtureRequest) -> Iterator[Case]:
    topic = "projects/my-project/topics/my-topic"
    with pubsub.running() as server:
        PublisherClient(transport=PublisherGrpcTransport(channel=insecure_channel(server.address))).create_topic(name=topic)
        settings = Settings(pubsub={"emulator_host": server.address})
        yield Case(
            destinations.connect("arn:gcp:pubsub::my-project:my-topic", settings),
            lambda: server.set_fault(topic, "unavailable"),
            lambda: server.set_fault(topic, "hang"),
            lambda: server.set_fault(topic, None),
            lambda: server.stats()[topic]["published"],
        )


def of_queue(request: pytest.FixtureRequest) -> Iterator[Case]:
    url: str = request.getfixturevalue("database_url")
    project = str(uuid.uuid4())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("insert into queues (project, name) values (%s, 'q')", [project])

        def received() -> int:
            row = connection.execute("select count(*) from queue_messages").fetchone()
            assert row is not None
            return int(row[0])

        port = urlsplit(url).port
        assert port is not None
        with Proxy(port).running() as proxy:
            settings = Settings(database={"url": url.replace(f":{port}/", f":{proxy.port}/")})
            yield Case(
                destinations.connect(f"arn:aws:sqs:us-east-1:{project}:q", settings),
                lambda: proxy.set("cut"),
                lambda: proxy.set("silent"),
                lambda: proxy.set("open"),
                received,
                "the database",
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

        yield Case(
            destinations.connect("arn:aws:sqs:us-east-1:123456789012:q", settings),
            break_it,
            peer.silent.set,
            mend,
            lambda: len(peer.received),
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

        yield Case(destination, answer(503), answer(200, 5.0), answer(200), lambda: len(hook.received))


CASES: dict[str, Callable[[pytest.FixtureRequest], Iterator[Case]]] = {
    "memory": of_memory,
    "pubsub": of_pubsub,
    "queue": of_queue,
    "queue-elsewhere": of_queue_elsewhere,
    "sns": of_sns,
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
    return [Message(f"id-{i}", b'{"n": 1}', {"id": f"id-{i}"}) for i in range(count)]


def test_every_message_gets_an_outcome_and_arrives(case: Case, loop: asyncio.AbstractEventLoop) -> None:
    assert loop.run_until_complete(case.destination.send(messages(3), 5.0)) == [SENT] * 3
    assert case.received() == 3
    loop.run_until_complete(case.destination.close())


def test_the_largest_batch_is_taken(case: Case, loop: asyncio.AbstractEventLoop) -> None:
    outcomes = loop.run_until_complete(case.destination.send(messages(case.destination.max_batch), 10.0))
    assert outcomes == [SENT] * case.destination.max_batch
    loop.run_until_complete(case.destination.close())


def test_a_failure_is_an_outcome_with_the_peer_s_words_and_passes(case: Case, loop: asyncio.AbstractEventLoop) -> None:
    case.break_it()
    outcomes = loop.run_until_complete(case.destination.send(messages(2), 5.0))
    assert [outcome.verdict for outcome in outcomes] == [Verdict.RETRY] * 2
    assert all(case.words in outcome.reason for outcome in outcomes)
    case.mend()
    assert loop.run_until_complete(case.destination.send(messages(2), 5.0)) == [SENT] * 2
    loop.run_until_complete(case.destination.close())


def test_a_peer_that_hangs_holds_the_caller_no_longer_than_it_said(case: Case, loop: asyncio.AbstractEventLoop) -> None:
    case.hang()
    began = time.monotonic()
    outcomes = loop.run_until_complete(case.destination.send(messages(1), 0.5))
    assert time.monotonic() - began < 2.0
    assert outcomes[0].verdict is Verdict.RETRY
    case.mend()
    loop.run_until_complete(case.destination.close())
