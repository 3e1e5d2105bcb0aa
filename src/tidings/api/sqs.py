"""The SQS front: AWS's JSON 1.0 protocol, as boto3 and the AWS command line speak it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tidings.api import sqs_messages, sqs_queues
from tidings.api.aws import Call
from tidings.api.json_document import CHARACTERS, MISSHAPEN, MISSING, UNKNOWN, WRONG, Document
from tidings.api.parts import Parts
from tidings.api.response import Response
from tidings.errors import CallerError
from tidings.queues.errors import QueueError

TARGET = "AmazonSQS."
_TYPE = "application/x-amz-json-1.0"

Serve = Callable[[Parts, Call, Document], Awaitable[dict[str, Any] | None]]


@dataclass(frozen=True, slots=True)
class _Operation:
    serve: Serve
    parameters: frozenset[str]


def _operation(serve: Serve, *parameters: str) -> _Operation:
    return _Operation(serve, frozenset(parameters))


_SEND = ("MessageBody", "DelaySeconds", "MessageAttributes", "MessageSystemAttributes")
OPERATIONS = {
    "CreateQueue": _operation(sqs_queues.create_queue, "QueueName", "Attributes", "tags"),
    "GetQueueUrl": _operation(sqs_queues.get_queue_url, "QueueName", "QueueOwnerAWSAccountId"),
    "ListQueues": _operation(sqs_queues.list_queues, "QueueNamePrefix", "NextToken", "MaxResults"),
    "DeleteQueue": _operation(sqs_queues.delete_queue, "QueueUrl"),
    "GetQueueAttributes": _operation(sqs_queues.get_queue_attributes, "QueueUrl", "AttributeNames"),
    "SetQueueAttributes": _operation(sqs_queues.set_queue_attributes, "QueueUrl", "Attributes"),
    "PurgeQueue": _operation(sqs_queues.purge_queue, "QueueUrl"),
    "TagQueue": _operation(sqs_queues.tag_queue, "QueueUrl", "Tags"),
    "UntagQueue": _operation(sqs_queues.untag_queue, "QueueUrl", "TagKeys"),
    "ListQueueTags": _operation(sqs_queues.list_queue_tags, "QueueUrl"),
    "ListDeadLetterSourceQueues": _operation(sqs_queues.list_dead_letter_source_queues, "QueueUrl", "NextToken", "MaxResults"),
    "AddPermission": _operation(sqs_queues.add_permission, "QueueUrl", "Label", "AWSAccountIds", "Actions"),
    "RemovePermission": _operation(sqs_queues.remove_permission, "QueueUrl", "Label"),
    "StartMessageMoveTask": _operation(
        sqs_queues.start_message_move_task, "SourceArn", "DestinationArn", "MaxNumberOfMessagesPerSecond"
    ),
    "CancelMessageMoveTask": _operation(sqs_queues.cancel_message_move_task, "TaskHandle"),
    "ListMessageMoveTasks": _operation(sqs_queues.list_message_move_tasks, "SourceArn", "MaxResults"),
    "SendMessage": _operation(sqs_messages.send_message, "QueueUrl", *_SEND),
    "SendMessageBatch": _operation(sqs_messages.send_message_batch, "QueueUrl", "Entries"),
    "ReceiveMessage": _operation(
        sqs_messages.receive_message,
        *("QueueUrl", "AttributeNames", "MessageSystemAttributeNames", "MessageAttributeNames"),
        *("MaxNumberOfMessages", "VisibilityTimeout", "WaitTimeSeconds"),
    ),
    "DeleteMessage": _operation(sqs_messages.delete_message, "QueueUrl", "ReceiptHandle"),
    "DeleteMessageBatch": _operation(sqs_messages.delete_message_batch, "QueueUrl", "Entries"),
    "ChangeMessageVisibility": _operation(
        sqs_messages.change_message_visibility, "QueueUrl", "ReceiptHandle", "VisibilityTimeout"
    ),
    "ChangeMessageVisibilityBatch": _operation(sqs_messages.change_message_visibility_batch, "QueueUrl", "Entries"),
}


class Sqs:
    async def serve(self, parts: Parts, call: Call) -> Response:
        target = call.headers.get("x-amz-target", "")
        name = target.removeprefix(TARGET)
        operation = OPERATIONS.get(name) if target.startswith(TARGET) else None
        if operation is None:
            raise QueueError("UnknownOperationException", _unknown(target))
        call.operation = name
        asked = Document.parse(call.body, _refuse)
        asked.only(operation.parameters)
        async with call.act(parts, "sqs", asked.named()):
            answer = await operation.serve(parts, call, asked)
        return Response(200, {"content-type": _TYPE}, b"{}" if answer is None else json.dumps(answer).encode())

    def refused(self, problem: CallerError, request_id: str) -> Response:  # noqa: ARG002
        shape, old, status = _names(problem)
        fault = "Sender" if status < 500 else "Receiver"
        headers = {**problem.headers, "content-type": _TYPE, "x-amzn-query-error": f"{old};{fault}"}
        return Response(
            status, headers, json.dumps({"__type": f"com.amazonaws.sqs#{shape}", "message": problem.message}).encode()
        )


def _unknown(target: str) -> str:
    if target:
        return f"{target[:100]!r} is not served: there are {', '.join(sorted(OPERATIONS))}."
    return "There is no X-Amz-Target. The older query protocol is not served: use an SDK that speaks JSON (boto3 from 1.28.82)."


# What is found out before SQS is asked has the names that all of AWS has for it.
_COMMON = {
    "AccessDenied": ("AccessDeniedException", "AccessDenied", 403),
    "AuthorizationHeaderMalformed": ("IncompleteSignature", "IncompleteSignature", 400),
    "EntityTooLarge": ("RequestEntityTooLarge", "RequestEntityTooLarge", 413),
    "InternalError": ("InternalFailure", "InternalFailure", 500),
    "InvalidAccessKeyId": ("UnrecognizedClientException", "InvalidClientTokenId", 403),
    "RequestTimeTooSkewed": ("SignatureDoesNotMatch", "SignatureDoesNotMatch", 403),
    "SlowDown": ("ServiceUnavailable", "ServiceUnavailable", 503),
}


def _names(problem: CallerError) -> tuple[str, str, int]:
    if isinstance(problem, QueueError):
        return problem.code, problem.old_code, problem.status
    return _COMMON.get(problem.code, (problem.code, problem.code, problem.status))


def _refuse(kind: str, sentence: str) -> CallerError:
    return QueueError(_KINDS[kind], sentence)


_KINDS = {
    MISSHAPEN: "SerializationException",
    MISSING: "MissingRequiredParameterException",
    WRONG: "InvalidParameterValueException",
    UNKNOWN: "UnsupportedOperation",
    CHARACTERS: "InvalidMessageContents",
}
