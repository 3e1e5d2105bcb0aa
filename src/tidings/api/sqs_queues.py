"""The operations of SQS on queues."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from tidings.access.permissions import MANAGE_QUEUES, RECEIVE_MESSAGE, SEND_MESSAGE
from tidings.api.aws import Call
from tidings.api.json_document import Document
from tidings.api.parts import Parts
from tidings.queues import messages, model, moves, table
from tidings.queues.errors import QueueError, denied, invalid
from tidings.queues.model import Queue
from tidings.queues.service import ANY

_MOST_LISTED = 1000
_COVERED = {
    "SendMessage": [SEND_MESSAGE],
    "ReceiveMessage": [RECEIVE_MESSAGE],
    "*": [SEND_MESSAGE, RECEIVE_MESSAGE],
}


async def create_queue(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    name = model.queue_name(asked.text("QueueName"))
    region = parts.settings.api.region
    columns = model.columns(asked.text_by_name("Attributes"), call.project, name, region)
    tags = model.tags(asked.text_by_name("tags"))
    _check_key(call, MANAGE_QUEUES)
    made = await table.create(parts.pool, call.project, name, columns, tags, parts.settings.queues.max_per_project)
    return {"QueueUrl": made.url(call.url)}


async def get_queue_url(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    owner = asked.optional_text("QueueOwnerAWSAccountId") or call.project
    queue = await parts.queues.open(call.principal, (owner, model.queue_name(asked.text("QueueName"))), *ANY)
    return {"QueueUrl": queue.url(call.url)}


async def list_queues(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    _check_key(call, *ANY)
    prefix, after, most = asked.optional_text("QueueNamePrefix"), _after(asked), asked.integer("MaxResults", 1, _MOST_LISTED)
    names = await table.listed(parts.pool, call.project, prefix, after, (most or _MOST_LISTED) + 1)
    return _page("QueueUrls", call, names, most)


async def list_dead_letter_source_queues(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    queue = await _open(parts, call, asked, *ANY)
    after, most = _after(asked), asked.integer("MaxResults", 1, _MOST_LISTED)
    names = await table.sources(parts.pool, queue, after, (most or _MOST_LISTED) + 1)
    return _page("queueUrls", call, names, most)


def _page(member: str, call: Call, names: list[str], most: int | None) -> dict[str, Any]:
    """Who does not say how many they want gets the first thousand and no token, as SQS has it."""
    shown = names[: most or _MOST_LISTED]
    answer: dict[str, Any] = {member: [f"{call.url}/{call.project}/{name}" for name in shown]}
    if most is not None and len(names) > most:
        answer["NextToken"] = base64.urlsafe_b64encode(shown[-1].encode()).decode()
    return answer


def _after(asked: Document) -> str:
    token = asked.optional_text("NextToken")
    try:
        return model.queue_name(base64.b64decode(token, altchars=b"-_", validate=True).decode()) if token else ""
    except (ValueError, QueueError):
        raise invalid("NextToken", token, "Send one that an answer had in it.") from None


async def delete_queue(parts: Parts, call: Call, asked: Document) -> None:
    await table.delete(parts.pool, await _open(parts, call, asked, MANAGE_QUEUES))


async def purge_queue(parts: Parts, call: Call, asked: Document) -> None:
    await table.purge(parts.pool, await _open(parts, call, asked, MANAGE_QUEUES))


async def get_queue_attributes(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    names = asked.texts("AttributeNames")
    if unknown := [name for name in names if name not in (*model.READABLE, "All")]:
        raise QueueError(
            "InvalidAttributeName", f"Unknown Attribute {unknown[0][:100]!r}: there are {', '.join(model.READABLE)}."
        )
    queue = await _open(parts, call, asked, *ANY)
    wanted = set(model.READABLE if "All" in names else names)
    region = parts.settings.api.region
    found = {name: str(getattr(queue, column)) for name, (column, _, _) in model.NUMBERS.items()}
    found["QueueArn"] = queue.arn(region)
    found["CreatedTimestamp"] = str(int(queue.created_at.timestamp()))
    found["LastModifiedTimestamp"] = str(int(queue.modified_at.timestamp()))
    if queue.dead_letter is not None:
        target = f"{queue.arn(region).rpartition(':')[0]}:{queue.dead_letter}"
        found[model.REDRIVE] = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": queue.max_receives})
    if wanted.intersection(model.COUNTED):
        counts = await messages.counts(parts.pool, queue)
        found.update(zip(model.COUNTED, map(str, counts), strict=True))
    if model.POLICY in wanted and queue.project == call.project and (policy := await _policy(parts, queue, region)):
        found[model.POLICY] = policy
    shown = {name: value for name, value in found.items() if name in wanted}
    return {"Attributes": shown} if shown else {}


async def _policy(parts: Parts, queue: Queue, region: str) -> str | None:
    """What AddPermission has granted, in the form in which SQS shows it."""
    statements = [
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": projects},
            "Action": [f"SQS:{action}" for action in actions],
            "Resource": queue.arn(region),
        }
        for label, projects, actions in await table.grants(parts.pool, queue)
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements}) if statements else None


async def set_queue_attributes(parts: Parts, call: Call, asked: Document) -> None:
    place = model.place_of(asked.text("QueueUrl"))
    columns = model.columns(asked.text_by_name("Attributes"), *place, parts.settings.api.region)
    await table.change(parts.pool, await parts.queues.open(call.principal, place, MANAGE_QUEUES), columns)


async def tag_queue(parts: Parts, call: Call, asked: Document) -> None:
    given = asked.text_by_name("Tags")
    queue = await _open(parts, call, asked, MANAGE_QUEUES)
    model.tags(given, queue.tags)
    await table.set_tags(parts.pool, queue, given)


async def untag_queue(parts: Parts, call: Call, asked: Document) -> None:
    keys = asked.texts("TagKeys")
    await table.remove_tags(parts.pool, await _open(parts, call, asked, MANAGE_QUEUES), keys)


async def list_queue_tags(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    queue = await _open(parts, call, asked, *ANY)
    return {"Tags": dict(queue.tags)} if queue.tags else {}


async def add_permission(parts: Parts, call: Call, asked: Document) -> None:
    label = _label(asked)
    projects, named = asked.texts("AWSAccountIds"), asked.texts("Actions")
    if not projects or not named:
        raise QueueError("MissingRequiredParameterException", "The request must contain AWSAccountIds and Actions.")
    if unknown := [each for each in named if each not in _COVERED]:
        reason = "Only SendMessage, ReceiveMessage (with deleting and changing the visibility), and * for both can be granted."
        raise invalid("Actions", unknown[0], reason)
    queue = await _open(parts, call, asked, MANAGE_QUEUES)
    await table.grant(parts.pool, queue, label, projects, [action for each in named for action in _COVERED[each]])


async def remove_permission(parts: Parts, call: Call, asked: Document) -> None:
    label = _label(asked)
    await table.revoke(parts.pool, await _open(parts, call, asked, MANAGE_QUEUES), label)


def _label(asked: Document) -> str:
    label = asked.text("Label")
    if len(label) > 80:
        raise invalid("Label", label, "Must be 80 characters or less.")
    return label


async def start_message_move_task(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    region = parts.settings.api.region
    source_place = model.place_of_arn(asked.text("SourceArn"), "SourceArn", region)
    destination_arn = asked.optional_text("DestinationArn")
    target_place = model.place_of_arn(destination_arn, "DestinationArn", region) if destination_arn else None
    per_second = asked.integer("MaxNumberOfMessagesPerSecond", 1, moves.FASTEST)
    source = await _opened_by_arn(parts, call, source_place)
    if not await table.sources(parts.pool, source, "", 1):
        raise invalid("SourceArn", asked.text("SourceArn"), "Source queue must be configured as a Dead Letter Queue.")
    target = None if target_place is None else await _opened_by_arn(parts, call, target_place)
    if target is not None and target.id == source.id:
        raise invalid("DestinationArn", destination_arn, "It must not be the source.")
    handle = await moves.start(parts.pool, source, target, per_second)
    parts.queues.task_started.set()
    return {"TaskHandle": handle}


async def cancel_message_move_task(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    handle = asked.text("TaskHandle")
    _check_key(call, MANAGE_QUEUES)
    return {"ApproximateNumberOfMessagesMoved": await moves.cancel(parts.pool, call.project, handle)}


async def list_message_move_tasks(parts: Parts, call: Call, asked: Document) -> dict[str, Any]:
    region = parts.settings.api.region
    place = model.place_of_arn(asked.text("SourceArn"), "SourceArn", region)
    most = asked.integer("MaxResults", 1, 10) or 1
    queue = await _opened_by_arn(parts, call, place)
    account = queue.arn(region).rpartition(":")[0]
    return {"Results": [_task(task, account) for task in await moves.listed(parts.pool, queue, most)]}


def _task(task: moves.Task, account: str) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "TaskHandle": str(task.id) if task.status == "RUNNING" else None,
        "Status": task.status,
        "SourceArn": f"{account}:{task.source}",
        "DestinationArn": f"{account}:{task.destination}" if task.destination else None,
        "MaxNumberOfMessagesPerSecond": task.per_second,
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "FailureReason": task.failure,
        "StartedTimestamp": int(task.started_at.timestamp() * 1000),
    }
    return {name: value for name, value in shown.items() if value is not None}


async def _opened_by_arn(parts: Parts, call: Call, place: tuple[str, str]) -> Queue:
    try:
        return await parts.queues.open(call.principal, place, MANAGE_QUEUES)
    except QueueError as error:
        if error.code == "QueueDoesNotExist":  # these operations have a name of their own for it
            raise QueueError("ResourceNotFoundException", "The resource that you specified doesn't exist.") from None
        raise


async def _open(parts: Parts, call: Call, asked: Document, *actions: str) -> Queue:
    return await parts.queues.open(call.principal, model.place_of(asked.text("QueueUrl")), *actions)


def _check_key(call: Call, *actions: str) -> None:
    if not any(call.principal.grant.allows_beside_buckets(action, time.time()) for action in actions):
        raise denied(f"{' or '.join(actions)} (by this key)")
