"""A subscriber that publishes each event to a topic of a Kafka cluster that the operator has named in settings.

Key, headers and body are those that Nessie's users know. It does not wait for brokers, as a listener should not, until one
has refused an event, or none has answered in time: those events are lost. Then it waits for the answer to each event, so that
a cluster that is away opens the breaker, until one answers well. For events that must arrive, subscribe to the change stream.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Producer

from tidings.errors import OperatorError
from tidings.events.catalog import API_VERSION, SPEC_VERSION, CatalogEvent, as_text
from tidings.events.messages import PROJECT
from tidings.subscribers.interface import EventListener, EventSubscriber, Registrar

if TYPE_CHECKING:
    from tidings.settings import Settings

log = logging.getLogger(__name__)

_FLUSH_SECONDS = 1.5
_PATIENCE = 0.8
"""It gives up before it is given up."""
_TIMEOUT_MS = 10_000


class KafkaSubscriber(EventSubscriber):
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._listener: KafkaListener | None = None

    def register(self, registrar: Registrar) -> None:
        name = self._settings.subscribers.kafka_cluster
        cluster = self._settings.kafka.clusters.get(name)
        if cluster is None:
            raise OperatorError(f"subscribers.kafka_cluster names {name!r}, which is not among kafka.clusters.")
        options: dict[str, str | None] = {option: cluster.option(option) for option in cluster.options}
        options["bootstrap.servers"] = cluster.bootstrap
        patience = self._settings.subscribers.timeout_seconds * _PATIENCE
        self._listener = KafkaListener(options, self._settings.subscribers.kafka_topic, patience)
        registrar.register(self._listener)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.flush(_FLUSH_SECONDS)


class KafkaListener(EventListener):
    def __init__(self, options: dict[str, str | None], topic: str, patience: float) -> None:
        self._options = options
        self._topic = topic
        self._patience = patience
        self._trouble: KafkaError | None = None
        self._producer = self._connect()

    def _connect(self) -> Producer:
        return Producer(
            {
                "client.id": "tidings-subscriber",
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "queue.buffering.max.kbytes": 16 * 1024,
                "message.timeout.ms": _TIMEOUT_MS,
                "log_level": 2,  # what goes wrong is told in the subscription's status
                **self._options,
                "enable.idempotence": True,
                "acks": "all",
                "error_cb": self._note,
            },
            logger=log,
        )

    def on_event(self, event: CatalogEvent) -> None:
        self._producer.poll(0)
        if self._trouble is None:
            self._produce(event, self._report)
            self._producer.poll(0)
        else:
            self._produce_and_wait(event)

    def _produce(self, event: CatalogEvent, report: Callable[[KafkaError | None, object], None]) -> None:
        body = json.dumps(event.to_json(), ensure_ascii=False, separators=(",", ":")).encode()
        self._producer.produce(self._topic, body, key(event), headers=headers(event), on_delivery=report)

    def _produce_and_wait(self, event: CatalogEvent) -> None:
        trouble = self._trouble
        if trouble is not None and trouble.fatal():  # this producer sends nothing any more
            self._producer = self._connect()
        reports: list[KafkaError | None] = []
        self._produce(event, lambda error, _: reports.append(error))
        deadline = time.monotonic() + self._patience
        while not reports and (left := deadline - time.monotonic()) > 0:
            self._producer.poll(left)
        error = reports[0] if reports else trouble
        if error is not None:
            raise KafkaException(error)
        self._trouble = None

    def flush(self, seconds: float) -> None:
        if left := self._producer.flush(seconds):
            log.warning("%d catalog events did not reach Kafka in time", left)

    def _note(self, error: KafkaError) -> None:
        if error.fatal():
            self._trouble = error

    def _report(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            if self._trouble is None:
                log.warning("catalog events are lost on their way to Kafka: %s", error.str())
            self._trouble = error


def key(event: CatalogEvent) -> bytes:
    """The same for all events of a reference: they are in one partition, in order."""
    return f"{event.repository}:{event.about.name}".encode()


def headers(event: CatalogEvent) -> list[tuple[str, str | bytes | None]]:
    said: dict[str, str] = {
        "event-id": event.id,
        "spec-version": SPEC_VERSION,
        "api-version": API_VERSION,
        "repository-id": event.repository,
        PROJECT: event.repository,
        "initiator": event.created_by,
        "event-type": event.type,
        "event-creation-time": as_text(event.at),
    }
    committed = getattr(event, "commit_creation_timestamp", "") or getattr(event, "commit_meta", {}).get("commitTime", "")
    return [*(said | ({"commit-creation-time": committed} if committed else {})).items()]
