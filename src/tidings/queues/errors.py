"""What SQS refuses with. Each has two names: the shape of the JSON protocol, and the older code that boto3 shows."""

from __future__ import annotations

from tidings.errors import CallerError

_OLD_PREFIX = "AWS.SimpleQueueService."
_PREFIXED = (
    *("BatchEntryIdsNotDistinct", "BatchRequestTooLong", "EmptyBatchRequest", "InvalidBatchEntryId", "MessageNotInflight"),
    *("PurgeQueueInProgress", "TooManyEntriesInBatchRequest", "UnsupportedOperation"),
)
_OLD = {
    "AccessDeniedException": "AccessDenied",
    "InvalidParameterValueException": "InvalidParameterValue",
    "MissingRequiredParameterException": "MissingParameter",
    "QueueDoesNotExist": f"{_OLD_PREFIX}NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    **{name: _OLD_PREFIX + name for name in _PREFIXED},
}
_STATUS = {"AccessDeniedException": 403, "OverLimit": 403, "ResourceNotFoundException": 404}


class QueueError(CallerError):
    """`code` is the shape's name."""

    @property
    def status(self) -> int:
        return _STATUS.get(self.code, 400)

    @property
    def old_code(self) -> str:
        return _OLD.get(self.code, self.code)


def invalid(name: str, value: object, reason: str) -> QueueError:
    """A parameter with a value that it cannot have."""
    shown = str(value)[:200]
    return QueueError("InvalidParameterValueException", f"Value {shown!r} for parameter {name} is invalid. Reason: {reason}")


def no_such_queue() -> QueueError:
    return QueueError("QueueDoesNotExist", "The specified queue does not exist: check its name, or create it.")


def denied(action: str) -> QueueError:
    """The same words for a queue that is another project's and for one that is not there: nobody learns which."""
    return QueueError("AccessDeniedException", f"Access to the resource is denied: {action} is not allowed on it.")
