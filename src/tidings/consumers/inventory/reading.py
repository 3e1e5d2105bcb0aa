"""Reading topics by offsets: what each partition holds, and any range of one. Nothing is joined or committed in Kafka."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tidings.consumers.inventory.offsets import Ends
from tidings.delivery.settings import KafkaCluster
from tidings.errors import OperatorError, TidingsError
from tidings.settings import Settings

_SECONDS = 10.0
"""The longest wait for an answer of the brokers."""
_SILENT_SECONDS = 30.0
"""The longest wait for a message that must be there."""
_AT_ONCE = 5000
_NOT_THERE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}


class Range(NamedTuple):
    """The messages of one partition from `start` up to, but not with, `end`."""

    topic: str
    part: int
    start: int
    end: int


def cluster_of(settings: Settings, name: str) -> KafkaCluster:
    cluster = settings.kafka.clusters.get(name)
    if cluster is None:
        known = ", ".join(settings.kafka.clusters) or "none at all"
        raise OperatorError(f"There is no Kafka cluster {name!r} in the settings: TIDINGS_KAFKA__CLUSTERS has {known}.")
    return cluster


def ends(cluster: KafkaCluster, topics: Iterable[str]) -> dict[str, dict[int, Ends]]:
    """What each partition holds now. A topic that is not there yet has no partitions."""
    consumer = _consumer(cluster)
    found: dict[str, dict[int, Ends]] = {}
    for topic in topics:
        described = consumer.list_topics(topic, timeout=_SECONDS).topics[topic]
        if described.error is not None and described.error.code() not in _NOT_THERE:
            raise KafkaException(described.error)
        found[topic] = {part: _ends_of(consumer, topic, part) for part in sorted(described.partitions)}
    return found


def _ends_of(consumer: Consumer, topic: str, part: int) -> Ends:
    answer = consumer.get_watermark_offsets(TopicPartition(topic, part), timeout=_SECONDS)
    if answer is None:
        raise TidingsError(f"The brokers did not say within {_SECONDS:g} s what {topic}/{part} holds.")
    return Ends(*answer)


def read(cluster: KafkaCluster, wanted: Range) -> Iterator[list[Any]]:
    """The messages of a range, in order, in lists. An offset may be nobody's: what is behind it tells that it was passed."""
    consumer = _consumer(cluster)
    consumer.assign([TopicPartition(wanted.topic, wanted.part, wanted.start)])
    try:
        yield from _read(consumer, wanted)
    finally:
        consumer.unassign()


def _read(consumer: Consumer, wanted: Range) -> Iterator[list[Any]]:
    at = wanted.start
    heard = time.monotonic()
    while at < wanted.end:
        got = consumer.consume(min(_AT_ONCE, wanted.end - at), timeout=0.2)
        good = []
        message: Any
        for message in got:
            error = message.error()
            if error is None:
                at = message.offset() + 1
                if at <= wanted.end:
                    good.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                at = max(at, message.offset())
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise TidingsError(f"{wanted.topic}/{wanted.part} no longer holds the messages from {at} on.")
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise KafkaException(error)
        if good:
            yield good
        if got:
            heard = time.monotonic()
        elif time.monotonic() - heard > _SILENT_SECONDS:
            raise TidingsError(f"{wanted.topic}/{wanted.part} gave nothing at {at} for {_SILENT_SECONDS:g} s.")


def _consumer(cluster: KafkaCluster) -> Consumer:
    options = tuple(sorted((option, cluster.option(option) or "") for option in cluster.options))
    return _made(cluster.bootstrap, options, os.getpid())


@lru_cache(maxsize=4)
def _made(bootstrap: str, options: tuple[tuple[str, str], ...], _pid: int) -> Consumer:
    """One for each process: Spark reuses its Python workers, and connecting to a cluster takes longer than a small read."""
    return Consumer(
        {
            "group.id": "tidings-inventory",  # it must have one, and never uses it
            "queued.max.messages.kbytes": 16 * 1024,
            "fetch.wait.max.ms": 100,
            "log_level": 2,
            **dict(options),
            "bootstrap.servers": bootstrap,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",  # messages that are gone are nothing to pass over in silence
        }
    )


atexit.register(_made.cache_clear)
