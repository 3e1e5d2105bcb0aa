"""What a Kafka topic holds, as a plain confluent-kafka consumer sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition


def read(bootstrap: str, topic: str, seconds: float = 30.0) -> list[Any]:
    """Every message that the topic holds, from the oldest to the last of each partition."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True, "enable.auto.commit": False}
    )
    try:
        return list(_all(reader, topic, seconds))
    finally:
        reader.close()


def _all(reader: Consumer, topic: str, seconds: float) -> Iterator[Any]:
    partitions = reader.list_topics(topic, timeout=seconds).topics[topic].partitions
    open_ones = set(partitions)
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    while open_ones:
        message = reader.poll(seconds)
        assert message is not None, f"{topic} has not been read to its end within {seconds:g} s"
        error = message.error()
        if error is None:
            yield message
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            open_ones.discard(message.partition())


def headers(message: Any) -> dict[str, str]:
    return {name: value.decode() for name, value in message.headers() or []}
