"""A Pub/Sub server in one process, for Google's own clients: point PUBSUB_EMULATOR_HOST at it.

It speaks `google.pubsub.v1` over gRPC and keeps Google's promises where a publisher or a consumer can tell: names,
limits and statuses, at-least-once delivery with deadlines, order within an ordering key. Messages live in memory only:
when the process ends they are gone. What it does not have (push, filters, dead letters, snapshots) it refuses;
only `max_outstanding_bytes` of a stream goes unheeded: the number of messages alone bounds what is out.

`python -m tidings.local.pubsub --port 8085` runs it; `running()` runs it inside a test. Faults: `tidings.local.faults`.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp
from google.pubsub_v1 import types

from tidings.errors import OperatorError
from tidings.local.faults import Fault, Faults, Refused, check_topic, get_stats, set_fault

__all__ = ["PubSubServer", "get_stats", "main", "running", "set_fault"]

# The plain protobuf classes: the proto-plus wrappers around them cost several times as much per message.
ReceivedMessage = types.ReceivedMessage.pb()
PullResponse = types.PullResponse.pb()
StreamingPullResponse = types.StreamingPullResponse.pb()
PublishResponse = types.PublishResponse.pb()
ListTopicsResponse = types.ListTopicsResponse.pb()

# https://cloud.google.com/pubsub/quotas#resource_limits
REQUEST_MESSAGES = 1000
REQUEST_BYTES = 10_000_000
ATTRIBUTES = 100
ATTRIBUTE_KEY_BYTES = 256
ATTRIBUTE_VALUE_BYTES = 1024
ORDERING_KEY_BYTES = 1024
DEADLINE_SECONDS = (10, 600)

PULL_WAIT_SECONDS = 1.0
"""How long an empty Pull waits for a first message. Google says "a bounded amount of time"; tests want it short."""

_NAME = re.compile(r"projects/[a-z][a-z0-9.:-]{0,62}/(topics|subscriptions)/(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")

# Fields that would change what is delivered. Taking them in silence would make a test pass that fails at Google.
_UNSUPPORTED = {
    "bigquery_config", "bigtable_config", "cloud_storage_config", "dead_letter_policy", "enable_exactly_once_delivery",
    "filter", "ingestion_data_source_settings", "message_transforms", "push_config", "retry_policy", "schema_settings",
}  # fmt: skip


def _invalid(message: str) -> Refused:
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, message)


def _missing(what: str, name: str) -> Refused:
    return Refused(grpc.StatusCode.NOT_FOUND, f"There is no {what} {name}. Create it first.")


def _exists(name: str) -> Refused:
    return Refused(grpc.StatusCode.ALREADY_EXISTS, f"{name} exists already. Use it as it is, or delete it first.")


def _check_name(name: str, collection: str) -> None:
    match = _NAME.fullmatch(name)
    if match is None or match[1] != collection:
        rule = "the last part starts with a letter, not with goog, and has 3 to 255 of A-Z a-z 0-9 . _ ~ + % -"
        raise _invalid(f"The name {name[:300]!r} is not valid. Write projects/PROJECT/{collection}/ID: {rule}.")


def _check_supported(resource: Any) -> None:
    for descriptor, value in resource.ListFields():
        # An empty push_config is how Google's API spells "pull".
        if descriptor.name in _UNSUPPORTED and not (descriptor.name == "push_config" and not value.push_endpoint):
            sentence = f"This local server has no {descriptor.name}, which {resource.name} asks for. Leave it out."
            raise Refused(grpc.StatusCode.UNIMPLEMENTED, sentence)


def _check_deadline(seconds: int, lowest: int) -> None:
    if not lowest <= seconds <= DEADLINE_SECONDS[1]:
        raise _invalid(f"An ack deadline of {seconds} s is not valid. Choose {lowest} to {DEADLINE_SECONDS[1]}.")


def _check_publish(request: Any) -> None:
    """A request is taken or refused as a whole, so everything is checked before the first message is queued."""
    count, size = len(request.messages), request.ByteSize()
    if not 1 <= count <= REQUEST_MESSAGES:
        raise _invalid(f"The request has {count} messages. Send 1 to {REQUEST_MESSAGES} in one request.")
    if size > REQUEST_BYTES:
        raise _invalid(f"The request has {size} bytes. Send at most {REQUEST_BYTES} in one request.")
    for index, message in enumerate(request.messages):
        if not message.data and not message.attributes:
            raise _invalid(f"Message {index} is empty. Give it data or at least one attribute.")
        if len(message.attributes) > ATTRIBUTES:
            raise _invalid(f"Message {index} has {len(message.attributes)} attributes. Keep to {ATTRIBUTES}.")
        if len(message.ordering_key.encode()) > ORDERING_KEY_BYTES:
            raise _invalid(f"The ordering key of message {index} is too long. Keep to {ORDERING_KEY_BYTES} bytes.")
        for key, value in message.attributes.items():
            if not 1 <= len(key.encode()) <= ATTRIBUTE_KEY_BYTES or key.startswith("goog"):
                rule = f"Use 1 to {ATTRIBUTE_KEY_BYTES} bytes that do not start with goog."
                raise _invalid(f"Message {index} has the attribute key {key[:300]!r}. {rule}")
            if len(value.encode()) > ATTRIBUTE_VALUE_BYTES:
                rule = f"Keep to {ATTRIBUTE_VALUE_BYTES} bytes."
                raise _invalid(f"The value of attribute {key!r} of message {index} is too long. {rule}")


@dataclass(slots=True, eq=False)
class Entry:
    """One message in one subscription, from publish to acknowledgement."""

    number: int
    message: Any
    lane: Lane | None
    delivery: int = 0
    deadline: float = 0.0
    leases: Leases | None = None
    """Who holds the message; None while it waits in the queue."""

    @property
    def ack_id(self) -> str:
        return f"{self.number}-{self.delivery}"


Leases = dict[int, Entry]


@dataclass(slots=True, eq=False)
class Lane:
    """The messages of one ordering key. One batch is out at a time: the next goes when all of it is acknowledged."""

    key: str
    waiting: deque[Entry] = field(default_factory=deque)
    out: Leases = field(default_factory=dict)
    queued: bool = False


class Subscription:
    """A queue with leases. Everything happens on the event loop, between two awaits: there is nothing to lock."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self._deleted = False
        self._numbers = itertools.count(1)
        self._unacked: Leases = {}
        self._ready: deque[Entry | Lane] = deque()
        self._lanes: dict[str, Lane] = {}
        # One row per batch, never taken out early: an entry's own `deadline` says whether the row still counts.
        self._deadlines: list[tuple[float, list[int]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: set[asyncio.Event] = set()

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever `take` may have something new to give."""
        event = asyncio.Event()
        self._listeners.add(event)
        try:
            yield event
        finally:
            self._listeners.discard(event)

    def delete(self) -> None:
        self._deleted = True
        self._wake()

    def check_alive(self) -> None:
        """For whoever waited: the name may be gone by now, or belong to a newer subscription."""
        if self._deleted:
            raise _missing("subscription", self.config.name)

    def add(self, messages: Iterable[Any]) -> None:
        ordered = self.config.enable_message_ordering
        for message in messages:
            entry = Entry(next(self._numbers), message, None)
            self._unacked[entry.number] = entry
            if ordered and (key := message.ordering_key):
                entry.lane = lane = self._lanes.get(key) or self._lanes.setdefault(key, Lane(key))
                lane.waiting.append(entry)
                self._offer(lane)
            else:
                self._ready.append(entry)
        self._wake()

    def take(self, limit: int, seconds: float, leases: Leases) -> list[Any]:
        """Leases up to `limit` messages for `seconds`; a response stays below twice the size of the largest request."""
        taken: list[Entry] = []
        size = 0
        while self._ready and len(taken) < limit and size < REQUEST_BYTES:
            head = self._ready.popleft()
            if isinstance(head, Entry):
                if head.number in self._unacked:  # not acknowledged late, while it waited to be delivered again
                    taken.append(head)
                    size += len(head.message.data)
                continue
            head.queued = False
            while head.waiting and len(taken) < limit and size < REQUEST_BYTES:
                entry = head.waiting.popleft()
                head.out[entry.number] = entry
                taken.append(entry)
                size += len(entry.message.data)
        if not taken:
            return []
        for entry in taken:
            entry.delivery += 1
            entry.leases = leases
            leases[entry.number] = entry
        self._extend(taken, seconds)
        return [ReceivedMessage(ack_id=entry.ack_id, message=entry.message) for entry in taken]

    def acknowledge(self, ack_ids: Iterable[str]) -> None:
        """Forgets the messages. After its deadline an ack id stays good until the message is delivered again."""
        for entry in self._find(ack_ids):
            del self._unacked[entry.number]
            if entry.leases is not None:
                del entry.leases[entry.number]
            if (lane := entry.lane) is not None:
                del lane.out[entry.number]
                if lane.waiting:
                    self._offer(lane)
                elif not lane.out:
                    del self._lanes[lane.key]
        self._wake()

    def modify_deadline(self, ack_ids: Iterable[str], seconds: int) -> None:
        _check_deadline(seconds, 0)
        leased = [entry for entry in self._find(ack_ids) if entry.leases is not None]
        if seconds == 0:
            self.give_back(leased)
        else:
            self._extend(leased, seconds)

    def give_back(self, entries: Iterable[Entry]) -> None:
        """Puts leased messages back at the front, oldest first; with an ordered one go those that came after it."""
        back: Leases = {}
        first: dict[Lane, int] = {}
        for entry in entries:
            back[entry.number] = entry
            if entry.lane is not None:
                first[entry.lane] = min(entry.number, first.get(entry.lane, entry.number))
        for lane, earliest in first.items():
            back.update((number, later) for number, later in lane.out.items() if number > earliest)
        for number in sorted(back, reverse=True):
            entry = back[number]
            if entry.leases is not None:
                del entry.leases[number]
                entry.leases = None
            if entry.lane is None:
                self._ready.appendleft(entry)
            else:
                # An ack for the delivery that was called off would leave a hole in the order of the next one.
                entry.delivery += 1
                del entry.lane.out[number]
                entry.lane.waiting.appendleft(entry)
                self._offer(entry.lane, first=True)
        self._wake()

    def _wake(self) -> None:
        for event in self._listeners:
            event.set()

    def _offer(self, lane: Lane, *, first: bool = False) -> None:
        if not lane.out and not lane.queued:
            lane.queued = True
            (self._ready.appendleft if first else self._ready.append)(lane)

    def _find(self, ack_ids: Iterable[str]) -> Iterable[Entry]:
        """The entries that these ack ids still stand for, each once. Old ids are passed over, as Google does."""
        found: Leases = {}
        for ack_id in ack_ids:
            try:
                entry = self._unacked.get(int(ack_id.partition("-")[0]))
            except ValueError:
                sentence = f"{ack_id[:100]!r} is not an ack id. Send back the ack_id that came with the message."
                raise _invalid(sentence) from None
            if entry is not None and entry.ack_id == ack_id:
                found[entry.number] = entry
        return found.values()

    def _extend(self, entries: list[Entry], seconds: float) -> None:
        if not entries:
            return
        deadline = asyncio.get_running_loop().time() + seconds
        for entry in entries:
            entry.deadline = deadline
        heapq.heappush(self._deadlines, (deadline, [entry.number for entry in entries]))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None and (not self._deadlines or self._timer.when() > self._deadlines[0][0]):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and self._deadlines:
            self._timer = asyncio.get_running_loop().call_at(self._deadlines[0][0], self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        late: Leases = {}
        while self._deadlines and self._deadlines[0][0] <= now:
            for number in heapq.heappop(self._deadlines)[1]:
                entry = self._unacked.get(number)
                if entry is not None and entry.leases is not None and entry.deadline <= now:
                    late[number] = entry
        if late:
            self.give_back(late.values())
        self._set_timer()


@dataclass(slots=True, eq=False)
class Topic:
    config: Any
    subscriptions: list[Subscription] = field(default_factory=list)


class Broker:
    """The topics and the subscriptions, and one method for each RPC."""

    def __init__(self) -> None:
        self.faults = Faults()
        self._topics: dict[str, Topic] = {}
        self._subscriptions: dict[str, Subscription] = {}
        # From the clock, so that a restarted server does not give out the ids of the one before it.
        self._message_ids = itertools.count(time.time_ns() // 1000)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        publisher = {
            "CreateTopic": _unary(self.create_topic, types.Topic.pb(), types.Topic.pb()),
            "GetTopic": _unary(self.get_topic, types.GetTopicRequest.pb(), types.Topic.pb()),
            "ListTopics": _unary(self.list_topics, types.ListTopicsRequest.pb(), ListTopicsResponse),
            "DeleteTopic": _unary(self.delete_topic, types.DeleteTopicRequest.pb(), Empty),
            "Publish": _unary(self.publish, types.PublishRequest.pb(), PublishResponse),
        }
        subscriber = {
            "CreateSubscription": _unary(self.create_subscription, types.Subscription.pb(), types.Subscription.pb()),
            "GetSubscription": _unary(self.get_subscription, types.GetSubscriptionRequest.pb(), types.Subscription.pb()),
            "DeleteSubscription": _unary(self.delete_subscription, types.DeleteSubscriptionRequest.pb(), Empty),
            "Pull": _unary(self.pull, types.PullRequest.pb(), PullResponse),
            "Acknowledge": _unary(self.acknowledge, types.AcknowledgeRequest.pb(), Empty),
            "ModifyAckDeadline": _unary(self.modify_ack_deadline, types.ModifyAckDeadlineRequest.pb(), Empty),
            "StreamingPull": grpc.stream_stream_rpc_method_handler(
                self.streaming_pull,
                types.StreamingPullRequest.pb().FromString,
                StreamingPullResponse.SerializeToString,
            ),
        }
        return [
            grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", publisher),
            grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", subscriber),
            self.faults.handler(),
        ]

    async def create_topic(self, request: Any) -> Any:
        _check_name(request.name, "topics")
        _check_supported(request)
        if request.name in self._topics:
            raise _exists(request.name)
        self._topics[request.name] = Topic(request)
        return request

    async def get_topic(self, request: Any) -> Any:
        await self.faults.meet(request.topic, publishing=False)
        return self._topic(request.topic).config

    async def list_topics(self, request: Any) -> Any:
        prefix = f"{request.project}/topics/"
        names = sorted(name for name in self._topics if name.startswith(prefix) and name > request.page_token)
        page = names[: request.page_size or len(names)]
        token = page[-1] if len(page) < len(names) else ""
        return ListTopicsResponse(topics=[self._topics[name].config for name in page], next_page_token=token)

    async def delete_topic(self, request: Any) -> Any:
        for subscription in self._topic(request.topic).subscriptions:
            subscription.config.topic = "_deleted-topic_"  # it lives on, with what it holds
        del self._topics[request.topic]
        return Empty()

    async def publish(self, request: Any) -> Any:
        try:
            await self.faults.meet(request.topic, publishing=True)
            topic = self._topic(request.topic)
            _check_publish(request)
        except Refused:
            self.faults.refused[request.topic] += 1
            raise
        now = Timestamp()
        now.GetCurrentTime()
        for message in request.messages:
            message.message_id = str(next(self._message_ids))
            message.publish_time.CopyFrom(now)
        for subscription in topic.subscriptions:
            subscription.add(request.messages)
        self.faults.published[request.topic] += len(request.messages)
        return PublishResponse(message_ids=[message.message_id for message in request.messages])

    async def create_subscription(self, request: Any) -> Any:
        _check_name(request.name, "subscriptions")
        _check_supported(request)
        topic = self._topic(request.topic)
        if request.name in self._subscriptions:
            raise _exists(request.name)
        request.ack_deadline_seconds = request.ack_deadline_seconds or DEADLINE_SECONDS[0]
        _check_deadline(request.ack_deadline_seconds, DEADLINE_SECONDS[0])
        self._subscriptions[request.name] = subscription = Subscription(request)
        topic.subscriptions.append(subscription)
        return request

    async def get_subscription(self, request: Any) -> Any:
        return self._subscription(request.subscription).config

    async def delete_subscription(self, request: Any) -> Any:
        subscription = self._subscription(request.subscription)
        del self._subscriptions[request.subscription]
        if (topic := self._topics.get(subscription.config.topic)) is not None:
            topic.subscriptions.remove(subscription)
        subscription.delete()
        return Empty()

    async def pull(self, request: Any) -> Any:
        subscription = self._subscription(request.subscription)
        if request.max_messages < 1:
            raise _invalid(f"max_messages is {request.max_messages}. Ask for at least 1.")
        limit, seconds = min(request.max_messages, REQUEST_MESSAGES), subscription.config.ack_deadline_seconds
        until = asyncio.get_running_loop().time() + (0 if request.return_immediately else PULL_WAIT_SECONDS)
        with subscription.listening() as woken:
            while not (messages := subscription.take(limit, seconds, {})):
                woken.clear()
                try:
                    async with asyncio.timeout_at(until):
                        await woken.wait()
                except TimeoutError:
                    break
                subscription.check_alive()
        return PullResponse(received_messages=messages)

    async def acknowledge(self, request: Any) -> Any:
        self._subscription(request.subscription).acknowledge(request.ack_ids)
        return Empty()

    async def modify_ack_deadline(self, request: Any) -> Any:
        self._subscription(request.subscription).modify_deadline(request.ack_ids, request.ack_deadline_seconds)
        return Empty()

    async def streaming_pull(self, _requests: Any, context: Any) -> None:
        try:
            await self._stream(context)
        except Refused as refused:
            await context.abort(refused.code, refused.message)

    async def _stream(self, context: Any) -> None:
        """Two directions at once: a task of its own obeys the client, while this one sends what there is room for."""
        first = await context.read()
        if first is grpc.aio.EOF:
            return
        subscription = self._subscription(first.subscription)
        _check_deadline(first.stream_ack_deadline_seconds, DEADLINE_SECONDS[0])
        seconds, room = first.stream_ack_deadline_seconds, first.max_outstanding_messages
        most = room if room > 0 else sys.maxsize
        leases: Leases = {}
        properties = {"message_ordering_enabled": subscription.config.enable_message_ordering}

        async def obey() -> None:
            nonlocal seconds
            request = first
            while request is not grpc.aio.EOF:
                subscription.acknowledge(request.ack_ids)
                ack_ids, deadlines = request.modify_deadline_ack_ids, request.modify_deadline_seconds
                if len(ack_ids) != len(deadlines):
                    raise _invalid(f"{len(ack_ids)} ack ids for {len(deadlines)} deadlines. Send one for each.")
                for ack_id, deadline in zip(ack_ids, deadlines, strict=True):
                    subscription.modify_deadline([ack_id], deadline)
                seconds = request.stream_ack_deadline_seconds or seconds
                request = await context.read()

        client = asyncio.create_task(obey())
        try:
            with subscription.listening() as woken:
                client.add_done_callback(lambda _: woken.set())
                while not client.done():
                    subscription.check_alive()
                    limit = min(most - len(leases), REQUEST_MESSAGES)
                    if messages := subscription.take(limit, seconds, leases):
                        response = StreamingPullResponse(received_messages=messages, subscription_properties=properties)
                        await context.write(response)
                    else:
                        woken.clear()
                        await woken.wait()
            client.result()
        finally:
            client.cancel()
            subscription.give_back(leases.values())

    def _topic(self, name: str) -> Topic:
        if (topic := self._topics.get(name)) is None:
            _check_name(name, "topics")
            raise _missing("topic", name)
        return topic

    def _subscription(self, name: str) -> Subscription:
        if (subscription := self._subscriptions.get(name)) is None:
            _check_name(name, "subscriptions")
            raise _missing("subscription", name)
        return subscription


def _unary(method: Callable[[Any], Awaitable[Any]], request_type: Any, response_type: Any) -> grpc.RpcMethodHandler:
    async def answer(request: Any, context: Any) -> Any:
        try:
            return await method(request)
        except Refused as refused:
            await context.abort(refused.code, refused.message)

    return grpc.unary_unary_rpc_method_handler(answer, request_type.FromString, response_type.SerializeToString)


class PubSubServer:
    """The broker behind a port. It outlives `stop`: started again, it has the messages it had."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.address = ""
        self._server: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listens and returns the port; 0 asks for any free one."""
        options = [
            # A request that is too large is told Google's limit, not gRPC's.
            ("grpc.max_receive_message_length", -1),
            # Two servers on one port would each get a share of the calls.
            ("grpc.so_reuseport", 0),
            # Google's client pings a quiet stream more often than gRPC puts up with by default.
            ("grpc.http2.max_ping_strikes", 0),
        ]
        self._loop = asyncio.get_running_loop()
        self._server = grpc.aio.server(handlers=self.broker.handlers(), options=options)
        try:
            bound: int = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise OperatorError(f"Cannot listen on {host}:{port}. Choose another port; 0 takes any.") from error
        await self._server.start()
        self.address = f"{host}:{bound}"
        return bound

    async def stop(self) -> None:
        """Gives calls under way a moment, then ends them: streams and hanging calls would never end by themselves."""
        if self._server is not None:
            await self._server.stop(grace=0.1)

    def set_fault(self, topic: str, fault: str | None, *, seconds: float = 0.0, after: int = 0) -> None:
        """As `faults.set_fault`, from any thread of the server's own process. Calls made after this one meet it."""
        if self._loop is None:
            raise OperatorError("The server has not been started. Start it before setting a fault.")
        check_topic(topic)
        if fault is None:
            self._loop.call_soon_threadsafe(self.broker.faults.lift, topic)
        else:
            self._loop.call_soon_threadsafe(self.broker.faults.put, Fault(topic, fault, seconds, after))

    def stats(self) -> dict[str, dict[str, int]]:
        return self.broker.faults.stats()


@contextmanager
def running(host: str = "127.0.0.1", port: int = 0) -> Iterator[PubSubServer]:
    """A server in a thread with an event loop of its own, for as long as the block lasts."""
    server = PubSubServer()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="pubsub", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(host, port), loop).result()
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def main(port: int, host: str = "127.0.0.1") -> None:
    """Serves until SIGTERM or SIGINT. One line of JSON on stdout tells the port."""

    async def serve() -> None:
        server, told_to_stop = PubSubServer(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
        print(json.dumps({"port": await server.start(host, port)}), flush=True)
        await told_to_stop.wait()
        await server.stop()

    asyncio.run(serve())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A Pub/Sub server in memory, for tests and development.")
    parser.add_argument("--port", type=int, default=8085, help="0 takes any free one (default: 8085, as Google's)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    arguments = parser.parse_args()
    main(arguments.port, arguments.host)
