"""A topic of a Kafka cluster that the operator has named in settings.

ARN        arn:tidings:kafka::CLUSTER:TOPIC
Guarantee  a message is sent when all in-sync replicas have it (acks=all, idempotent producer)
Order      none of its own: the format's key decides the partition (murmur2, Kafka's default); the header `sequencer` tells
Batch      each message has its own delivery report; those of one partition travel together
Limits     1,000,000 bytes for a message with its key and headers, unless the cluster's option `message.max.bytes` says else
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

from confluent_kafka import KafkaError, KafkaException, Producer

from tidings.delivery.settings import KafkaCluster
from tidings.events.arn import KafkaTopic, parse
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.settings import Settings

log = logging.getLogger(__name__)

_WAIT = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError._AUTHENTICATION,
    KafkaError.POLICY_VIOLATION,
}
_REJECTED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}
_IN_COMPANY = _REJECTED | {KafkaError._INVALID_DIFFERENT_RECORD}
"""What may be said of a message for the sake of another that travelled with it."""
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE}
_MAX_MESSAGE_BYTES = 1_000_000
_POLL_SECONDS = 0.2
_FULL_SECONDS = 0.01
"""Between two looks at a queue that is full."""
_UNREPORTED: Any = object()

Report = KafkaError | None
"""What became of a message: None is good. Or `_UNREPORTED`, when time ran out."""


def connect(arn: str, settings: Settings) -> Kafka:
    address = parse(arn)
    assert isinstance(address, KafkaTopic)
    return Kafka(address, settings.kafka.clusters.get(address.cluster), settings.delivery.publish_timeout_seconds)


async def refusal(_connection: object, project: str, arn: str, settings: Settings) -> str | None:
    return unbound(project, arn, settings)


def unbound(project: str, arn: str, settings: Settings) -> str | None:
    """Why a project, named by its public id, may not send there."""
    address = parse(arn)
    assert isinstance(address, KafkaTopic)
    cluster = settings.kafka.clusters.get(address.cluster)
    if cluster is None:
        return f"There is no Kafka cluster {address.cluster!r} here: the operator names clusters in kafka.clusters"
    if not cluster.admits(project):
        return (
            f"This project may not send to the Kafka cluster {address.cluster!r}: ask the operator to add {project} to"
            f" kafka.clusters.{address.cluster}.{'topics' if cluster.topics else 'projects'}"
        )
    if not cluster.topics and not address.topic.startswith(cluster.topic_prefixes):
        prefixes = ", ".join(cluster.topic_prefixes)
        return f"The topic {address.topic!r} is not allowed on {address.cluster!r}: its name must begin with {prefixes}"
    beside = settings.kafka.beside(address.cluster)
    binding = [name for name in beside if settings.kafka.clusters[name].binds_to_others(project, address.topic)]
    if binding or not cluster.binds(address.topic):
        return (
            f"The topic {address.topic!r} of {address.cluster!r} is not bound to this project: ask the operator to add"
            f" {project} to kafka.clusters.{[*binding, address.cluster][0]}.topics"
        )
    return None


def shared(project: str, arn: str, settings: Settings) -> list[str]:
    """The ARNs of a topic, where no setting says whose it is: the first project that has a rule for it has it."""
    address = parse(arn)
    assert isinstance(address, KafkaTopic)
    names = settings.kafka.beside(address.cluster)
    if not settings.kafka.clusters[address.cluster].first_come(project):
        return []
    return [KafkaTopic(name, address.topic).arn for name in names]


class Kafka:
    max_batch = 1000
    ahead = 5000
    max_bytes = 16_000_000

    def __init__(self, address: KafkaTopic, cluster: KafkaCluster | None, longest: float) -> None:
        self._address = address
        self._cluster = cluster
        self._longest = longest

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        cluster = self._cluster
        if cluster is None:
            reason = f"the settings of this service have no Kafka cluster {self._address.cluster!r} any more"
            return [Outcome(Verdict.WAIT, reason)] * len(messages)
        try:
            producer = _producer(self._address.cluster, cluster, self._longest)
        except (KafkaException, ValueError, TypeError) as error:  # an option that librdkafka does not take
            log.error("the Kafka cluster %s cannot be used: %s", self._address.cluster, error)
            reason = (
                f"the settings of {self._address.cluster!r} cannot be used, which the operator of this service finds in the log"
            )
            return [Outcome(Verdict.WAIT, reason)] * len(messages)
        deadline = asyncio.get_running_loop().time() + timeout
        reports = await producer.send(self._address.topic, messages, deadline)
        limit = int(cluster.option("message.max.bytes") or _MAX_MESSAGE_BYTES)
        if len(messages) > 1:
            await self._ask_again(producer, messages, reports, limit, deadline)
        late = f"no delivery report within {timeout:g} s"
        return [
            SENT if report is None else producer.late(late) if report is _UNREPORTED else outcome_of(report, message, limit)
            for message, report in zip(messages, reports, strict=True)
        ]

    async def _ask_again(
        self, producer: _Producer, messages: Sequence[Message], reports: list[Report], limit: int, deadline: float
    ) -> None:
        """A broker refuses messages that travel together as a whole. Alone, each gets an answer of its own."""
        clock = asyncio.get_running_loop().time
        for i, report in enumerate(reports):
            if report is None or report is _UNREPORTED or report.code() not in _IN_COMPANY:
                continue
            if _size(messages[i]) > limit:
                continue
            if clock() >= deadline:
                reports[i] = _UNREPORTED
            else:
                [reports[i]] = await producer.send(self._address.topic, [messages[i]], deadline)

    async def close(self) -> None:
        """Nothing: the producer belongs to all topics of its cluster in this process."""


def outcome_of(error: KafkaError, message: Message, limit: int) -> Outcome:
    """The table of failures: who must act. What Kafka and librdkafka call an error that passes is the rest."""
    words = f"{error.name()}: {error.str()}"
    code = error.code()
    if code in _WAIT:
        return Outcome(Verdict.WAIT, words)
    if code not in _REJECTED:
        return Outcome(Verdict.RETRY, words)
    if code in _TOO_LARGE:
        size = _size(message)
        words = f"{words}: the message has {size} bytes with its key and headers; the limit is {limit}, a broker's may be lower"
    return Outcome(Verdict.REJECTED, words)


def _size(message: Message) -> int:
    headers = sum(len(name) + len(value.encode()) for name, value in message.attributes.items())
    return len(message.body) + len(message.key or b"") + headers


def _headers(attributes: dict[str, str]) -> list[tuple[str, str | bytes | None]]:
    """CloudEvents over Kafka has `ce_` where HTTP has `ce-`, and its values as they are, where HTTP escapes them."""
    if not any(map(_CLOUDEVENTS, attributes)):
        return list(attributes.items())
    return [
        ("ce_" + name[3:], unquote(value)) if name.startswith("ce-") else (name, value) for name, value in attributes.items()
    ]


_CLOUDEVENTS = re.compile("ce-").match


class _Call:
    """What has been reported of one call's messages. Reports come in the producer's thread, the call waits in an event loop."""

    __slots__ = ("_loop", "done", "expected", "reports")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.reports: list[tuple[int, Report]] = []
        self.expected = -1

    def report(self, index: int, error: Report, _message: object) -> None:
        self.reports.append((index, error))
        if len(self.reports) == self.expected:  # one wake-up for a whole call
            with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
                self._loop.call_soon_threadsafe(self._finish)

    def expect(self, count: int) -> None:
        """Now the number is known. Whichever thread sees the last piece fall into place ends the wait."""
        self.expected = count
        if len(self.reports) >= count:
            self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Producer:
    """One for all topics of a cluster in this process, with one thread that hears the delivery reports."""

    def __init__(self, name: str, cluster: KafkaCluster, longest: float) -> None:
        self.cluster = cluster
        self.fatal: KafkaError | None = None
        self._trouble: KafkaError | None = None
        self._stopped = False
        milliseconds = max(1000, round(longest * 1000))
        self._producer = Producer(
            {
                "client.id": f"tidings-{name}",
                "partitioner": "murmur2_random",
                "linger.ms": 1,
                "queue.buffering.max.kbytes": 128 * 1024,
                # no longer than the longest call waits: what nobody waits for is not sent
                "message.timeout.ms": milliseconds,
                "request.timeout.ms": milliseconds,
                "socket.timeout.ms": milliseconds,
                "reconnect.backoff.max.ms": 500,  # a peer that comes back should be noticed soon
                "topic.metadata.propagation.max.ms": 500,  # that a topic is not there should be told while the call waits
                "message.max.bytes": _MAX_MESSAGE_BYTES,
                "log_level": 2,  # what goes wrong is told in outcomes
                **{option: cluster.option(option) for option in cluster.options},
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "error_cb": self._note,
            },
            logger=log,
        )
        self._thread = threading.Thread(target=self._listen, name=f"kafka-{name}", daemon=True)
        self._thread.start()

    async def send(self, topic: str, messages: Sequence[Message], deadline: float) -> list[Report]:
        """What became of each message. One that was purged for another call's sake is sent again."""
        reports: list[Report] = [_UNREPORTED] * len(messages)
        left: Iterable[int] = range(len(messages))
        clock = asyncio.get_running_loop().time
        while left:
            for i, report in await self._attempt(topic, messages, left, deadline):
                reports[i] = report
            purged = [i for i in left if (r := reports[i]) is not None and r is not _UNREPORTED and r.code() == _PURGED]
            for i in purged:
                reports[i] = self.fatal or _UNREPORTED
            left = purged if self.fatal is None and clock() < deadline else ()
        return reports

    async def _attempt(
        self, topic: str, messages: Sequence[Message], chosen: Iterable[int], deadline: float
    ) -> list[tuple[int, Report]]:
        call = _Call()
        refused: list[tuple[int, Report]] = []
        given = 0
        clock = asyncio.get_running_loop().time
        produce = self._producer.produce
        for i in chosen:
            message = messages[i]
            while True:
                try:
                    produce(
                        topic,
                        message.body,
                        message.key,
                        on_delivery=partial(call.report, i),
                        headers=_headers(message.attributes),
                    )
                    given += 1
                except BufferError as problem:
                    if clock() < deadline:
                        await asyncio.sleep(_FULL_SECONDS)
                        continue
                    refused.append((i, _error(problem)))
                except KafkaException as problem:
                    error = _error(problem)
                    refused.append((i, self.fatal or error if error.code() == KafkaError._FATAL else error))
                break
        call.expect(given)
        try:
            async with asyncio.timeout_at(deadline):
                await call.done
        except TimeoutError:
            # What nobody waits for any more leaves the queue unsent. The queue is that of all calls: the others send again.
            self._producer.purge(in_queue=True, in_flight=False, blocking=False)
        if call.reports and call.reports[-1][1] is None:
            self._trouble = None
        return refused + list(call.reports)

    def late(self, words: str) -> Outcome:
        """For a message without a report: what the connections to the cluster suffer from, if anything."""
        trouble = self._trouble
        if trouble is None:
            return Outcome(Verdict.RETRY, words)
        verdict = Verdict.WAIT if trouble.code() in _WAIT else Verdict.RETRY
        return Outcome(verdict, f"{words}; {trouble.name()}: {trouble.str()}")

    def _note(self, error: KafkaError) -> None:
        if error.fatal():
            self._die(error)
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:  # says less than the one before it
            self._trouble = error

    def _die(self, error: KafkaError) -> None:
        log.error("the Kafka producer is replaced: %s", error)
        self.fatal = error

    def _listen(self) -> None:
        while not self._stopped:
            try:
                self._producer.poll(_POLL_SECONDS)
            except KafkaException as problem:  # librdkafka's way to tell that this producer is of no use any more
                if (error := _error(problem)).fatal():
                    self._die(error)
                else:
                    self._note(error)
            except Exception:
                log.exception("a delivery report was not understood")
            if self.fatal is not None and not len(self._producer):
                return

    def stop(self) -> None:
        self._stopped = True
        self._thread.join(2 * _POLL_SECONDS)


_PURGED = KafkaError._PURGE_QUEUE


def _error(problem: Exception) -> KafkaError:
    error = problem.args[0] if problem.args else None
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError._FAIL, str(problem))


_producers: dict[tuple[int, str], _Producer] = {}
_lock = threading.Lock()


def _producer(name: str, cluster: KafkaCluster, longest: float) -> _Producer:
    """This process's producer for a cluster: made when it is first needed, and again after an error that it cannot survive."""
    key = (os.getpid(), name)  # a producer of the process that this one was forked from has no threads here
    with _lock:
        known = _producers.get(key)
        if known is None or known.fatal is not None or known.cluster != cluster:
            if known is not None and known.fatal is None:
                known.stop()
            known = _producers[key] = _Producer(name, cluster, longest)
        return known


@atexit.register
def _stop() -> None:
    for (pid, _), producer in _producers.items():
        if pid == os.getpid():
            producer.stop()
