"""kafka_vs_relay and pubsub_vs_relay: a backlog through the whole path, against a plain asyncio relay with the same clients.

From PostgreSQL to the server's word that it has a message: read, match, render, publish, move the position. The servers run on
the same two cores: librdkafka's mock brokers, and our Pub/Sub. `tidings stream` drains the backlog in its own rounds; while the
relay has its turn, the stream stands still. Both read the same changes and say the same: the messages of a first backlog are
read back from the server and compared.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from confluent_kafka import Consumer, TopicPartition
from google.cloud import pubsub_v1

from bench.measure import Bar, CannotMeasure, Figure, Progress, cpu_seconds, interleaved, ratios, said
from bench.relay import Relay
from bench.streaming import Backlog, Streaming, pubsub, streaming
from tidings import settings as settings_module
from tidings.events.arn import KafkaTopic, PubSubTopic
from tidings.events.positions import START
from tidings.local import kafka, topics

NAMES = ("pubsub_vs_relay", "kafka_vs_relay")
_BAR = Bar(">=", 1.2)
_SAMPLE = 1000
_WARM_UPS = 5
_PUBSUB = {"events": PubSubTopic("bench-project", "bench-events"), "sample": PubSubTopic("bench-project", "bench-sample")}
_KAFKA = {"events": KafkaTopic("bench", "bench-events"), "sample": KafkaTopic("bench", "bench-sample")}
_READ_SECONDS = 30.0

Said = dict[str, tuple[Any, Any, dict[str, str]]]
"""By message id: the body, the key and the headers."""


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    for name in NAMES:
        if name in names:
            yield _figure(name, quick, progress)


def _figure(name: str, quick: bool, progress: Progress) -> Figure:
    kind = name.partition("_")[0]
    with ExitStack() as open_:
        stream = open_.enter_context(streaming(progress))
        server = _PubSub(stream, open_, progress) if kind == "pubsub" else _Kafka(stream, open_, progress)
        region = settings_module.load().api.region
        relays = {use: Relay(stream.url, kind, topic, server.place, region) for use, topic in server.topics.items()}
        for relay in relays.values():
            open_.callback(relay.close)
        folder = Path(open_.enter_context(TemporaryDirectory(prefix="tidings-bench-")))
        open_.enter_context(stream.stream(folder, progress))
        progress("comparing messages")
        _compare(stream, server, relays["sample"])
        return _Race(stream, relays["events"], 30_000 if quick else 100_000).figure(name, 3 if quick else 7, progress)


def _compare(stream: Streaming, server: _Server, relay: Relay) -> None:
    """The same backlog from both: the same ids, bodies, keys and attributes."""
    stream.stand_still()
    backlog = stream.fill("sample-", _SAMPLE)
    stream.go_on()
    stream.wait_for(backlog)
    ours = server.read()
    stream.stand_still()
    relay.run(_condition(backlog))
    theirs = server.read()
    stream.go_on()
    if len(ours) != _SAMPLE or ours != theirs:
        raise CannotMeasure(f"The stream and the relay do not send the same: {len(ours)} and {len(theirs)} messages.")


def _condition(backlog: Backlog) -> str:
    (piece,) = backlog.slices
    return piece.condition


class _Race:
    def __init__(self, stream: Streaming, relay: Relay, rows: int) -> None:
        self._stream = stream
        self._relay = relay
        self._rows = rows
        self._backlog = Backlog(0, (), START)
        self._spent = {"stream": Counter[str](), "relay": Counter[str]()}

    def figure(self, name: str, repeats: int, progress: Progress) -> Figure:
        runs = {"stream": self._run_stream, "relay": self._run_relay}
        self._stream.warm_up("events-", 300, progress)
        for number in range(_WARM_UPS):
            progress(f"warming up: {number + 1} of {_WARM_UPS} backlogs")
            self._run_stream()
        self._run_relay()
        for spent in self._spent.values():
            spent.clear()
        seconds = interleaved(runs, repeats, 0, progress)
        rates = ", ".join(f"{who} {self._rows / statistics.median(taken):,.0f} a second" for who, taken in seconds.items())
        millions = repeats * self._rows / 1e6
        cpu = "; ".join(
            f"{who} {sum(spent.values()) / millions:.0f} s ({said(spent, millions)})" for who, spent in self._spent.items()
        )
        note = f"{rates}; {self._rows:,} changes a run; processor time for a million: {cpu}"
        return Figure.median(name, ratios(seconds["relay"], seconds["stream"]), _BAR, "", note)

    def _run_stream(self) -> float:
        self._stream.stand_still()
        self._backlog = self._stream.fill("events-", self._rows)
        with self._timed("stream") as took:
            self._stream.go_on()
            self._stream.wait_for(self._backlog)
        return took()

    def _run_relay(self) -> float:
        """Over the changes that the stream had last."""
        self._stream.stand_still()
        with self._timed("relay") as took:
            done = self._relay.run(_condition(self._backlog))
        self._stream.go_on()
        if done["messages"] != self._rows:
            raise CannotMeasure(f"The relay sent {done['messages']} of {self._rows} messages.")
        return took()

    @contextmanager
    def _timed(self, who: str) -> Iterator[Callable[[], float]]:
        before, began = cpu_seconds(os.getpid()), time.perf_counter()
        ended = began
        yield lambda: ended - began
        ended = time.perf_counter()
        self._spent[who] += cpu_seconds(os.getpid()) - before


class _Server(Protocol):
    place: str
    topics: dict[str, str]

    def read(self) -> Said:
        """What the sample's topic has been sent since it was read last."""


class _PubSub:
    def __init__(self, stream: Streaming, open_: ExitStack, progress: Progress) -> None:
        self.place = open_.enter_context(pubsub(progress))
        self.topics = {use: topic.name for use, topic in _PUBSUB.items()}
        stream.environment["TIDINGS_PUBSUB__EMULATOR_HOST"] = self.place
        os.environ["PUBSUB_EMULATOR_HOST"] = self.place  # how Google's clients learn of it
        open_.callback(os.environ.pop, "PUBSUB_EMULATOR_HOST")
        # Only the sample has a subscription: what nobody wants is taken in and forgotten, nobody's memory grows.
        pubsub_v1.PublisherClient().create_topic(name=_PUBSUB["events"].name)
        topics.create(_PUBSUB["sample"].name)
        for use, topic in _PUBSUB.items():
            stream.buckets(f"{use}-", topic)

    def read(self) -> Said:
        found: Said = {}
        where, deadline = topics.subscription_of(_PUBSUB["sample"]), time.monotonic() + _READ_SECONDS
        with pubsub_v1.SubscriberClient() as client:
            while len(found) < _SAMPLE and time.monotonic() < deadline:
                got = client.pull(subscription=where, max_messages=_SAMPLE, timeout=_READ_SECONDS, retry=None).received_messages
                for each in got:
                    attributes = dict(each.message.attributes)
                    found[attributes["id"]] = (json.loads(each.message.data), None, attributes)
                if got:
                    client.acknowledge(subscription=where, ack_ids=[each.ack_id for each in got])
        return found


class _Kafka:
    def __init__(self, stream: Streaming, open_: ExitStack, progress: Progress) -> None:
        progress("starting Kafka brokers")
        brokers = open_.enter_context(kafka.running())
        self.place = brokers.bootstrap
        self.topics = {use: topic.topic for use, topic in _KAFKA.items()}
        clusters = {"bench": {"bootstrap": self.place, "projects": ["*"]}}
        stream.environment["TIDINGS_KAFKA__CLUSTERS"] = json.dumps(clusters)
        for use, topic in _KAFKA.items():
            kafka.create_topic(brokers.address, topic.topic)
            stream.buckets(f"{use}-", topic)
        self._consumer = Consumer({"bootstrap.servers": self.place, "group.id": "bench", "log_level": 0})
        self._consumer.assign([TopicPartition(_KAFKA["sample"].topic, number, 0) for number in range(kafka.PARTITIONS)])
        open_.callback(self._consumer.close)

    def read(self) -> Said:
        found: Said = {}
        deadline = time.monotonic() + _READ_SECONDS
        while len(found) < _SAMPLE and time.monotonic() < deadline:
            for message in self._consumer.consume(_SAMPLE, timeout=1.0):
                if (error := message.error()) is not None:
                    raise CannotMeasure(f"Kafka: {error}")
                body, label = message.value(), message.key()
                headers = {name: str(value, "utf-8") for name, value in message.headers() or [] if isinstance(value, bytes)}
                if body is not None and label is not None:
                    found[headers["id"]] = (json.loads(body), json.loads(label), headers)
        return found
