"""Notification configuration over gRPC, for programs: see docs/grpc.md.

MetainfoError              whatever did not go well; has the gRPC status and the service's message
├── Unauthenticated        the API key is missing, unknown, altered or revoked
├── PermissionDenied       the API key does not allow this
├── NotEnabled             the project has no eventing
├── NoSuchBucket
├── InvalidConfiguration   the message names everything that is wrong
├── NotAccepted            what the request stands on is not so: a topic that refused the test event, encrypted paths
└── Unavailable            no answer in time, or not now: try again
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from tidings.api import metainfo_pb2 as pb
from tidings.errors import TidingsError

TIMEOUT = 15.0
"""Seconds. A topic has ten to take the test event."""

_SERVICE = pb.DESCRIPTOR.services_by_name["Metainfo"].full_name


class MetainfoError(TidingsError):
    """A call that did not go well. `status` is a `grpc.StatusCode`."""

    def __init__(self, status: Any, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.status.name}: {self.message}"


class Unauthenticated(MetainfoError):
    pass


class PermissionDenied(MetainfoError):
    pass


class NotEnabled(MetainfoError):
    pass


class NoSuchBucket(MetainfoError):
    pass


class InvalidConfiguration(MetainfoError):
    pass


class NotAccepted(MetainfoError):
    pass


class Unavailable(MetainfoError):
    pass


_ERRORS: dict[Any, type[MetainfoError]] = {
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNIMPLEMENTED: NotEnabled,
    grpc.StatusCode.NOT_FOUND: NoSuchBucket,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidConfiguration,
    grpc.StatusCode.FAILED_PRECONDITION: NotAccepted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Unavailable,
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """Which events of a bucket go to which topic. Without an id the service makes one; an empty filter is none."""

    topic_name: str
    events: tuple[str, ...]
    prefix: str = ""
    suffix: str = ""
    id: str = ""


class Metainfo:
    """A connection to the service at `target`, HOST:PORT. Close it, or use it in a `with` statement.

    `tls` is True for a certificate that this machine trusts, a PEM file with the authorities to trust, or False for a
    connection in the clear, which shows the API key to everybody on the way.
    """

    def __init__(self, target: str, api_key: str, *, tls: bool | Path = True, timeout: float = TIMEOUT) -> None:
        self._header = pb.RequestHeader(api_key=api_key.encode())
        self._timeout = timeout
        if tls is False:
            self._channel = grpc.insecure_channel(target)
        else:
            authorities = tls.read_bytes() if isinstance(tls, Path) else None
            self._channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(authorities))

    def put_bucket_notification_configuration(self, bucket: str, configuration: Configuration | None) -> None:
        """Make this the bucket's configuration, in place of whatever there was; None deletes it."""
        request = pb.PutBucketNotificationConfigurationRequest(
            header=self._header, name=bucket.encode(), configuration=None if configuration is None else _message(configuration)
        )
        self._call("PutBucketNotificationConfiguration", request, pb.PutBucketNotificationConfigurationResponse)

    def get_bucket_notification_configuration(self, bucket: str) -> Configuration | None:
        """The bucket's configuration; None if it has none."""
        request = pb.GetBucketNotificationConfigurationRequest(header=self._header, name=bucket.encode())
        answer = self._call("GetBucketNotificationConfiguration", request, pb.GetBucketNotificationConfigurationResponse)
        found = answer.configuration
        if not found.topic_name:
            return None
        return Configuration(found.topic_name, tuple(found.events), found.filter.prefix, found.filter.suffix, found.id)

    def _call(self, method: str, request: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(
            f"/{_SERVICE}/{method}", request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        try:
            return call(request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise _ERRORS.get(error.code(), MetainfoError)(error.code(), error.details() or "") from None

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _message(configuration: Configuration) -> Any:
    return pb.NotificationConfiguration(
        id=configuration.id,
        topic_name=configuration.topic_name,
        events=configuration.events,
        filter=pb.FilterRule(prefix=configuration.prefix, suffix=configuration.suffix),
    )
