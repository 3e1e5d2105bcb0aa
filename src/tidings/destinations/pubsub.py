"""Google Pub/Sub.

ARN        arn:gcp:pubsub::PROJECT_ID:TOPIC_ID
Guarantee  a message is sent when Pub/Sub has answered with its id
Order      the attribute `sequencer` orders the messages of an object; with `pubsub.ordering`, an ordering key for each object
Batch      one Publish call, all or nothing; one that is refused for what it says is sent again in halves, to find the culprit
Limits     1,000 messages or 10 MB for a call, a message included; 100 attributes, names of 256 bytes, values of 1,024: others
           are left out (cloud.google.com/pubsub/quotas)
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

import google.auth
import google.auth.transport.requests
import grpc.aio
from google.api_core.exceptions import Forbidden, GoogleAPICallError, InvalidArgument, NotFound, Unauthenticated
from google.auth import impersonated_credentials
from google.auth.credentials import TokenState
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.auth.transport import DEFAULT_RETRYABLE_STATUS_CODES
from google.pubsub_v1 import PublisherAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
from google.pubsub_v1.types import PublishRequest
from google.rpc.error_details_pb2 import RetryInfo

from tidings.delivery.settings import PubSubSettings
from tidings.events.arn import PubSubTopic
from tidings.events.messages import PROJECT, SENT, Message, Outcome, Verdict
from tidings.settings import Settings

log = logging.getLogger(__name__)

# A peer that comes back should be noticed soon: gRPC's own back-off grows to two minutes.
_CHANNEL = [("grpc.max_reconnect_backoff_ms", 1000), ("grpc.min_reconnect_backoff_ms", 200)]
_KEEPALIVE = [("grpc.keepalive_time_ms", 30_000)]  # as Google's own client: a peer that is gone without a word is noticed

_SCOPES = PublisherGrpcAsyncIOTransport.AUTH_SCOPES
_TOKEN_SECONDS = 10.0
"""The longest wait for one answer of a token endpoint."""
_PAUSE_SECONDS = 1.0
"""Between two tries to get a token: a thousand lanes have one token endpoint."""
_MAX_WORDS = 500

_REQUEST_BYTES = 10_000_000
_ATTRIBUTES = 100
_NAME_BYTES = 256
_VALUE_BYTES = 1024
_SHORT = 64
"""Characters, of four bytes at most: fits as a name and as a value without a closer look."""
_ALWAYS = ("id", "sequencer", PROJECT)
"""Never left out for want of room."""

_publish_request = PublishRequest.pb()


def connect(arn: str, settings: Settings) -> PubSub:
    return PubSub(PubSubTopic.from_arn(arn), settings.pubsub, settings.bucket_eventing.service_account)


async def refusal(_connection: object, project: str, arn: str, settings: Settings) -> str | None:
    return unbound(project, arn, settings)


def unbound(project: str, arn: str, settings: Settings) -> str | None:
    """Why a project, named by its public id, may not send there."""
    topic = PubSubTopic.from_arn(arn)
    if settings.pubsub.admits(project, topic.project, topic.topic):
        return None
    return (
        f"The topic {topic.topic!r} of the Google project {topic.project!r} is not bound to this project: ask the operator to"
        f" add {project} to pubsub.projects, under {topic.project} or {topic.project}/{topic.topic}"
    )


def shared(_project: str, arn: str, settings: Settings) -> list[str]:
    """The ARN, where no setting says whose topic it is: the first project that has a rule for it has it."""
    return [arn] if settings.pubsub.first_come else []


class PubSub:
    max_batch = 1000
    ahead = 4 * max_batch
    max_bytes = 9_000_000  # of 10 MB: the rest is for ids, attributes and framing

    def __init__(self, topic: PubSubTopic, settings: PubSubSettings, account: str | None) -> None:
        self._topic = topic.name
        self._settings = settings
        self._account = account
        self._tokens = None if settings.emulator_host else _tokens(settings, account)
        self._client: Any = None

    def _connected(self) -> Any:
        if self._client is None:
            if self._settings.emulator_host:
                channel = grpc.aio.insecure_channel(self._settings.emulator_host, options=_CHANNEL)
            else:
                secure = grpc.ssl_channel_credentials()
                channel = grpc.aio.secure_channel(self._settings.endpoint, secure, options=_CHANNEL + _KEEPALIVE)
            self._client = PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=channel))
        return self._client

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        outcomes: list[Outcome | None] = [None] * len(messages)
        for i, message in enumerate(messages):
            if len(message.body) > self.max_bytes and (size := self._request([message]).ByteSize()) > _REQUEST_BYTES:
                reason = f"the message has {size} bytes with its attributes; Pub/Sub takes {_REQUEST_BYTES}"
                outcomes[i] = Outcome(Verdict.REJECTED, reason)
        left = [i for i, outcome in enumerate(outcomes) if outcome is None]
        awaited = ["access token from Google"]
        failed = Outcome(Verdict.RETRY, "no answer from Pub/Sub")
        try:
            # no retries of the client's own: retrying is the lane's business, and it keeps the order
            async with asyncio.timeout(timeout):
                await self._publish(messages, left, outcomes, timeout, awaited)
        except GoogleAPICallError as error:
            failed = Outcome(_verdict(error), _words(error), _after(error))
        except (
            DefaultCredentialsError,
            FileNotFoundError,
            PermissionError,
        ) as error:  # our own: no tenant's business, nor in their power
            log.error("Google's credentials cannot be used: %s", error)
            reason = "no access token: the credentials of this service cannot be used, which its operator finds in the log"
            failed = Outcome(Verdict.RETRY, reason)
        except GoogleAuthError as error:
            reason = f"no access token{f' for {self._account}' if self._account else ''}: {_said(error)}"
            failed = Outcome(Verdict.RETRY, reason)
        except TimeoutError:
            failed = Outcome(Verdict.RETRY, f"no {awaited[0]} within {timeout:g} s")
        except Exception as error:  # name resolution and the like: the client raises what its libraries raise
            failed = Outcome(Verdict.RETRY, f"{type(error).__name__}: {error}")
        return [outcome or failed for outcome in outcomes]

    async def _publish(
        self,
        messages: Sequence[Message],
        chosen: list[int],
        outcomes: list[Outcome | None],
        timeout: float,
        awaited: list[str],
    ) -> None:
        """One call. Where Pub/Sub refuses what it says: one half after the other, until the messages to blame are found."""
        if not chosen:
            return
        headers: list[tuple[str, str]] = []
        if self._tokens is not None:
            headers = await self._tokens.headers()
        awaited[0] = "answer from Pub/Sub"
        wrapped = PublishRequest.wrap(self._request([messages[i] for i in chosen]))
        try:
            await self._connected().publish(request=wrapped, retry=None, timeout=timeout, metadata=headers)
        except InvalidArgument as error:
            if len(chosen) == 1:
                outcomes[chosen[0]] = Outcome(Verdict.REJECTED, _words(error))
                return
            middle = len(chosen) // 2
            await self._publish(messages, chosen[:middle], outcomes, timeout, awaited)
            await self._publish(messages, chosen[middle:], outcomes, timeout, awaited)
        except Unauthenticated:
            if self._tokens is not None:
                self._tokens.drop(headers)
            raise
        else:
            for i in chosen:
                outcomes[i] = SENT

    def _request(self, messages: Sequence[Message]) -> Any:
        """Written in place: messages that are made one by one and then put in are made twice, and dicts are read slowly."""
        request = _publish_request(topic=self._topic)
        add, ordering = request.messages.add, self._settings.ordering
        for message in messages:
            made = add()
            made.data = message.body
            attributes = made.attributes
            for name, value in _fitting(message.attributes).items():
                attributes[name] = value
            if ordering:
                made.ordering_key = _ordering_key(message.group)
        return request

    async def close(self) -> None:
        if self._client is not None:
            await self._client.transport.close()
            self._client = None


def _verdict(error: GoogleAPICallError) -> Verdict:
    """A topic that is not there and a permission that is missing wait for somebody to act; the rest may pass."""
    return Verdict.WAIT if isinstance(error, NotFound | Forbidden) else Verdict.RETRY


def _after(error: GoogleAPICallError) -> float | None:
    """How long Pub/Sub asks us to wait (google.rpc.RetryInfo)."""
    for detail in error.details or ():
        if isinstance(detail, RetryInfo):
            return float(detail.retry_delay.seconds + detail.retry_delay.nanos / 1e9)
    return None


def _fitting(attributes: dict[str, str]) -> dict[str, str]:
    """Without what Pub/Sub would refuse the whole message for. A value cut short would say something else: better none."""
    for name, value in attributes.items():
        if len(name) > _SHORT or len(value) > _SHORT:
            break
    else:
        if len(attributes) <= _ATTRIBUTES:
            return attributes
    fitting = {name: value for name, value in attributes.items() if _fits(name, _NAME_BYTES) and _fits(value, _VALUE_BYTES)}
    if len(fitting) > _ATTRIBUTES:
        first = [name for name in _ALWAYS if name in fitting]
        kept = [*first, *(name for name in fitting if name not in first)][:_ATTRIBUTES]
        fitting = {name: fitting[name] for name in kept}
    return fitting


def _fits(text: str, most: int) -> bool:
    return len(text) * 4 <= most or len(text.encode()) <= most


def _ordering_key(group: str) -> str:
    """Pub/Sub takes 1,024 bytes; the name of an object may be longer."""
    return group if _fits(group, _VALUE_BYTES) else hashlib.sha256(group.encode()).hexdigest()


def _words(error: GoogleAPICallError) -> str:
    code = error.grpc_status_code.name if error.grpc_status_code else str(error.code)
    return f"{code}: {error.message}"


@lru_cache(maxsize=8)
def _tokens(settings: PubSubSettings, account: str | None) -> _Tokens:
    """One for all topics of this process: a token says who we are, not where we publish."""
    return _Tokens(settings, account)


class _Tokens:
    """Access tokens, renewed before they expire. Google's library blocks while it asks, so it asks in a thread.

    Not gRPC's call credentials: they would make a thread for every call, and turn whatever goes wrong into UNAVAILABLE.
    """

    def __init__(self, settings: PubSubSettings, account: str | None) -> None:
        self._settings = settings
        self._account = account
        self._credentials: Any = None
        self._lock = threading.Lock()
        self._renewal: Future[None] | None = None
        self._ended = 0.0

    async def headers(self) -> list[tuple[str, str]]:
        """The headers of an authorised call. Waits only where there is no token that is still valid."""
        state = self._credentials.token_state if self._credentials else TokenState.INVALID
        if state is not TokenState.FRESH:
            renewal = self._renew()
            if state is TokenState.INVALID:
                await asyncio.wrap_future(renewal)
        made: dict[str, str] = {}
        self._credentials.apply(made)
        return list(made.items())

    def drop(self, headers: list[tuple[str, str]]) -> None:
        """Pub/Sub did not know the token that was in these headers: ask for another, unless that has happened."""
        if ("authorization", f"Bearer {self._credentials.token}") in headers:
            self._credentials.token = None

    def _renew(self) -> Future[None]:
        """The renewal that is under way, or has just ended, or begins now. One who stops waiting does not end it."""
        with self._lock:
            last = self._renewal
            if last is None or (last.done() and time.monotonic() - self._ended > _PAUSE_SECONDS):
                last = self._renewal = Future()
                last.set_running_or_notify_cancel()
                threading.Thread(target=self._ask, args=(last,), name="google-token", daemon=True).start()
            return last

    def _ask(self, renewal: Future[None]) -> None:
        problem: Exception | None = None
        try:
            if self._credentials is None:
                self._credentials = self._load()
            self._credentials.refresh(_Request())
        except Exception as error:
            problem = error
        self._ended = time.monotonic()
        if problem is None:
            renewal.set_result(None)
        else:
            renewal.set_exception(problem)

    def _load(self) -> Any:
        """The credentials that we were given, or those of the account that they may impersonate."""
        settings = self._settings
        if settings.credentials_file is not None:
            given, _ = google.auth.load_credentials_from_file(str(settings.credentials_file), scopes=_SCOPES)
        else:
            given, _ = google.auth.default(scopes=_SCOPES)
        account = self._account
        if account is None:
            return given
        place = settings.iam_endpoint and f"{settings.iam_endpoint}/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
        return impersonated_credentials.Credentials(given, account, list(_SCOPES), iam_endpoint_override=place)


class _Request(google.auth.transport.requests.Request):
    """How Google's library speaks to token endpoints, but for two things: it waits two minutes, and tries again by itself."""

    def __call__(
        self, url: str, method: str = "GET", body: Any = None, headers: Any = None, timeout: Any = None, **more: Any
    ) -> Any:
        seconds = min(timeout or _TOKEN_SECONDS, _TOKEN_SECONDS)
        response = super().__call__(url, method, body, headers, seconds, **more)  # type: ignore[no-untyped-call]
        if method == "POST" and response.status in DEFAULT_RETRYABLE_STATUS_CODES:
            raise TransportError(f"{url} answered {response.status}", response.data.decode(errors="replace"))
        return response


def _said(error: GoogleAuthError) -> str:
    """What a token endpoint said; Google's library keeps the body of an answer beside its own words."""
    words, *rest = error.args or (type(error).__name__,)
    body = rest[0] if rest and isinstance(rest[0], str) else ""
    try:
        problem = json.loads(body)["error"]
        body = f"{problem['status']}: {problem['message']}"
    except (ValueError, KeyError, TypeError):
        body = " ".join(body.split())
    return f"{words}: {body}"[:_MAX_WORDS] if body else str(words)[:_MAX_WORDS]
