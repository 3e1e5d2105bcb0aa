"""Reading topics by offsets, from real brokers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from tidings.consumers.inventory import reading
from tidings.consumers.inventory.offsets import Ends
from tidings.consumers.inventory.reading import Range
from tidings.delivery.settings import KafkaCluster
from tidings.errors import OperatorError, TidingsError
from tidings.local import kafka
from tidings.settings import Settings

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def brokers() -> Iterator[kafka.Running]:
    with kafka.running() as running:
        yield running


@pytest.fixture
def cluster(brokers: kafka.Running) -> KafkaCluster:
    return KafkaCluster(bootstrap=brokers.bootstrap)


@pytest.fixture
def topic(brokers: kafka.Running) -> str:
    name = f"inventory-{next(_numbers)}"
    kafka.create_topic(brokers.address, name, 3)
    return name


def produce(cluster: KafkaCluster, topic: str, part: int, bodies: list[bytes], **options: Any) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 50, **options})
    for body in bodies:
        producer.produce(topic, body, partition=part)
        producer.poll(0)
    assert producer.flush(60) == 0


def values(cluster: KafkaCluster, *range_: Any) -> list[bytes]:
    return [message.value() for messages in reading.read(cluster, Range(*range_)) for message in messages]


def test_the_ends_of_each_partition_are_told(cluster: KafkaCluster, topic: str) -> None:
    produce(cluster, topic, 1, [b"a", b"b"])
    assert reading.ends(cluster, [topic]) == {topic: {0: Ends(0, 0), 1: Ends(0, 2), 2: Ends(0, 0)}}


def test_a_range_is_from_its_start_up_to_before_its_end(cluster: KafkaCluster, topic: str) -> None:
    bodies = [b"%d" % number for number in range(12_000)]
    produce(cluster, topic, 0, bodies)
    assert values(cluster, topic, 0, 0, 12_000) == bodies
    assert values(cluster, topic, 0, 10, 11) == [b"10"]
    assert values(cluster, topic, 0, 11_990, 12_000) == bodies[-10:]
    assert values(cluster, topic, 0, 5, 5) == []


def test_a_range_that_ends_behind_the_last_message_ends_there(cluster: KafkaCluster, topic: str) -> None:
    """As where the last offsets are those of a transaction's end, which is no message."""
    produce(cluster, topic, 0, [b"a", b"b"])
    found = []
    for messages in reading.read(cluster, Range(topic, 0, 0, 2)):
        found += messages
        produce(cluster, topic, 0, [b"c"])  # what comes meanwhile is not of this range
    assert [message.value() for message in found] == [b"a", b"b"]


def test_messages_that_are_gone_are_not_passed_over_in_silence(cluster: KafkaCluster, topic: str) -> None:
    """The brokers keep 5 MiB of a partition."""
    for _ in range(8):
        produce(cluster, topic, 0, [bytes(900_000)], **{"compression.type": "none"})
    low, high = reading.ends(cluster, [topic])[topic][0]
    assert 0 < low < high == 8
    with pytest.raises(TidingsError, match=f"{topic}/0 no longer holds"):
        values(cluster, topic, 0, 0, 8)
    assert len(values(cluster, topic, 0, low, high)) == high - low


def test_a_cluster_that_the_settings_do_not_name_is_one_clear_sentence() -> None:
    known = Settings(kafka={"clusters": {"main": {"bootstrap": "kafka:9092"}}})
    with pytest.raises(OperatorError, match=r"no Kafka cluster 'local'.*has main"):
        reading.cluster_of(known, "local")
