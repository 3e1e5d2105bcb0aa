"""The operations of SQS on messages."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tidings.access.permissions import RECEIVE_MESSAGE, SEND_MESSAGE
from tidings.api import limits
from tidings.api.aws import Call
from tidings.api.json_document import Document
from tidings.api.parts import Parts
from tidings.errors import CallerError
from tidings.events.messages import PROJECT
from tidings.queues import content, messages, model
from tidings.queues.content import Attribute, Content
from tidings.queues.errors import QueueError, invalid
from tidings.queues.messages import Handle, Received
from tidings.queues.model import MAX_MESSAGE, Queue

T = TypeVar("T")

MOST_ENTRIES = 10
_LONGEST_HIDDEN = 43_200
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_SENT = frozenset({"Id", "MessageBody", "DelaySeconds", "MessageAttributes", "MessageSystemAttributes"})
_TRACE = "AWSTraceHeader"


async def send_message(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    given = _content(asked, call.project)
    queue = await _open(parts, call, asked, SEND_MESSAGE)
    given.check_size(queue.max_bytes)
    (sent,) = await _send(parts, call, queue, [given])
    return sent


async def send_message_batch(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    entries = _entries(asked, _SENT)
    good, failed = _each(entries, lambda entry: _content(entry, call.project))
    if sum(each.size for _, each in good) > MAX_MESSAGE:
        raise QueueError(
            "BatchRequestTooLong", f"Batch requests cannot be longer than {MAX_MESSAGE} bytes in all: send fewer at a time."
        )
    queue = await _open(parts, call, asked, SEND_MESSAGE)
    fitting: list[tuple[str, Content]] = []
    for entry, each in good:
        try:
            each.check_size(queue.max_bytes)
            fitting.append((entry, each))
        except QueueError as error:
            failed.append(_failure(entry, error))
    sent = await _send(parts, call, queue, [each for _, each in fitting]) if fitting else []
    return _batch([{"Id": entry, **answer} for (entry, _), answer in zip(fitting, sent, strict=True)], failed)


async def _send(parts: Parts, call: Call, queue: Queue, contents: Sequence[Content]) -> list[dict[str, Any]]:
    ids = await messages.send(parts.pool, queue, call.project, contents)
    parts.queues.waiting.sent(queue.id, len(ids))
    return [_answer(each, message) for each, message in zip(contents, ids, strict=True)]


def _answer(sent: Content, message: str) -> dict[str, Any]:
    trace = {_TRACE: {"DataType": "String", "StringValue": sent.trace}} if sent.trace else {}
    answer = {
        "MessageId": message,
        "MD5OfMessageBody": sent.md5,
        "MD5OfMessageAttributes": content.md5_of_attributes(sent.attributes),
        "MD5OfMessageSystemAttributes": content.md5_of_attributes(trace),
    }
    return {name: value for name, value in answer.items() if value is not None}


def _own(attributes: dict[str, Attribute], project: str) -> dict[str, Attribute]:
    """A receiver trusts what names the project: who sends may name itself there, and nobody else."""
    said = attributes.get(PROJECT)
    if said is not None and said != {"DataType": "String", "StringValue": project}:
        raise invalid(f"MessageAttributes.{PROJECT}", said, f"It names the sender's project: leave it out, or say {project}.")
    return attributes


def _content(asked: Document, project: str) -> Content:
    system = content.attributes(asked.mapping("MessageSystemAttributes"))
    if unknown := set(system) - {_TRACE}:
        raise invalid("MessageSystemAttributes", unknown.pop(), f"There is {_TRACE} and no other.")
    trace = system.get(_TRACE)
    if trace is not None and trace["DataType"] != "String":
        raise invalid("MessageSystemAttributes", _TRACE, "Must be of type String.")
    return Content(
        asked.optional_text("MessageBody"),
        _own(content.attributes(asked.mapping("MessageAttributes")), project),
        trace["StringValue"] if trace else None,
        asked.integer("DelaySeconds", 0, 900),
    )


async def receive_message(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    most = asked.integer("MaxNumberOfMessages", 1, 10) or 1
    hidden = asked.integer("VisibilityTimeout", 0, _LONGEST_HIDDEN)
    seconds = asked.integer("WaitTimeSeconds", 0, 20)
    system = asked.texts("AttributeNames") + asked.texts("MessageSystemAttributeNames")
    wanted = asked.texts("MessageAttributeNames")
    if unknown := [name for name in system if name not in _SYSTEM]:
        raise QueueError("InvalidAttributeName", f"Unknown Attribute {unknown[0][:100]!r}: there are {', '.join(_SYSTEM)}.")
    queue = await _open(parts, call, asked, RECEIVE_MESSAGE)
    found = await _received(parts, call, queue, most, hidden, queue.wait_seconds if seconds is None else seconds)
    shown = [_message(each, queue, system, wanted, parts.settings.api.region) for each in found]
    return {"Messages": shown} if shown else {}


async def _received(parts: Parts, call: Call, queue: Queue, most: int, hidden: int | None, wait: int) -> list[Received]:
    """Messages, or none when the time is over. Nothing is received for a caller who has gone meanwhile."""
    end = time.monotonic() + wait
    gone: asyncio.Future[None] | None = None
    try:
        while True:
            visibility = queue.visibility_seconds if hidden is None else hidden
            found = await messages.receive(parts.pool, queue, most, visibility)
            left = end - time.monotonic()
            if found or left <= 0:
                return found
            gone = gone or asyncio.ensure_future(call.closed())
            waiting = asyncio.ensure_future(parts.queues.waiting.wait(queue.id, left))
            first: list[asyncio.Future[Any]] = [gone, waiting]
            try:
                with limits.wait(call.scope):
                    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
            if gone.done():
                return []
            if await parts.keys.find(call.principal.access_key_id) is None:
                raise CallerError("InvalidAccessKeyId", "The key was revoked while the request waited.")
            # Purged, changed or deleted meanwhile: the queue is asked for again.
            queue = await parts.queues.open(call.principal, (queue.project, queue.name), RECEIVE_MESSAGE)
    finally:
        if gone is not None:
            gone.cancel()


_SYSTEM: dict[str, Callable[[Received, str], str | None]] = {
    "All": lambda *_: None,
    "SenderId": lambda each, _: each.sender,
    "SentTimestamp": lambda each, _: str(int(each.sent_at.timestamp() * 1000)),
    "ApproximateReceiveCount": lambda each, _: str(each.receives),
    "ApproximateFirstReceiveTimestamp": lambda each, _: str(int(each.first_received_at.timestamp() * 1000)),
    "AWSTraceHeader": lambda each, _: each.trace,
    "DeadLetterQueueSourceArn": lambda each, account: f"{account}:{each.source}" if each.source else None,
    "SequenceNumber": lambda *_: None,  # these three are of FIFO queues
    "MessageDeduplicationId": lambda *_: None,
    "MessageGroupId": lambda *_: None,
}


def _message(each: Received, queue: Queue, system: Sequence[str], wanted: Sequence[str], region: str) -> dict[str, Any]:
    account = queue.arn(region).rpartition(":")[0]
    names = _SYSTEM if "All" in system else system
    about = {name: value for name in names if (value := _SYSTEM[name](each, account)) is not None}
    chosen = content.chosen(each.attributes, wanted)
    shown = {
        "MessageId": str(each.id),
        "ReceiptHandle": str(Handle(queue.id, each.id, each.receipt)),
        "MD5OfBody": content.md5_of_body(each.body),
        "Body": each.body,
        "Attributes": about,
        "MessageAttributes": chosen,
        "MD5OfMessageAttributes": content.md5_of_attributes(chosen),
    }
    return {name: value for name, value in shown.items() if value}


async def delete_message(parts: Parts, call: Call, asked: Document) -> None:
    text = asked.text("ReceiptHandle")
    queue = await _open(parts, call, asked, RECEIVE_MESSAGE)
    await messages.delete(parts.pool, queue, [Handle.parse(text, queue)])


async def delete_message_batch(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    entries = _entries(asked, frozenset({"Id", "ReceiptHandle"}))
    queue = await _open(parts, call, asked, RECEIVE_MESSAGE)
    good, failed = _each(entries, lambda entry: Handle.parse(entry.text("ReceiptHandle"), queue))
    await messages.delete(parts.pool, queue, [handle for _, handle in good])
    return _batch([{"Id": entry} for entry, _ in good], failed)


async def change_message_visibility(parts: Parts, call: Call, asked: Document) -> None:
    text, seconds = asked.text("ReceiptHandle"), _seconds(asked)
    queue = await _open(parts, call, asked, RECEIVE_MESSAGE)
    if not await messages.change_visibility(parts.pool, queue, [(Handle.parse(text, queue), seconds)]):
        raise _not_in_flight()


async def change_message_visibility_batch(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    entries = _entries(asked, frozenset({"Id", "ReceiptHandle", "VisibilityTimeout"}))
    queue = await _open(parts, call, asked, RECEIVE_MESSAGE)
    good, failed = _each(entries, lambda entry: (Handle.parse(entry.text("ReceiptHandle"), queue), _seconds(entry)))
    changed = await messages.change_visibility(parts.pool, queue, [each for _, each in good])
    failed += [_failure(entry, _not_in_flight()) for entry, (handle, _) in good if handle.message not in changed]
    return _batch([{"Id": entry} for entry, (handle, _) in good if handle.message in changed], failed)


def _seconds(asked: Document) -> int:
    seconds = asked.integer("VisibilityTimeout", 0, _LONGEST_HIDDEN)
    if seconds is None:
        raise QueueError("MissingRequiredParameterException", "The request must contain the parameter VisibilityTimeout.")
    return seconds


def _not_in_flight() -> QueueError:
    message = "The message is not in flight: it was deleted, or its visibility timeout is over, or it was received again."
    return QueueError("MessageNotInflight", message)


def _entries(asked: Document, names: frozenset[str]) -> list[tuple[str, Document]]:
    """The entries of a batch by their ids."""
    entries = asked.objects("Entries")
    if not entries:
        raise QueueError("EmptyBatchRequest", "There should be at least one entry in the request: send 1 to 10 in Entries.")
    if len(entries) > MOST_ENTRIES:
        raise QueueError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {MOST_ENTRIES}. You have sent {len(entries)}.",
        )
    found: dict[str, Document] = {}
    for entry in entries:
        entry.only(names)
        name = entry.text("Id")
        if not _ENTRY_ID.fullmatch(name):
            sentence = f"The id {name[:100]!r} can only have letters, digits, hyphens and underscores, 80 at most."
            raise QueueError("InvalidBatchEntryId", sentence)
        if name in found:
            raise QueueError("BatchEntryIdsNotDistinct", f"Id {name} repeated: give each entry its own.")
        found[name] = entry
    return list(found.items())


def _each(
    entries: Sequence[tuple[str, Document]], read: Callable[[Document], T]
) -> tuple[list[tuple[str, T]], list[dict[str, Any]]]:
    """What could be read, and what could not: one bad entry does not spoil its batch."""
    good, failed = [], []
    for name, entry in entries:
        try:
            good.append((name, read(entry)))
        except QueueError as error:
            failed.append(_failure(name, error))
    return good, failed


def _failure(entry: str, error: QueueError) -> dict[str, Any]:
    return {"Id": entry, "SenderFault": True, "Code": error.old_code, "Message": error.message}


def _batch(successful: list[dict[str, Any]], failed: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Successful": successful, **({"Failed": failed} if failed else {})}


async def _open(parts: Parts, call: Call, asked: Document, action: str) -> Queue:
    return await parts.queues.open(call.principal, model.place_of(asked.text("QueueUrl")), action)
