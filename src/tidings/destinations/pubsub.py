"""Google Pub/Sub.

ARN        arn:gcp:pubsub::PROJECT_ID:TOPIC_ID
Guarantee  a message is sent when Pub/Sub has answered with its id
Order      none of its own; the attribute `sequencer` orders the messages of a key
Batch      one Publish call, all or nothing
Limits     1,000 messages or 10 MB for a call (cloud.google.com/pubsub/quotas)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import google.auth
import grpc.aio
from google.api_core.exceptions import GoogleAPICallError, InvalidArgument
from google.pubsub_v1 import PublisherAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
from google.pubsub_v1.types import PublishRequest, PubsubMessage

from tidings.events.arn import PubSubTopic
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.settings import Settings

# A peer that comes back should be noticed soon: gRPC's own back-off grows to two minutes.
_CHANNEL = [("grpc.max_reconnect_backoff_ms", 1000), ("grpc.min_reconnect_backoff_ms", 200)]

_publish_request = PublishRequest.pb()
_pubsub_message = PubsubMessage.pb()


def connect(arn: str, settings: Settings) -> PubSub:
    return PubSub(PubSubTopic.from_arn(arn), settings.pubsub.emulator_host)


class PubSub:
    max_batch = 1000
    max_bytes = 9_000_000  # of 10 MB: the rest is for ids, attributes and framing

    def __init__(self, topic: PubSubTopic, emulator_host: str | None) -> None:
        self._topic = topic.name
        self._emulator_host = emulator_host
        self._client: Any = None

    async def _connected(self) -> Any:
        if self._client is None:
            if self._emulator_host:
                channel = grpc.aio.insecure_channel(self._emulator_host, options=_CHANNEL)
                self._client = PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=channel))
            else:
                # in a thread: without credentials Google's library asks the network for them, and waits
                scopes = PublisherGrpcAsyncIOTransport.AUTH_SCOPES
                credentials, _ = await asyncio.to_thread(google.auth.default, scopes=scopes)
                self._client = PublisherAsyncClient(credentials=credentials)
        return self._client

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        request = _publish_request(
            topic=self._topic,
            messages=[_pubsub_message(data=message.body, attributes=message.attributes) for message in messages],
        )
        try:
            # no retries of the client's own: retrying is the lane's business, and it keeps the order
            async with asyncio.timeout(timeout):
                client = await self._connected()
                await client.publish(request=PublishRequest.wrap(request), retry=None, timeout=timeout)
        except InvalidArgument as error:
            return [Outcome(Verdict.REJECTED, _words(error))] * len(messages)
        except GoogleAPICallError as error:
            return [Outcome(Verdict.RETRY, _words(error))] * len(messages)
        except TimeoutError:
            return [Outcome(Verdict.RETRY, f"no answer from Pub/Sub within {timeout:g} s")] * len(messages)
        except Exception as error:  # credentials, name resolution: the client raises what its libraries raise
            return [Outcome(Verdict.RETRY, f"{type(error).__name__}: {error}")] * len(messages)
        return [SENT] * len(messages)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.transport.close()
            self._client = None


def _words(error: GoogleAPICallError) -> str:
    code = error.grpc_status_code.name if error.grpc_status_code else str(error.code)
    return f"{code}: {error.message}"
