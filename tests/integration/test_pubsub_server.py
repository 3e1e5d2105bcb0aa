"""The local Pub/Sub server, as Google's own Python clients see it."""

from __future__ import annotations

import asyncio
import itertools
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google import pubsub_v1 as gapic
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1
from google.pubsub_v1.types import PubsubMessage, StreamingPullRequest

from tidings.errors import OperatorError
from tidings.local.faults import SERVICE
from tidings.local.pubsub import PubSubServer, get_stats, running, set_fault

# Deprecated in the client, still served by Google, and the one way to ask "what is there now?" without waiting.
pytestmark = pytest.mark.filterwarnings("ignore:The return_immediately flag is deprecated")

PROJECT = "projects/tidings-test"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PubSubServer]:
    with running() as server:
        yield server


@pytest.fixture(autouse=True)
def _emulator(server: PubSubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
    yield
    server.set_fault("*", None)


@pytest.fixture
def publisher(_emulator: None) -> Iterator[pubsub_v1.PublisherClient]:
    client = pubsub_v1.PublisherClient(credentials=AnonymousCredentials())
    yield client
    client.stop()
    client.transport.close()


@pytest.fixture
def subscriber(_emulator: None) -> Iterator[pubsub_v1.SubscriberClient]:
    with pubsub_v1.SubscriberClient(credentials=AnonymousCredentials()) as client:
        yield client


@pytest.fixture
def topic(publisher: pubsub_v1.PublisherClient) -> str:
    name = f"{PROJECT}/topics/topic-{next(_numbers)}"
    publisher.create_topic(name=name)
    return name


@pytest.fixture
def subscription(subscriber: pubsub_v1.SubscriberClient, topic: str) -> str:
    return subscribe(subscriber, topic)


def subscribe(subscriber: pubsub_v1.SubscriberClient, topic: str, **settings: Any) -> str:
    name = f"{PROJECT}/subscriptions/subscription-{next(_numbers)}"
    subscriber.create_subscription(request={"name": name, "topic": topic, **settings})
    return name


def publish(publisher: pubsub_v1.PublisherClient, topic: str, *messages: bytes | dict[str, Any], **call: Any) -> list[str]:
    """One Publish request, past the batching of Google's high-level client and without its retries."""
    bodies = [PubsubMessage(message if isinstance(message, dict) else {"data": message}) for message in messages]
    call = {"retry": None, "timeout": 60, **call}
    return list(gapic.PublisherClient.publish(publisher, topic=topic, messages=bodies, **call).message_ids)


def pull(subscriber: pubsub_v1.SubscriberClient, subscription: str, most: int = 1000, **more: Any) -> list[Any]:
    request = {"subscription": subscription, "max_messages": most, **more}
    return list(subscriber.pull(request=request, retry=None, timeout=60).received_messages)


def now(subscriber: pubsub_v1.SubscriberClient, subscription: str, most: int = 1000) -> list[bytes]:
    """What is there at this moment."""
    return [received.message.data for received in pull(subscriber, subscription, most, return_immediately=True)]


class Stream:
    """A StreamingPull in the open: what the server sent, and what the test sends back."""

    def __init__(self, subscriber: pubsub_v1.SubscriberClient, subscription: str, **first: Any) -> None:
        self._requests: queue.SimpleQueue[StreamingPullRequest | None] = queue.SimpleQueue()
        self.send(subscription=subscription, stream_ack_deadline_seconds=10, **first)
        self._responses = gapic.SubscriberClient.streaming_pull(subscriber, requests=iter(self._requests.get, None))
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, **fields: Any) -> None:
        self._requests.put(StreamingPullRequest(fields))

    def next(self, timeout: float = 60.0) -> Any:
        received = self._received.get(timeout=timeout)
        if isinstance(received, Exception):
            raise received
        return received

    def is_quiet(self, seconds: float = 0.3) -> bool:
        try:
            self._received.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    def close(self) -> None:
        self._responses.cancel()
        self._requests.put(None)

    def _listen(self) -> None:
        try:
            for response in self._responses:
                for received in response.received_messages:
                    self._received.put(received)
        except Exception as error:
            self._received.put(error)


@contextmanager
def consuming(subscriber: pubsub_v1.SubscriberClient, subscription: str, callback: Callable[[Any], None]) -> Iterator[None]:
    future = subscriber.subscribe(subscription, callback=callback)
    try:
        yield
    finally:
        future.cancel()
        future.result(timeout=60)


# Publish and deliver


def test_a_published_message_reaches_a_streaming_subscriber_as_it_was(publisher, subscriber, topic, subscription):
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with consuming(subscriber, subscription, received.put):
        started = time.time()
        message_id = publisher.publish(topic, b"body", colour="blue").result(timeout=60)
        message = received.get(timeout=60)
        message.ack()
    assert (message.message_id, message.data, dict(message.attributes)) == (message_id, b"body", {"colour": "blue"})
    assert started - 1 <= message.publish_time.timestamp() <= time.time() + 1


def test_an_open_stream_gets_a_message_without_asking_again(publisher, subscriber, topic, subscription):
    stream = Stream(subscriber, subscription)
    publish(publisher, topic, b"warm up")
    stream.next()
    for number in range(20):
        publish(publisher, topic, b"%d" % number)
        assert stream.next().message.data == b"%d" % number
    stream.close()


def test_publishing_to_a_topic_without_subscriptions_succeeds(publisher, topic):
    assert publish(publisher, topic, b"nobody listens")


def test_every_subscription_has_a_queue_of_its_own(publisher, subscriber, topic):
    first, second = subscribe(subscriber, topic), subscribe(subscriber, topic)
    publish(publisher, topic, b"for both")
    subscriber.acknowledge(subscription=first, ack_ids=[received.ack_id for received in pull(subscriber, first)])
    assert now(subscriber, second) == [b"for both"]


def test_message_ids_grow_and_never_repeat(publisher, topic):
    ids = [int(id_) for _ in range(3) for id_ in publish(publisher, topic, *[b"x"] * 100)]
    assert ids == sorted(set(ids))
    assert len(ids) == 300


def test_a_deleted_topic_leaves_its_subscriptions_with_what_they_hold(publisher, subscriber, topic, subscription):
    publish(publisher, topic, b"kept")
    publisher.delete_topic(topic=topic)
    assert now(subscriber, subscription) == [b"kept"]
    assert subscriber.get_subscription(subscription=subscription).topic == "_deleted-topic_"


def test_topics_are_listed_by_project_and_in_pages(publisher):
    names = [f"projects/another-project/topics/topic-{letter}" for letter in "abcde"]
    for name in names:
        publisher.create_topic(name=name)
    request = {"project": "projects/another-project", "page_size": 2}
    assert [topic.name for topic in publisher.list_topics(request=request)] == names


# Pull, acknowledge, deadlines


def test_a_pull_returns_at_most_what_it_asked_for(publisher, subscriber, topic, subscription):
    publish(publisher, topic, b"1", b"2", b"3")
    assert now(subscriber, subscription, most=2) == [b"1", b"2"]
    assert now(subscriber, subscription, most=2) == [b"3"]


def test_an_empty_pull_waits_a_short_while_unless_told_not_to(subscriber, subscription):
    def seconds(**how: Any) -> float:
        started = time.monotonic()
        assert pull(subscriber, subscription, **how) == []
        return time.monotonic() - started

    assert seconds() > 0.9
    assert any(seconds(return_immediately=True) < 0.5 for _ in range(20))  # the machine may be busy now and then


def test_a_waiting_pull_returns_as_soon_as_a_message_comes(publisher, subscriber, topic, subscription):
    def seconds() -> float:
        timer = threading.Timer(0.2, publish, (publisher, topic, b"late"))
        started = time.monotonic()
        timer.start()
        while not (found := pull(subscriber, subscription)):
            pass
        subscriber.acknowledge(subscription=subscription, ack_ids=[found[0].ack_id])
        assert [received.message.data for received in found] == [b"late"]
        return time.monotonic() - started

    assert any(seconds() < 0.9 for _ in range(20))  # the machine may be busy now and then


def test_an_unacknowledged_message_comes_back_after_the_default_deadline(publisher, subscriber, topic, subscription):
    assert subscriber.get_subscription(subscription=subscription).ack_deadline_seconds == 10
    publish(publisher, topic, b"again", b"done")
    started = time.monotonic()
    again, done = pull(subscriber, subscription)
    subscriber.acknowledge(subscription=subscription, ack_ids=[done.ack_id])
    while not (back := pull(subscriber, subscription)):
        pass
    assert time.monotonic() - started > 9.5
    assert [received.message.message_id for received in back] == [again.message.message_id]
    assert back[0].ack_id != again.ack_id


def test_a_changed_deadline_is_the_one_that_counts(publisher, subscriber, topic, subscription):
    publish(publisher, topic, b"later", b"sooner")
    later, sooner = (received.ack_id for received in pull(subscriber, subscription))
    for ack_id, seconds in ((later, 1), (later, 60), (sooner, 60), (sooner, 1)):
        subscriber.modify_ack_deadline(subscription=subscription, ack_ids=[ack_id], ack_deadline_seconds=seconds)
    started = time.monotonic()
    while not (back := now(subscriber, subscription)):
        time.sleep(0.05)
    assert back == [b"sooner"]
    assert time.monotonic() - started > 0.9
    assert now(subscriber, subscription) == []


def test_an_old_ack_id_does_not_acknowledge_a_later_delivery(publisher, subscriber, topic, subscription):
    publish(publisher, topic, b"body")
    [first] = pull(subscriber, subscription)
    subscriber.modify_ack_deadline(subscription=subscription, ack_ids=[first.ack_id], ack_deadline_seconds=0)
    [second] = pull(subscriber, subscription)
    subscriber.acknowledge(subscription=subscription, ack_ids=[first.ack_id])
    subscriber.modify_ack_deadline(subscription=subscription, ack_ids=[second.ack_id], ack_deadline_seconds=0)
    assert now(subscriber, subscription) == [b"body"]


def test_a_late_ack_counts_while_the_message_waits_to_be_delivered_again(publisher, subscriber, topic, subscription):
    publish(publisher, topic, b"body")
    [received] = pull(subscriber, subscription)
    subscriber.modify_ack_deadline(subscription=subscription, ack_ids=[received.ack_id], ack_deadline_seconds=0)
    subscriber.acknowledge(subscription=subscription, ack_ids=[received.ack_id])
    assert now(subscriber, subscription) == []


def test_a_nacked_message_is_delivered_again_at_once(publisher, subscriber, topic, subscription):
    times: list[float] = []
    twice = threading.Event()

    def nack_then_ack(message: Any) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            message.nack()
        else:
            message.ack()
            twice.set()

    with consuming(subscriber, subscription, nack_then_ack):
        publish(publisher, topic, b"body")
        assert twice.wait(timeout=60)
    assert times[1] - times[0] < 10, "it waited for the deadline"


# Streams


def test_a_stream_is_sent_no_more_than_it_has_room_for(publisher, subscriber, topic, subscription):
    stream = Stream(subscriber, subscription, max_outstanding_messages=2)
    publish(publisher, topic, b"1", b"2", b"3")
    first, second = stream.next(), stream.next()
    assert stream.is_quiet()
    stream.send(ack_ids=[first.ack_id])
    assert stream.next().message.data == b"3"
    stream.send(modify_deadline_ack_ids=[second.ack_id], modify_deadline_seconds=[0])
    assert stream.next().message.data == b"2"
    stream.close()


def test_a_closed_stream_gives_its_messages_back_at_once(publisher, subscriber, topic, subscription):
    stream = Stream(subscriber, subscription)
    publish(publisher, topic, b"acknowledged", b"held")
    done, _held = stream.next(), stream.next()
    stream.send(ack_ids=[done.ack_id])
    publish(publisher, topic, b"after the ack")
    stream.next()
    stream.close()
    back = [received.message.data for received in pull(subscriber, subscription)]
    assert back == [b"held", b"after the ack"]


def test_a_deleted_subscription_ends_its_streams(subscriber, subscription):
    stream = Stream(subscriber, subscription)
    assert stream.is_quiet()
    subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(exceptions.NotFound, match=subscription):
        stream.next()


# Order


def test_messages_of_one_ordering_key_arrive_in_order(publisher, subscriber, topic):
    subscription = subscribe(subscriber, topic, enable_message_ordering=True)
    arrived: dict[str, list[int]] = defaultdict(list)
    left = itertools.count(399, -1)
    done = threading.Event()

    def collect(message: Any) -> None:
        arrived[message.ordering_key].append(int(message.data))
        message.ack()
        if next(left) == 0:
            done.set()

    with consuming(subscriber, subscription, collect):
        for start in range(0, 80, 10):
            numbers = range(start, start + 10)
            keyed = [{"data": b"%d" % n, "ordering_key": key} for n in numbers for key in "abcde"]
            publish(publisher, topic, *keyed)
        assert done.wait(timeout=60)
    assert arrived == {key: list(range(80)) for key in "abcde"}


def test_a_nacked_message_takes_those_behind_it_back_with_it(publisher, subscriber, topic):
    subscription = subscribe(subscriber, topic, enable_message_ordering=True)
    publish(publisher, topic, *({"data": data, "ordering_key": "k"} for data in (b"1", b"2", b"3")))
    one, two, three = pull(subscriber, subscription)
    publish(publisher, topic, {"data": b"4", "ordering_key": "k"}, {"data": b"other", "ordering_key": "l"})
    assert now(subscriber, subscription) == [b"other"]
    subscriber.modify_ack_deadline(subscription=subscription, ack_ids=[two.ack_id], ack_deadline_seconds=0)
    subscriber.acknowledge(subscription=subscription, ack_ids=[three.ack_id])
    assert now(subscriber, subscription) == []
    subscriber.acknowledge(subscription=subscription, ack_ids=[one.ack_id])
    assert now(subscriber, subscription) == [b"2", b"3", b"4"]


# Requests that are refused


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], "0 messages"),
        ([b"good", {"ordering_key": "k"}], "Message 1 is empty"),
        ([b"x"] * 1001, "1001 messages"),
        ([b"x" * 5_000_000] * 2, "at most 10000000"),
        ([{"attributes": {"key": "v" * 1025}}], "Keep to 1024 bytes"),
        ([{"attributes": {"googly": "v"}}], "'googly'"),
        ([{"attributes": {f"k{n}": "v" for n in range(101)}}], "101 attributes"),
        ([{"data": b"x", "ordering_key": "k" * 1025}], "ordering key"),
    ],
    ids=["none", "empty", "too many", "too large", "long value", "reserved key", "many attributes", "long key"],
)
def test_a_publish_beyond_the_limits_is_refused_as_a_whole(publisher, subscriber, topic, subscription, messages, sentence):
    with pytest.raises(exceptions.InvalidArgument, match=sentence):
        publish(publisher, topic, *messages)
    assert now(subscriber, subscription) == []


@pytest.mark.parametrize("name", ["topic", "projects/p/topics/ab", "projects/p/topics/goog-x", "projects/p/topics/a/b/c"])
def test_a_name_that_is_not_a_topics_is_refused(publisher, name):
    with pytest.raises(exceptions.InvalidArgument, match=name):
        publisher.create_topic(name=name)
    with pytest.raises(exceptions.InvalidArgument, match="projects/PROJECT/topics/ID"):
        publish(publisher, name, b"body")


def test_what_exists_is_not_created_twice(publisher, subscriber, topic, subscription):
    with pytest.raises(exceptions.AlreadyExists, match=topic):
        publisher.create_topic(name=topic)
    with pytest.raises(exceptions.AlreadyExists, match=subscription):
        subscriber.create_subscription(name=subscription, topic=topic)


def test_what_does_not_exist_is_not_found(publisher, subscriber):
    topic, subscription = f"{PROJECT}/topics/missing", f"{PROJECT}/subscriptions/missing"
    calls: list[Callable[[], Any]] = [
        lambda: publish(publisher, topic, b"body"),
        lambda: publisher.get_topic(topic=topic),
        lambda: publisher.delete_topic(topic=topic),
        lambda: subscriber.create_subscription(name=subscription, topic=topic),
        lambda: subscriber.get_subscription(subscription=subscription),
        lambda: subscriber.delete_subscription(subscription=subscription),
        lambda: subscriber.acknowledge(subscription=subscription, ack_ids=["1-1"]),
        lambda: pull(subscriber, subscription),
        Stream(subscriber, subscription).next,
    ]
    for call in calls:
        with pytest.raises(exceptions.NotFound, match=r"missing\. Create it first"):
            call()


def test_deadlines_and_ack_ids_out_of_range_are_refused(subscriber, topic, subscription):
    with pytest.raises(exceptions.InvalidArgument, match="9 s"):
        subscribe(subscriber, topic, ack_deadline_seconds=9)
    with pytest.raises(exceptions.InvalidArgument, match="601 s"):
        subscriber.modify_ack_deadline(subscription=subscription, ack_ids=["1-1"], ack_deadline_seconds=601)
    with pytest.raises(exceptions.InvalidArgument, match="'nonsense'"):
        subscriber.acknowledge(subscription=subscription, ack_ids=["nonsense"])
    with pytest.raises(exceptions.InvalidArgument, match="at least 1"):
        pull(subscriber, subscription, most=0)


def test_a_feature_that_is_missing_is_refused_and_not_ignored(subscriber, topic):
    with pytest.raises(exceptions.MethodNotImplemented, match="filter"):
        subscribe(subscriber, topic, filter="attributes:colour")


# Faults


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("not_found", exceptions.NotFound),
        ("permission_denied", exceptions.PermissionDenied),
        ("unavailable", exceptions.ServiceUnavailable),
    ],
)
def test_a_topic_with_a_fault_refuses_until_it_is_lifted(server, publisher, topic, fault, error):
    server.set_fault(topic, fault)
    with pytest.raises(error, match=topic):
        publish(publisher, topic, b"body")
    with pytest.raises(error, match=topic):
        publisher.get_topic(topic=topic, retry=None)
    server.set_fault(topic, None)
    publish(publisher, topic, b"body", b"body")
    assert publisher.get_topic(topic=topic).name == topic
    assert server.stats()[topic] == {"published": 2, "refused": 1}


def test_a_delayed_topic_answers_late(server, publisher, topic):
    server.set_fault(topic, "delay", seconds=0.3)
    started = time.monotonic()
    publish(publisher, topic, b"body")
    assert time.monotonic() - started >= 0.3


def test_a_hanging_topic_takes_nothing_from_a_caller_that_gives_up(server, publisher, subscriber, topic, subscription):
    server.set_fault(topic, "hang")
    with pytest.raises(exceptions.DeadlineExceeded):
        publish(publisher, topic, b"body", timeout=0.3)
    time.sleep(0.3)  # the caller gives up by its own clock; the server hears of it a moment later
    server.set_fault(topic, None)
    publish(publisher, topic, b"the next one")
    assert now(subscriber, subscription) == [b"the next one"]


def test_a_hanging_topic_answers_when_the_fault_is_lifted(server, publisher, topic):
    server.set_fault(topic, "hang")
    timer = threading.Timer(0.3, server.set_fault, (topic, None))
    started = time.monotonic()
    timer.start()
    publish(publisher, topic, b"body")
    assert time.monotonic() - started > 0.25


def test_a_fault_can_wait_until_some_requests_have_passed(server, publisher, topic):
    server.set_fault(topic, "unavailable", after=3)
    publisher.get_topic(topic=topic, retry=None)  # does not count: it is not a publish
    for _ in range(3):
        publish(publisher, topic, b"body")
    with pytest.raises(exceptions.ServiceUnavailable):
        publish(publisher, topic, b"body")


def test_a_fault_of_every_topic_yields_to_a_topics_own(server, publisher, topic):
    server.set_fault("*", "unavailable")
    server.set_fault(topic, "permission_denied")
    with pytest.raises(exceptions.PermissionDenied):
        publish(publisher, topic, b"body")
    with pytest.raises(exceptions.ServiceUnavailable):
        publish(publisher, f"{PROJECT}/topics/any-other", b"body")
    server.set_fault("*", None)
    assert publish(publisher, topic, b"body")


def test_a_fault_that_makes_no_sense_is_refused(server):
    topic = f"{PROJECT}/topics/topic"
    for wrong in [(topic, "broken", 0, 0), ("topic", "hang", 0, 0), (topic, "delay", 0, 0), (topic, "hang", 0, -1)]:
        name, fault, seconds, after = wrong
        with pytest.raises(OperatorError):
            set_fault(server.address, name, fault, seconds=seconds, after=after)
        with pytest.raises(OperatorError):
            server.set_fault(name, fault, seconds=seconds, after=after)
    with grpc.insecure_channel(server.address) as channel:
        for request in (b"nonsense", b"[]", b'{"fault": "broken"}', b'{"fault": "hang", "colour": "blue"}'):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(f"/{SERVICE}/Set")(request, timeout=60)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# Processes and ports


def test_a_server_in_a_process_of_its_own_takes_faults_and_stops_when_told(monkeypatch):
    command = [sys.executable, "-m", "tidings.local.pubsub", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = f"127.0.0.1:{json.loads(process.stdout.readline())['port']}"
            monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
            publisher = pubsub_v1.PublisherClient(credentials=AnonymousCredentials())
            topic = f"{PROJECT}/topics/remote"
            publisher.create_topic(name=topic)
            set_fault(address, topic, "unavailable", after=1)
            publish(publisher, topic, b"1", b"2")
            with pytest.raises(exceptions.ServiceUnavailable):
                publish(publisher, topic, b"3")
            set_fault(address, topic, None)
            publish(publisher, topic, b"3")
            assert get_stats(address) == {topic: {"published": 3, "refused": 1}}
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_a_taken_port_is_the_operators_to_change(server):
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(OperatorError, match=f"{port}"), running(port=port):
        pass


def test_a_server_started_again_has_the_messages_it_had(monkeypatch):
    topic = f"{PROJECT}/topics/kept"

    def publish_one(address: str) -> str:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        publisher = pubsub_v1.PublisherClient(credentials=AnonymousCredentials())
        publisher.create_topic(name=topic)
        with pubsub_v1.SubscriberClient(credentials=AnonymousCredentials()) as subscriber:
            subscription = subscribe(subscriber, topic)
        publish(publisher, topic, b"kept")
        return subscription

    def pull_one(subscription: str) -> list[bytes]:
        with pubsub_v1.SubscriberClient(credentials=AnonymousCredentials()) as subscriber:
            return now(subscriber, subscription)

    async def stop_and_start() -> list[bytes]:
        server = PubSubServer()
        port = await server.start()
        subscription = await asyncio.to_thread(publish_one, server.address)
        await server.stop()
        assert await server.start(port=port) == port
        try:
            return await asyncio.to_thread(pull_one, subscription)
        finally:
            await server.stop()

    assert asyncio.run(stop_and_start()) == [b"kept"]
