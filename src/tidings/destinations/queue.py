"""SQS queues: our own, in the database, and those of accounts elsewhere that the operator named.

ARN        arn:aws:sqs:REGION:PROJECT:QUEUE, and arn:aws:sqs:REGION:123456789012:QUEUE for an account elsewhere
Guarantee  a message is sent when it is committed, or when SQS has answered with its id
Order      none of its own; the attribute `sequencer` orders the messages of a key
Batch      our own: 1,000 in one transaction, all or nothing; elsewhere: ten, each with its own outcome
Limits     256 KiB for a message with its attributes (or what the queue allows), ten attributes
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection

from tidings import external
from tidings.db import few
from tidings.db.few import Few
from tidings.destinations import Destination
from tidings.errors import CallerError
from tidings.events import arn as addresses
from tidings.events.arn import SqsQueue
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.queues import content
from tidings.queues.content import Content
from tidings.queues.messages import SEND, sending
from tidings.queues.model import MAX_MESSAGE
from tidings.settings import Settings

_SENDER = "tidings"


def connect(arn: str, settings: Settings) -> Destination:
    queue = _parsed(arn)
    if not queue.account.isdigit():
        return OwnQueue(queue, settings)
    seconds = settings.delivery.publish_timeout_seconds
    client = settings.external.client("sqs", queue.account, queue.region, seconds)
    return Unreachable(client) if isinstance(client, str) else ExternalQueue(queue, client)


async def refusal(connection: AsyncConnection[Any], project: str, arn: str, settings: Settings) -> str | None:
    """Why a project may not send to a queue, if it may not. The same words for a queue that is not there."""
    queue = _parsed(arn)
    if queue.account.isdigit():
        return unbound(project, arn, settings)
    if queue.account == project:
        return None
    granted = await connection.execute(
        "select from queue_grants g join queues q on q.id = g.queue"
        " where q.project = %s and q.name = %s and g.project = %s and g.action = 'SendMessage'",
        [queue.account, queue.queue, project],
    )
    return None if granted.rowcount else "the queue is another project's, which has not granted SendMessage to this one"


def unbound(project: str, arn: str, settings: Settings) -> str | None:
    """Why the settings do not let a project send to a queue elsewhere. Those of ours have owners, who grant."""
    queue = _parsed(arn)
    return settings.external.refusal(queue.account, queue.region, project) if queue.account.isdigit() else None


def _parsed(arn: str) -> SqsQueue:
    address = addresses.parse(arn)
    assert isinstance(address, SqsQueue)
    return address


def _content(message: Message, most: int) -> Content | Outcome:
    """What is kept of a message, or why it never can be."""
    named = [(name, value) for name, value in message.attributes.items() if value][: content.MAX_ATTRIBUTES]
    try:
        attributes = content.attributes({name: {"DataType": "String", "StringValue": value} for name, value in named})
        made = Content(message.body.decode(), attributes)
    except CallerError as error:
        return Outcome(Verdict.REJECTED, str(error))
    except UnicodeDecodeError:
        return Outcome(Verdict.REJECTED, "InvalidMessageContents: the message is not UTF-8")
    if made.size > most:
        words = f"the message has {made.size} bytes with its attributes, and the queue takes {most}"
        return Outcome(Verdict.REJECTED, words)
    return made


class OwnQueue:
    max_batch = ahead = 1000
    max_bytes = 4_000_000

    def __init__(self, queue: SqsQueue, settings: Settings) -> None:
        self._queue = queue
        self._here = settings.api.region
        self._url = settings.database_url
        self._few: Few | None = None

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        if self._queue.region != self._here:
            words = f"there are no queues in the region {self._queue.region} here, only in {self._here}"
            return [Outcome(Verdict.WAIT, words)] * len(messages)
        # Not cancelled in place: psycopg would first tell the server, and a server that hangs does not listen.
        working = asyncio.ensure_future(self._send(messages))
        done, _ = await asyncio.wait([working], timeout=timeout)
        if not done:
            working.cancel()
            working.add_done_callback(lambda task: task.cancelled() or task.exception())
            return [Outcome(Verdict.RETRY, f"no answer from the database within {timeout:g} s")] * len(messages)
        try:
            return working.result()
        except (psycopg.Error, OSError) as error:
            return [Outcome(Verdict.RETRY, f"the database: {str(error).strip() or type(error).__name__}")] * len(messages)

    async def _send(self, messages: Sequence[Message]) -> list[Outcome]:
        if self._few is None:
            self._few = few.taken(self._url)
        project, name = self._queue.account, self._queue.queue
        async with self._few.one() as connection:
            row = await (
                await connection.execute("select max_bytes from queues where project = %s and name = %s", [project, name])
            ).fetchone()
            if row is None:
                return [self._missing()] * len(messages)
            read = [_content(message, min(row[0], MAX_MESSAGE)) for message in messages]
            good = [each for each in read if isinstance(each, Content)]
            if good:
                kept = await connection.execute(SEND, sending(project, name, _SENDER, good))
                if kept.rowcount != len(good):  # deleted since it was looked at
                    return [self._missing()] * len(messages)
        return [SENT if isinstance(each, Content) else each for each in read]

    def _missing(self) -> Outcome:
        return Outcome(Verdict.WAIT, f"QueueDoesNotExist: there is no queue {self._queue.arn}")

    async def close(self) -> None:
        if self._few is not None:
            given, self._few = self._few, None
            await few.given_back(given)


class ExternalQueue:
    max_batch = 10
    max_bytes = MAX_MESSAGE - 32 * 1024  # of all ten together: the rest is for their attributes
    ahead = max_batch * external.THREADS

    def __init__(self, queue: SqsQueue, client: external.Client) -> None:
        self._client = client
        self._url = f"{client.endpoint}/{queue.account}/{queue.queue}"

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        entries: list[dict[str, Any]] = []
        for place, message in enumerate(messages):
            read = _content(message, MAX_MESSAGE)
            if isinstance(read, Outcome):
                outcomes[place] = read
            else:
                entries.append({"Id": str(place), "MessageBody": read.body, "MessageAttributes": read.attributes})
        if entries:
            outcomes |= await self._send(entries, timeout)
        return [outcomes[place] for place in range(len(messages))]

    async def _send(self, entries: list[dict[str, Any]], timeout: float) -> dict[int, Outcome]:
        places = [int(each["Id"]) for each in entries]
        try:
            answer = await self._client.call("send_message_batch", timeout, QueueUrl=self._url, Entries=entries)
            return external.outcomes(answer, places)
        except Exception as error:  # boto3 raises what its libraries raise
            return dict.fromkeys(places, external.outcome(error, timeout))

    async def close(self) -> None:
        """The client is shared."""


class Unreachable:
    """A queue elsewhere that nobody can reach until somebody acts."""

    max_batch = ahead = 1000
    max_bytes = MAX_MESSAGE

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:  # noqa: ARG002
        return [Outcome(Verdict.WAIT, self._reason)] * len(messages)

    async def close(self) -> None:
        """Nothing was opened."""
