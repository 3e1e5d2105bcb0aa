"""The gRPC front for notification configuration: the service Metainfo of `metainfo.proto`.

It reads requests and writes answers; what is done, and in which order, is `rules.notification`'s. Requests come as bytes
and are parsed here: gRPC itself would call one that cannot be parsed an internal error.
"""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import grpc
import psycopg
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from tidings.access.keys import Principal, find_by_api_key
from tidings.api import acts
from tidings.api import metainfo_pb2 as pb
from tidings.api.grpc_calls import Calls
from tidings.api.limits import OverLimit, Ticket
from tidings.api.parts import Parts
from tidings.errors import CallerError, Precondition
from tidings.events.arn import PubSubTopic
from tidings.events.profiles import Profile
from tidings.rules.model import KeyFilter, Rule, derived_id, event_problems, filter_problems, id_problems, invalid
from tidings.rules.problems import refuse
from tidings.store import names

SERVICE = "tidings.metainfo.Metainfo"

STATUS = {
    "AccessDenied": grpc.StatusCode.PERMISSION_DENIED,
    "InvalidAccessKeyId": grpc.StatusCode.UNAUTHENTICATED,
    "NoSuchBucket": grpc.StatusCode.NOT_FOUND,
    "NotImplemented": grpc.StatusCode.UNIMPLEMENTED,
    "PreconditionFailed": grpc.StatusCode.ABORTED,
    "RequestTimeout": grpc.StatusCode.DEADLINE_EXCEEDED,
    "SlowDown": grpc.StatusCode.UNAVAILABLE,
}
"""S3 error code to gRPC status. What is not here is something that the caller sent: INVALID_ARGUMENT."""

_MAX_DETAILS = 6000
"""Bytes. A message travels in a header, percent-encoded, and many clients take 8 KiB of headers in all."""

Serve = Callable[[bytes, Any, Ticket, str], Awaitable[Any]]

_log = logging.getLogger(__name__)


class Metainfo:
    """The two methods, over the parts that the process has opened."""

    def __init__(self, parts: Parts, calls: Calls) -> None:
        self._parts = parts
        self._calls = calls
        self._host_id = base64.b64encode(os.urandom(48)).decode()

    def handler(self) -> Any:
        methods: dict[str, Serve] = {
            "PutBucketNotificationConfiguration": self._put,
            "GetBucketNotificationConfiguration": self._get,
        }
        answering = {name: _answering(name, serve, self._calls) for name, serve in methods.items()}
        return grpc.method_handlers_generic_handler(SERVICE, answering)

    async def _put(self, data: bytes, context: Any, ticket: Ticket, request_id: str) -> Any:
        request = _parsed(pb.PutBucketNotificationConfigurationRequest, data)
        caller = await self._caller(request, context)
        self._calls.admit(ticket, caller.project)

        async def read() -> Sequence[Rule]:
            return rules(request.configuration, self._parts.settings.bucket_eventing.dialect)

        async def put(bucket: str) -> None:
            await self._parts.notifications.put(caller, bucket, read, request_id=request_id, host_id=self._host_id)

        name = "PutBucketNotificationConfiguration"
        place = (caller.project, context.peer(), request.name.decode("utf-8", "replace"), request_id)
        async with acts.act(self._parts.pool, "grpc", name, caller, *place):
            await _with_bucket(request.name, put)
        return pb.PutBucketNotificationConfigurationResponse()

    async def _get(self, data: bytes, context: Any, ticket: Ticket, _request_id: str) -> Any:
        request = _parsed(pb.GetBucketNotificationConfigurationRequest, data)
        caller = await self._caller(request, context)
        self._calls.admit(ticket, caller.project)
        found = await _with_bucket(request.name, lambda bucket: self._parts.notifications.get(caller, bucket))
        if len(found.rules) > 1:
            message = f"The bucket has {len(found.rules)} configurations, and this answer has room for one: use the S3 API."
            raise Precondition("InvalidRequest", message)
        return pb.GetBucketNotificationConfigurationResponse(configuration=message_of(found.rules[0]) if found.rules else None)

    async def _caller(self, request: Any, context: Any) -> Principal:
        """Who calls, by the API key in the request or, where there is none, in the call's metadata."""
        api_key = request.header.api_key or _bearer(context)
        async with self._parts.pool.connection() as connection:
            found = await find_by_api_key(connection, api_key.decode("ascii", "replace"), self._parts.keys.keyring)
        if found is None:
            message = "The API key is missing or not valid: send one in header.api_key, or as `authorization: Bearer API_KEY`."
            raise CallerError("InvalidAccessKeyId", message)
        return found


def rules(configuration: Any, profile: Profile) -> list[Rule]:
    """The rule that a configuration describes, none for an empty one, or one CallerError with all that is wrong."""
    problems = list(_unknown(configuration))
    key_filter = configuration.filter
    topic_name, events = configuration.topic_name, tuple(configuration.events)
    if not problems and not any([configuration.id, topic_name, events, key_filter.prefix, key_filter.suffix]):
        return []
    topic = _topic(topic_name, problems)
    problems += id_problems(configuration.id) if configuration.id else ()
    problems += event_problems(events, profile)
    problems += filter_problems(key_filter.prefix, key_filter.suffix)
    refuse(problems)
    assert topic is not None
    kept = KeyFilter(key_filter.prefix, key_filter.suffix)
    return [Rule(configuration.id or derived_id(topic, events, kept), topic, events, kept)]


def message_of(rule: Rule) -> Any:
    kept = rule.filter
    return pb.NotificationConfiguration(
        id=rule.config_id,
        topic_name=rule.destination.name,
        events=rule.events,
        filter=pb.FilterRule(prefix=kept.prefix, suffix=kept.suffix) if kept != KeyFilter() else None,
    )


def _unknown(configuration: Any) -> Iterator[CallerError]:
    """A field that is passed over could be a limit that is not kept, or turn a configuration into an empty one."""
    for name, message in (("configuration", configuration), ("configuration.filter", configuration.filter)):
        for number in sorted({field.field_number for field in UnknownFieldSet(message)}):
            yield invalid(name, str(number), f"Field {number} of {name} is not known here. Leave it out.")


def _topic(name: str, problems: list[CallerError]) -> PubSubTopic | None:
    try:
        return PubSubTopic.from_name(name)
    except CallerError:
        sentence = f"The topic_name {name[:200]!r} is not a topic's name. Write projects/PROJECT_ID/topics/TOPIC_ID."
        problems.append(invalid("topic_name", name, sentence))
        return None


def _parsed(message: Any, data: bytes) -> Any:
    try:
        return message.FromString(data)
    except DecodeError:
        sentence = f"The request is not a {message.DESCRIPTOR.name}, or has text in it that is not UTF-8."
        raise CallerError("InvalidRequest", sentence) from None


def _bearer(context: Any) -> bytes:
    scheme, _, api_key = str(dict(context.invocation_metadata() or ()).get("authorization", "")).partition(" ")
    return api_key.strip().encode() if scheme.lower() == "bearer" else b""


async def _with_bucket(name: bytes, work: Callable[[str], Awaitable[Any]]) -> Any:
    """Do what is to be done with the bucket of this name.

    Whether the project has eventing, and what the key allows, is said before anything about what was sent. So what is no
    name goes there as the empty one, which no bucket has, and is told in place of that.
    """
    try:
        bucket, problem = names.bucket_name(name.decode()), None
    except UnicodeDecodeError:
        bucket, problem = "", CallerError("InvalidBucketName", f"{name[:100]!r} is not a bucket's name: it is not UTF-8.")
    except CallerError as error:
        bucket, problem = "", error
    try:
        return await work(bucket)
    except CallerError as error:
        if problem is not None and error.code == "NoSuchBucket":
            raise problem from None
        raise


def _answering(method: str, serve: Serve, calls: Calls) -> Any:
    """A method as gRPC calls it when its headers have come. This is the only place where an error becomes a status."""

    async def answer(requests: AsyncIterator[bytes], context: Any) -> Any:
        request_id, peer = os.urandom(8).hex().upper(), context.peer()
        context.set_trailing_metadata((("x-request-id", request_id),))
        try:
            data = await calls.request(requests)
            with calls.place(peer) as ticket:
                return await serve(data, context, ticket, request_id)
        except Exception as error:
            code, message = status(error, method, request_id)
        finally:
            calls.answered(context, peer)
        await context.abort(code, short(message))

    # To whoever calls there is no difference to one request. Of such a method gRPC would wait for that without an end.
    return grpc.stream_unary_rpc_method_handler(answer, response_serializer=lambda message: message.SerializeToString())


def status(error: Exception, method: str, request_id: str) -> tuple[grpc.StatusCode, str]:
    """What is not the caller's fault is logged here, once, by the request's id."""
    if isinstance(error, Precondition):
        return grpc.StatusCode.FAILED_PRECONDITION, error.message
    if isinstance(error, OverLimit):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, error.message
    if isinstance(error, CallerError):
        return STATUS.get(error.code, grpc.StatusCode.INVALID_ARGUMENT), error.message
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        _log.warning("request %s, %s: the database did not answer: %s", request_id, method, error)
        return grpc.StatusCode.UNAVAILABLE, "The service is not ready to answer: please try again."
    _log.error("request %s, %s failed", request_id, method, exc_info=error)
    return grpc.StatusCode.INTERNAL, f"We encountered an internal error. Please try again. Request {request_id}."


def short(message: str) -> str:
    size = 0
    for place, character in enumerate(message):
        size += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode())
        if size > _MAX_DETAILS:
            return message[:place] + "…"
    return message
