"""One suite for every destination, and for the public fake: what `tidings.destinations` demands of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from google.pubsub_v1 import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from grpc import insecure_channel

from tidings import destinations, plugins
from tidings.destinations import Destination
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.local import pubsub
from tidings.settings import Settings
from tidings.testing import MemoryDestination


@dataclass
class Case:
    """A destination and the ways to disturb its peer."""

    destination: Destination
    break_it: Callable[[], None]
    hang: Callable[[], None]
    mend: Callable[[], None]
    received: Callable[[], int]


def of_memory() -> Iterator[Case]:
    fake = MemoryDestination()

    def answer(outcome: Outcome, delay: float = 0.0) -> Callable[[], None]:
        def set_answer() -> None:
            fake.answer, fake.delay = (lambda _: outcome), delay

        return set_answer

    failed = Outcome(Verdict.RETRY, "UNAVAILABLE")
    yield Case(fake, answer(failed), answer(SENT, 60.0), answer(SENT), lambda: len(fake.received))


def of_pubsub() -> Iterator[Case]:
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


CASES: dict[str, Callable[[], Iterator[Case]]] = {"memory": of_memory, "pubsub": of_pubsub}


def test_every_destination_has_a_case() -> None:
    assert set(CASES) - {"memory"} == set(plugins.names("destinations"))


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    yield from CASES[request.param]()


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
    assert all("UNAVAILABLE" in outcome.reason for outcome in outcomes)
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
