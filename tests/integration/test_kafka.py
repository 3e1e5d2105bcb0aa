"""Kafka as a destination: librdkafka's own brokers, disturbed in every way that the table of failures knows."""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import KafkaError

import kafka_reader
import waiting
from tidings import destinations
from tidings.destinations import Destination
from tidings.errors import OperatorError
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.local import kafka
from tidings.settings import Settings

T = TypeVar("T")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def brokers() -> Iterator[kafka.Running]:
    with kafka.running() as running:
        yield running


@pytest.fixture(autouse=True)
def _mended(brokers: kafka.Running) -> Iterator[None]:
    yield
    brokers.go_on()
    brokers.set_fault(None)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture
def run(loop: asyncio.AbstractEventLoop) -> Callable[[Awaitable[T]], T]:
    return loop.run_until_complete


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


def connect(brokers: kafka.Running, topic: str, cluster: str = "local", **options: Any) -> Destination:
    settings = Settings(kafka={"clusters": {cluster: {"bootstrap": brokers.bootstrap, "projects": "*", "options": options}}})
    return destinations.connect(f"arn:tidings:kafka::{cluster}:{topic}", settings)


def messages(count: int, first: int = 0, size: int = 20) -> list[Message]:
    ids = [f"id-{i}" for i in range(first, first + count)]
    return [Message(each, b"x" * size, {"id": each, "sequencer": each}, each.encode()) for each in ids]


def verdicts(outcomes: list[Outcome]) -> list[str]:
    return [outcome.verdict.value for outcome in outcomes]


# What travels


def test_a_record_has_the_body_the_key_and_the_attributes_as_headers(brokers, topic, run):
    attributes = {"id": "1", "sequencer": "0A", "ce-type": "put", "content-type": "application/json", "replay": "r1"}
    assert run(connect(brokers, topic).send([Message("1", b'{"a": 1}', attributes, b"bucket/key")], 10)) == [SENT]
    [record] = kafka_reader.read(brokers.bootstrap, topic)
    assert (record.key(), record.value()) == (b"bucket/key", b'{"a": 1}')
    expected = {"id": "1", "sequencer": "0A", "ce_type": "put", "content-type": "application/json", "replay": "r1"}
    assert kafka_reader.headers(record) == expected


def test_a_key_goes_to_the_partition_that_kafka_s_own_clients_choose(brokers, topic, run):
    """murmur2, as in Java: 21 and foobar are from the tests of Kafka itself."""
    known = {b"21": -973932308, b"foobar": -790332482}
    sent = [Message("m", b"x", {}, key) for key in known]
    assert run(connect(brokers, topic).send(sent, 10)) == [SENT] * len(sent)
    for record in kafka_reader.read(brokers.bootstrap, topic):
        assert record.partition() == (known[record.key()] & 0x7FFFFFFF) % 4


def test_a_message_without_a_key_or_attributes_is_a_message(brokers, topic, run):
    assert run(connect(brokers, topic).send([Message("test", b"{}")], 10)) == [SENT]
    [record] = kafka_reader.read(brokers.bootstrap, topic)
    assert (record.key(), record.headers()) == (None, None)


# The table of failures, cell by cell


@pytest.mark.parametrize("error", ["UNKNOWN_TOPIC_OR_PART", "TOPIC_AUTHORIZATION_FAILED"])
def test_a_topic_that_is_missing_or_forbidden_waits_and_goes_on_when_it_is_there(brokers, topic, run, error):
    brokers.set_fault("topic", topic=topic, error=getattr(KafkaError, error))
    destination = connect(brokers, topic)
    [outcome] = run(destination.send(messages(1), 5))
    assert (outcome.verdict, error in outcome.reason) == (Verdict.WAIT, True)
    [outcome] = run(destination.send(messages(1), 5))  # librdkafka knows by now, and says so at once
    assert outcome.verdict is Verdict.WAIT
    brokers.set_fault(None)
    until = time.monotonic() + waiting.PATIENCE_SECONDS
    while run(destination.send(messages(1), 5)) != [SENT]:
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", Verdict.WAIT),
        ("CLUSTER_AUTHORIZATION_FAILED", Verdict.WAIT),
        ("MSG_SIZE_TOO_LARGE", Verdict.REJECTED),
        ("RECORD_LIST_TOO_LARGE", Verdict.REJECTED),
        ("INVALID_RECORD", Verdict.REJECTED),
        ("INVALID_REQUEST", Verdict.RETRY),
        ("UNSUPPORTED_COMPRESSION_TYPE", Verdict.RETRY),
    ],
)
def test_what_a_broker_answers_decides_who_must_act(brokers, topic, run, error, verdict):
    brokers.set_fault("error", error=getattr(KafkaError, error), times=1)
    [outcome] = run(connect(brokers, topic).send(messages(1), 10))
    assert (outcome.verdict, error in outcome.reason) == (verdict, True)


@pytest.mark.parametrize("error", ["NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "REQUEST_TIMED_OUT", "_TRANSPORT"])
def test_what_passes_by_itself_is_not_even_a_failure(brokers, topic, run, error):
    brokers.set_fault("error", error=getattr(KafkaError, error), times=2)
    assert run(connect(brokers, topic).send(messages(3), 20)) == [SENT] * 3


@pytest.mark.parametrize("error", ["NOT_LEADER_FOR_PARTITION", "NOT_ENOUGH_REPLICAS"])
def test_what_does_not_pass_in_time_is_to_be_tried_again(brokers, topic, run, error):
    destination = connect(brokers, topic)
    assert run(destination.send(messages(1), 10)) == [SENT]
    brokers.set_fault("error", error=getattr(KafkaError, error), times=10_000)
    assert verdicts(run(destination.send(messages(3), 0.5))) == ["retry"] * 3
    brokers.set_fault(None)
    assert run(destination.send(messages(3), 20)) == [SENT] * 3


def test_messages_that_were_refused_for_one_among_them_are_sent_one_by_one(brokers, topic, run):
    destination = connect(brokers, topic)
    brokers.set_fault("error", error=KafkaError.INVALID_RECORD, times=1)
    assert run(destination.send(messages(20), 20)) == [SENT] * 20
    assert len(kafka_reader.read(brokers.bootstrap, topic)) == 20


def test_a_broker_that_takes_less_than_we_do_refuses_with_the_size(brokers, topic, run):
    brokers.set_fault("error", error=KafkaError.MSG_SIZE_TOO_LARGE, times=1)
    [outcome] = run(connect(brokers, topic).send(messages(1, size=500_000), 10))
    assert outcome.verdict is Verdict.REJECTED
    assert "has 5000" in outcome.reason
    assert "a broker's may be lower" in outcome.reason


def test_an_operator_s_limit_is_the_one_that_counts(brokers, topic, run):
    destination = connect(brokers, topic, "small", **{"message.max.bytes": 10_000})
    outcomes = run(destination.send([*messages(1), *messages(1, 1, size=10_001)], 10))
    assert verdicts(outcomes) == ["sent", "rejected"]
    assert "the limit is 10000" in outcomes[1].reason


def test_credentials_that_the_cluster_does_not_take_wait_for_the_operator(brokers, topic, run):
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "hush"}
    [outcome] = run(connect(brokers, topic, "closed", **sasl).send(messages(1), 2))
    assert (outcome.verdict, "_AUTHENTICATION" in outcome.reason) == (Verdict.WAIT, True)
    assert "hush" not in outcome.reason


def test_a_name_that_leads_nowhere_is_tried_again_and_named(topic, run):
    settings = Settings(kafka={"clusters": {"nowhere": {"bootstrap": "kafka.invalid:9092", "projects": "*"}}})
    [outcome] = run(destinations.connect(f"arn:tidings:kafka::nowhere:{topic}", settings).send(messages(1), 2))
    assert outcome.verdict is Verdict.RETRY
    assert "kafka.invalid" in outcome.reason


def test_a_cluster_that_is_no_longer_in_the_settings_waits(topic, run):
    [outcome] = run(destinations.connect(f"arn:tidings:kafka::gone:{topic}", Settings()).send(messages(1), 2))
    assert (outcome.verdict, "'gone'" in outcome.reason) == (Verdict.WAIT, True)


def test_an_option_that_librdkafka_does_not_take_is_the_operator_s_to_read(brokers, topic, run, caplog):
    [outcome] = run(connect(brokers, topic, "wrong", **{"securty.protocol": "SSL"}).send(messages(1), 2))
    assert outcome.verdict is Verdict.WAIT
    assert "securty" not in outcome.reason
    assert "securty.protocol" in caplog.text


def test_a_queue_that_stays_full_is_tried_again(brokers, topic, run):
    destination = connect(brokers, topic, "narrow", **{"queue.buffering.max.messages": 10})
    assert run(destination.send(messages(1), 10)) == [SENT]
    brokers.hang()
    assert verdicts(run(destination.send(messages(30), 0.5))) == ["retry"] * 30
    brokers.go_on()
    assert run(destination.send(messages(30), 20)) == [SENT] * 30


# One producer for a cluster


@pytest.mark.parametrize("error", ["OUT_OF_ORDER_SEQUENCE_NUMBER"])
def test_a_producer_that_cannot_go_on_is_replaced(brokers, topic, run, error):
    destination = connect(brokers, topic)
    assert run(destination.send(messages(2), 10)) == [SENT] * 2
    brokers.set_fault("error", error=getattr(KafkaError, error), times=1)
    outcomes = run(destination.send(messages(1), 10))
    assert verdicts(outcomes) == ["retry"]
    assert run(destination.send(messages(2), 20)) == [SENT] * 2


def test_a_cluster_that_lets_nobody_produce_waits_and_goes_on_when_it_does(brokers, topic, run):
    brokers.set_fault("error", error=KafkaError.CLUSTER_AUTHORIZATION_FAILED, times=1, request="producer_id")
    destination = connect(brokers, topic, "guarded")
    [outcome] = run(destination.send(messages(1), 10))
    assert (outcome.verdict, "CLUSTER_AUTHORIZATION_FAILED" in outcome.reason) == (Verdict.WAIT, True)
    assert run(destination.send(messages(1), 20)) == [SENT]


def test_topics_of_a_cluster_share_a_producer_and_its_thread(brokers, run):
    def threads() -> int:
        """librdkafka's: the process may have others, of tests before."""
        return sum(name.read_text().startswith("rdk:") for name in Path("/proc/self/task").glob("*/comm"))

    run(connect(brokers, f"topic-{next(_numbers)}").send(messages(1), 10))
    before = threads()
    assert before > 0
    for _ in range(20):
        destination = connect(brokers, f"topic-{next(_numbers)}")
        assert run(destination.send(messages(1), 10)) == [SENT]
        run(destination.close())
    assert threads() <= before


def test_a_topic_that_is_stuck_takes_nothing_from_its_neighbours(brokers, run):
    """Its messages leave the queue when its call is over; the queue is shared, and the neighbours' messages are sent again."""
    stuck, fine = (f"topic-{next(_numbers)}" for _ in range(2))
    destination, neighbour = connect(brokers, stuck), connect(brokers, fine)
    assert run(neighbour.send(messages(1), 10)) == [SENT]
    brokers.set_fault("topic", topic=stuck, error=KafkaError.LEADER_NOT_AVAILABLE)

    async def side_by_side() -> tuple[list[str], list[Outcome]]:
        seen: list[str] = []

        async def failing() -> None:
            for _ in range(8):
                seen.extend(verdicts(await destination.send(messages(50), 0.2)))

        async def going_on() -> list[Outcome]:
            outcomes: list[Outcome] = []
            while not failed.done():
                outcomes += await neighbour.send(messages(100, len(outcomes) + 1), 10)
            return outcomes

        failed = asyncio.ensure_future(failing())
        outcomes = await going_on()
        await failed
        return seen, outcomes

    seen, outcomes = run(side_by_side())
    assert set(seen) == {"retry"}
    assert set(outcomes) == {SENT}
    ids = [kafka_reader.headers(record)["id"] for record in kafka_reader.read(brokers.bootstrap, fine)]
    assert len(ids) == len(set(ids)) == len(outcomes) + 1, "each once: a message that left the queue had not been sent"


def test_what_nobody_waits_for_any_more_is_not_sent_later(brokers, topic, run):
    destination = connect(brokers, topic)
    brokers.set_fault("topic", topic=topic, error=KafkaError.LEADER_NOT_AVAILABLE)
    assert verdicts(run(destination.send(messages(100), 0.5))) == ["retry"] * 100
    brokers.set_fault(None)
    until = time.monotonic() + waiting.PATIENCE_SECONDS
    while run(destination.send(messages(1, 1000), 5)) != [SENT]:
        assert time.monotonic() < until
    ids = {kafka_reader.headers(record)["id"] for record in kafka_reader.read(brokers.bootstrap, topic)}
    assert ids == {"id-1000"}


def test_no_confirmed_message_is_missing_while_brokers_come_and_go(brokers, run, say):
    names = [f"topic-{next(_numbers)}" for _ in range(3)]
    written: dict[str, set[str]] = {name: set() for name in names}
    failures = 0
    until = time.monotonic() + 4

    async def lane(name: str) -> None:
        nonlocal failures
        destination = connect(brokers, name)
        while time.monotonic() < until:
            left = messages(50, len(written[name]))
            written[name] |= {message.id for message in left}
            while left:
                outcomes = await destination.send(left, 0.5)
                left = [message for message, outcome in zip(left, outcomes, strict=True) if outcome is not SENT]
                failures += len(left)
                await asyncio.sleep(0.01)

    async def disturb(lanes: asyncio.Future[Any]) -> None:
        steps = itertools.cycle(["hang", "down", "error"])
        while not lanes.done():
            await asyncio.sleep(0.7)
            step = next(steps)
            if step == "hang":
                brokers.hang()
                await asyncio.sleep(0.8)
                brokers.go_on()
            elif step == "down":
                brokers.set_fault("down")
                await asyncio.sleep(0.8)
                brokers.set_fault(None)
            else:
                brokers.set_fault("error", error=KafkaError.NOT_LEADER_FOR_PARTITION, times=5)

    async def everything() -> None:
        lanes = asyncio.gather(*(lane(name) for name in names))
        await disturb(lanes)
        await lanes

    run(asyncio.wait_for(everything(), 120))
    assert failures, "the brokers were not disturbed"
    duplicates = 0
    for name in names:
        ids = [kafka_reader.headers(record)["id"] for record in kafka_reader.read(brokers.bootstrap, name)]
        assert set(ids) == written[name]
        duplicates += len(ids) - len(set(ids))
    total = sum(map(len, written.values()))
    say(f"{total} messages over three topics, {failures} tried again, 0 lost, {duplicates} duplicates")


# The brokers themselves


def test_a_process_that_has_sent_ends_by_itself(brokers, topic):
    """The thread that listens to the brokers must not hold it, nor crash it; not even with messages that cannot be sent."""
    program = f"""
import asyncio
from tidings import destinations
from tidings.events.messages import Message
from tidings.settings import Settings
settings = Settings(kafka={{"clusters": {{"local": {{"bootstrap": "{brokers.bootstrap}", "projects": "*"}}}}}})
for topic in ("{topic}", "{topic}-2"):
    destination = destinations.connect("arn:tidings:kafka::local:" + topic, settings)
    print(asyncio.run(destination.send([Message("1", b"x", {{}})], 10.0))[0].verdict)
"""
    brokers.set_fault("topic", topic=f"{topic}-2", error=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["sent", "wait"], "")


def test_brokers_refuse_a_fault_that_makes_no_sense(brokers):
    for fault, options in [("broken", {}), ("delay", {"colour": "blue"}), ("error", {"request": "fetch"})]:
        with pytest.raises(OperatorError, match="did not obey"):
            brokers.set_fault(fault, **options)


def test_brokers_that_are_slow_are_waited_for(brokers, topic, run):
    destination = connect(brokers, topic)
    assert run(destination.send(messages(1), 10)) == [SENT]
    brokers.set_fault("delay", seconds=0.5)
    began = time.monotonic()
    assert run(destination.send(messages(1), 10)) == [SENT]
    assert time.monotonic() - began >= 0.4


def test_the_control_port_obeys_nobody_without_the_token_not_even_in_the_shape_of_a_browser(brokers: kafka.Running) -> None:
    place = brokers.address.rpartition("@")[2]
    host, _, port = place.partition(":")
    down = b'{"fault": "down"}\n'
    head = b"POST / HTTP/1.1\r\nHost: " + place.encode() + b"\r\nContent-Type: text/plain\r\nOrigin: https://evil.example\r\n"
    token = brokers.address.rpartition("@")[0].encode()
    shapes = (
        head + b"Content-Length: 18\r\n\r\n" + down,
        down,
        b'{"fault": "down", "token": ""}\n',
        b'["fault"]\n',
        b"\n" + down,
    )
    with_token = head + b'\r\n{"fault": "down", "token": "' + token + b'"}\n'  # what follows a wrong line is not read
    for sent in (*shapes, with_token):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert connection.recv(1000) == b""
    with pytest.raises(OperatorError, match="hung up"):
        kafka.set_fault(f"wrong@{place}", "down")
    first = brokers.bootstrap.partition(",")[0].rpartition(":")
    socket.create_connection((first[0], int(first[2])), timeout=30).close()  # they are up
    assert kafka.ask(brokers.address)["bootstrap"] == brokers.bootstrap
