"""The relay that tests put between two parts does what it says: through it, Pub/Sub as a client in trouble sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

import relay
from tidings import destinations
from tidings.destinations import Destination
from tidings.events.messages import SENT, Message, Verdict
from tidings.local import pubsub
from tidings.local.topics import create
from tidings.settings import Settings
from waiting import PATIENCE_SECONDS

Way = tuple[relay.Relay, Destination, asyncio.AbstractEventLoop]


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    loop = asyncio.new_event_loop()
    with pubsub.running() as server, relay.running(("127.0.0.1", int(server.address.split(":")[1]))) as made:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
        create("projects/my-project/topics/my-topic")
        settings = Settings(pubsub={"emulator_host": made.address})
        destination = destinations.connect("arn:gcp:pubsub::my-project:my-topic", settings)
        yield made, destination, loop
        loop.run_until_complete(destination.close())
    loop.close()


def send(way: Way, seconds: float) -> Verdict:
    [outcome] = way[2].run_until_complete(way[1].send([Message("1", b"x", {"id": "1"})], seconds))
    return outcome.verdict


def until_sent(way: Way) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while send(way, 5) is not SENT.verdict:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("trouble", ["refuse", "hang"])
def test_nothing_passes_until_it_is_mended(way: Way, trouble: str) -> None:
    until_sent(way)
    getattr(way[0], trouble)()
    assert send(way, 1) is Verdict.RETRY
    way[0].mend()
    until_sent(way)


def test_what_is_delayed_passes_later(way: Way) -> None:
    until_sent(way)
    way[0].delay(0.5)
    began = time.monotonic()
    until_sent(way)
    assert time.monotonic() - began >= 0.5
    way[0].mend()


def test_a_cut_is_over_at_once(way: Way) -> None:
    until_sent(way)
    way[0].cut()
    until_sent(way)
