"""SNS: a subscription of a topic of ours, or a topic of AWS.

ARN        arn:aws:sns:REGION:PROJECT:TOPIC in rules; each of its subscriptions, ARN:UUID, is a lane of its own. With twelve
           digits in place of the project it is a topic elsewhere
Guarantee  a message is sent when the subscriber has answered 2xx, its queue has taken it, or SNS has answered with its id
Order      none of its own; the attribute `sequencer` orders the messages of a key
Batch      one POST for each message, 100 side by side; elsewhere ten in a call, each with its own outcome
Limits     256 KiB for a message with its attributes (docs.aws.amazon.com/general/latest/gr/sns.html)
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import psycopg

from tidings import destinations, external
from tidings.destinations import Destination
from tidings.events.arn import SnsTopic
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.outgoing.connecting import Caller, caller
from tidings.settings import Settings
from tidings.topics import model
from tidings.topics.delivering import MAX_BYTES, Delivering, too_large
from tidings.topics.envelope import SUBJECT
from tidings.topics.knowing import Known
from tidings.topics.permitting import granted

_BEST_EFFORT = 0.8
"""The part of its time that a test event waits for subscribers, of which none need be there."""


def connect(arn: str, settings: Settings) -> Destination:
    if model.is_subscription(arn):
        return Subscriber(arn, settings)
    topic = model.topic_arn(arn)
    return Elsewhere(topic, settings) if topic.account.isdigit() else Topic(arn, settings)


async def refusal(connection: psycopg.AsyncConnection[Any], project: str, arn: str, settings: Settings) -> str | None:
    """Why a project may not name a topic in a rule. Whether there is such a topic at all is not said."""
    topic = model.topic_arn(arn)
    owner = topic.account
    if owner.isdigit():
        return unbound(project, arn, settings)
    if owner == project or await granted(connection, project, arn, model.PUBLISH):
        return None
    return f"{arn} is not a topic of this project, and its owner has not granted Publish to it"


def unbound(project: str, arn: str, settings: Settings) -> str | None:
    """Why the settings do not let a project send to a topic elsewhere. Those of ours have owners, who grant."""
    if model.is_subscription(arn):
        return None
    topic = model.topic_arn(arn)
    return settings.external.refusal(topic.account, topic.region, project) if topic.account.isdigit() else None


class _Shared:
    """What all lanes of an event loop have in common: connections to endpoints, and what is known of subscriptions."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.known = Known(settings)
        self.caller: Caller = caller(settings)
        self.users = 0

    @classmethod
    def take(cls, settings: Settings) -> _Shared:
        there = _shared.setdefault(asyncio.get_running_loop(), [])
        found = next((each for each in there if each.settings == settings), None)
        if found is None:
            found = cls(settings)
            there.append(found)
        found.users += 1
        return found

    async def give_back(self) -> None:
        self.users -= 1
        if not self.users:
            _shared[asyncio.get_running_loop()].remove(self)
            await self.caller.close()
            await self.known.close()


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Shared]] = WeakKeyDictionary()


class _Ours(ABC):
    """A client of what lies in our own database."""

    max_batch = ahead = 100
    max_bytes = max_batch * MAX_BYTES

    def __init__(self, arn: str, settings: Settings) -> None:
        self._arn = arn
        self._settings = settings
        self._taken: _Shared | None = None
        self._queues: dict[tuple[str, str], Destination] = {}

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        # Not cancelled in place: psycopg would first tell the server, and a server that hangs does not listen.
        working = asyncio.ensure_future(self._send(messages, timeout))
        done, _ = await asyncio.wait([working], timeout=timeout)
        if not done:
            working.cancel()
            working.add_done_callback(lambda task: task.cancelled() or task.exception())
            return [Outcome(Verdict.RETRY, f"no answer within {timeout:g} s")] * len(messages)
        try:
            return working.result()
        except (psycopg.Error, OSError) as error:
            reason = f"the subscription cannot be read: {str(error).strip().partition(chr(10))[0]}"
            return [Outcome(Verdict.RETRY, reason)] * len(messages)

    @abstractmethod
    async def _send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]: ...

    async def _to(self, arn: str, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        to = await self._known.subscription(arn)
        if to is None:
            return [Outcome(Verdict.WAIT, f"there is no confirmed subscription {arn} any more")] * len(messages)
        delivering = Delivering(self._known, self._shared.caller, self._settings.api.url, self._queue)
        return await delivering.send(to, messages, timeout)

    @property
    def _shared(self) -> _Shared:
        if self._taken is None:
            self._taken = _Shared.take(self._settings)
        return self._taken

    @property
    def _known(self) -> Known:
        return self._shared.known

    def _queue(self, project: str, arn: str) -> Destination:
        if (project, arn) not in self._queues:
            self._queues[project, arn] = destinations.connect_for(project, arn, self._settings)
        return self._queues[project, arn]

    async def close(self) -> None:
        for queue in self._queues.values():
            await queue.close()
        self._queues.clear()
        if self._taken is not None:
            taken, self._taken = self._taken, None
            await taken.give_back()


class Subscriber(_Ours):
    """One subscription: a lane of its own."""

    async def _send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        return await self._to(self._arn, messages, timeout)


class Topic(_Ours):
    """A topic as a rule names it. Only test events come here: all subscribers are told, and none need answer."""

    async def _send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        subscribers = await self._known.subscriptions_of(self._arn)
        if subscribers is None:
            return [Outcome(Verdict.WAIT, f"there is no topic {self._arn}")] * len(messages)
        patience = timeout * _BEST_EFFORT
        told = [asyncio.create_task(self._to(arn, messages, patience)) for arn in subscribers]
        if told:
            _, late = await asyncio.wait(told, timeout=patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*told, return_exceptions=True)
        return [SENT] * len(messages)


class Elsewhere:
    """A topic of AWS, or of whatever else speaks SNS, in an account that the operator named."""

    max_batch = 10
    max_bytes = MAX_BYTES - 32 * 1024  # of all ten together: the rest is for their attributes
    ahead = max_batch * external.THREADS

    def __init__(self, topic: SnsTopic, settings: Settings) -> None:
        self._topic = topic
        seconds = settings.delivery.publish_timeout_seconds
        self._client = settings.external.client("sns", topic.account, topic.region, seconds)

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        if isinstance(self._client, str):
            return [Outcome(Verdict.WAIT, self._client)] * len(messages)
        outcomes: dict[int, Outcome] = {}
        entries = []
        for place, message in enumerate(messages):
            entry = _entry(place, message)
            if isinstance(entry, Outcome):
                outcomes[place] = entry
            else:
                entries.append(entry)
        if entries:
            outcomes |= await self._publish(self._client, entries, timeout)
        return [outcomes[place] for place in range(len(messages))]

    async def _publish(self, client: external.Client, entries: list[dict[str, Any]], timeout: float) -> dict[int, Outcome]:
        places = [int(each["Id"]) for each in entries]
        try:
            answer = await client.call("publish_batch", timeout, TopicArn=self._topic.arn, PublishBatchRequestEntries=entries)
            return external.outcomes(answer, places)
        except Exception as error:  # boto3 raises what its libraries raise
            return dict.fromkeys(places, external.outcome(error, timeout))

    async def close(self) -> None:
        """The client is shared."""


def _entry(place: int, message: Message) -> dict[str, Any] | Outcome:
    if (refused := too_large(message)) is not None:
        return refused
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        return Outcome(Verdict.REJECTED, "the message is not UTF-8, and SNS takes text")
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in message.attributes.items() if value}
    return {"Id": str(place), "Message": text, "Subject": SUBJECT, "MessageAttributes": attributes}
