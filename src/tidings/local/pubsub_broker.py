"""The topics and the subscriptions of our Pub/Sub, and one method for each RPC of `google.pubsub.v1`."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp
from google.pubsub_v1 import types

from tidings.local.faults import Faults, Refused
from tidings.local.pubsub_limits import (
    DEADLINE_SECONDS,
    REQUEST_MESSAGES,
    check_deadline,
    check_name,
    check_publish,
    check_supported,
    exists,
    invalid,
    missing,
)
from tidings.local.pubsub_subscription import Leases, Subscription

# The plain protobuf classes: the proto-plus wrappers around them cost several times as much per message.
PullResponse = types.PullResponse.pb()
StreamingPullResponse = types.StreamingPullResponse.pb()
PublishResponse = types.PublishResponse.pb()
ListTopicsResponse = types.ListTopicsResponse.pb()

PULL_WAIT_SECONDS = 1.0
"""How long an empty Pull waits for a first message. Google says "a bounded amount of time"; tests want it short."""


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
        check_name(request.name, "topics")
        check_supported(request)
        if request.name in self._topics:
            raise exists(request.name)
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
            check_publish(request)
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
        check_name(request.name, "subscriptions")
        check_supported(request)
        topic = self._topic(request.topic)
        if request.name in self._subscriptions:
            raise exists(request.name)
        request.ack_deadline_seconds = request.ack_deadline_seconds or DEADLINE_SECONDS[0]
        check_deadline(request.ack_deadline_seconds, DEADLINE_SECONDS[0])
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
            raise invalid(f"max_messages is {request.max_messages}. Ask for at least 1.")
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
        check_deadline(first.stream_ack_deadline_seconds, DEADLINE_SECONDS[0])
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
                    raise invalid(f"{len(ack_ids)} ack ids for {len(deadlines)} deadlines. Send one for each.")
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
            check_name(name, "topics")
            raise missing("topic", name)
        return topic

    def _subscription(self, name: str) -> Subscription:
        if (subscription := self._subscriptions.get(name)) is None:
            check_name(name, "subscriptions")
            raise missing("subscription", name)
        return subscription


def _unary(method: Callable[[Any], Awaitable[Any]], request_type: Any, response_type: Any) -> grpc.RpcMethodHandler:
    async def answer(request: Any, context: Any) -> Any:
        try:
            return await method(request)
        except Refused as refused:
            await context.abort(refused.code, refused.message, refused.trailers())

    return grpc.unary_unary_rpc_method_handler(answer, request_type.FromString, response_type.SerializeToString)
