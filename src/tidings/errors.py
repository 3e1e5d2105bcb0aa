"""What can go wrong, sorted by who must act.

    TidingsError
    ├── OperatorError        the operator: a setting, a missing program, a database that is not ours
    │   ├── ForeignPosition  the position belongs to another timeline: `tidings stream --rebase` is the way on
    │   └── Superseded       another stream has taken over; this one must stop
    ├── CallerError          the caller of the S3 API: carries the S3 code and the HTTP status
    │   └── Precondition     the caller, but not by sending something else: what the request stands on is not so
    └── ExpressionMistake    whoever wrote the filter: says where in the text it is wrong

What a destination answers is not an error here: it is an outcome (`tidings.events.messages`) and is returned, not raised.
"""

from __future__ import annotations

from typing import Any


class TidingsError(Exception):
    """The root of everything that Tidings raises on purpose."""


class OperatorError(TidingsError):
    """Something only the operator can mend. The message says what to do next."""


class ForeignPosition(OperatorError):
    """A stored position was made on another database or timeline."""


class Superseded(OperatorError):
    """The stream's epoch has moved on: this process no longer owns it."""


class CallerError(TidingsError):
    """A request that cannot be served as it is: an S3 error with its code, status and further elements."""

    def __init__(self, code: str, message: str, **elements: str) -> None:
        super().__init__(code, message, elements)
        self.code = code
        self.message = message
        self.elements = elements
        self.headers: dict[str, str] = {}

    def with_headers(self, **headers: str) -> CallerError:
        """The same, with headers for its answer; `_` stands for `-` in their names."""
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return self

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _caller_error, (self.code, self.message, self.elements)

    @property
    def status(self) -> int:
        return STATUS[self.code]


def no_such_bucket(bucket: str) -> CallerError:
    return CallerError("NoSuchBucket", "The specified bucket does not exist.", BucketName=bucket)


class Precondition(CallerError):
    """A good request that cannot be granted as things are: a destination that refuses, a project with encrypted paths."""


class ExpressionMistake(TidingsError):
    """A filter's expression that cannot be used, and the place of the mistake: line and column count from 1."""

    def __init__(self, text: str, line: int, column: int, words: str) -> None:
        super().__init__(text, line, column, words)
        self.text = text
        self.line = line
        self.column = column
        self.words = words

    def __str__(self) -> str:
        shown = [*self.text.split("\n"), ""][self.line - 1]
        before = "".join(each if each == "\t" else " " for each in shown[: self.column - 1])
        return f"{self.summary}\n  {shown}\n  {before}^"

    @property
    def summary(self) -> str:
        """Without the text itself."""
        return f"line {self.line}, column {self.column}: {self.words}"


def _caller_error(code: str, message: str, elements: dict[str, str]) -> CallerError:
    """Makes the error again on the other side of a process boundary."""
    return CallerError(code, message, **elements)


STATUS = {
    "AccessDenied": 403,
    "AccessForbidden": 403,
    "AuthorizationError": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "BadRequest": 400,
    "BucketAlreadyOwnedByYou": 409,
    "BucketNotEmpty": 409,
    "EntityTooLarge": 400,
    "EntityTooSmall": 400,
    "IllegalLocationConstraintException": 400,
    "IllegalVersioningConfigurationException": 400,
    "IncompleteBody": 400,
    "IncorrectNumberOfFilesInPostRequest": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidAction": 400,
    "InvalidArgument": 400,
    "InvalidBucketName": 400,
    "InvalidDigest": 400,
    "InvalidParameter": 400,
    "InvalidPart": 400,
    "InvalidPartNumber": 416,
    "InvalidPartOrder": 400,
    "InvalidPolicyDocument": 400,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidTag": 400,
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedPOSTRequest": 400,
    "MalformedXML": 400,
    "MaxPostPreDataLengthExceededError": 400,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "MissingSecurityHeader": 400,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NoSuchVersion": 404,
    "NotFound": 404,
    "NotImplemented": 501,
    "PreconditionFailed": 412,
    "RequestTimeTooSkewed": 403,
    "RequestTimeout": 400,
    "ResourceNotFound": 404,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "SubscriptionLimitExceeded": 403,
    "TagLimitExceeded": 400,
    "TopicLimitExceeded": 403,
    "UserKeyMustBeSpecified": 400,
    "XAmzContentChecksumMismatch": 400,
    "XAmzContentSHA256Mismatch": 400,
}
"""S3 error code to HTTP status, one row for each code that Tidings answers with."""
