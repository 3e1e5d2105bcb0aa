"""Faults on request: what the local Pub/Sub server does to a topic so that a test can watch what follows.

A fault stands in the way of `Publish` and `GetTopic`. It belongs to one topic or, under the name `*`, to every topic
that has none of its own:

    not_found, permission_denied, unavailable, invalid_argument, unauthenticated, internal    refused with that status
    resource_exhausted    refused, and asked to wait for `seconds` where they are given (google.rpc.RetryInfo)
    delay                 answered `seconds` later
    hang                  never answered, until the fault is lifted or the caller gives up

`after` lets that many publish requests pass first. In the server's process, `PubSubServer.set_fault` sets a fault; from
elsewhere it goes over the server's own port, as JSON to the service `tidings.local.Faults`. No topic has to exist.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import RetryInfo

from tidings.errors import OperatorError, TidingsError

SERVICE = "tidings.local.Faults"
EVERY_TOPIC = "*"

STATUS = {
    "not_found": grpc.StatusCode.NOT_FOUND,
    "permission_denied": grpc.StatusCode.PERMISSION_DENIED,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "invalid_argument": grpc.StatusCode.INVALID_ARGUMENT,
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "internal": grpc.StatusCode.INTERNAL,
    "resource_exhausted": grpc.StatusCode.RESOURCE_EXHAUSTED,
}
KINDS = (*STATUS, "delay", "hang")

# Looser than the server's own rule: this is here to catch a bare topic id, which would match nothing and say nothing.
_TOPIC = re.compile(r"projects/[^/]+/topics/[^/]+")


class Refused(TidingsError):
    """A request that gets a gRPC status instead of an answer."""

    def __init__(self, code: grpc.StatusCode, message: str, after: float = 0.0) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.after = after

    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        """Where Google says how long to wait: in a status that travels beside the one of gRPC."""
        if not self.after:
            return ()
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        delay = Duration(seconds=int(self.after), nanos=round(self.after % 1 * 1e9))
        status.details.add().Pack(RetryInfo(retry_delay=delay))
        return (("grpc-status-details-bin", status.SerializeToString()),)

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one topic."""

    topic: str
    kind: str
    seconds: float = 0.0
    after: int = 0

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if self.kind not in KINDS:
            raise OperatorError(f"There is no fault {self.kind!r}. Choose one of {', '.join(KINDS)}, or None for none.")
        if self.seconds < 0 or self.after < 0:
            raise OperatorError(f"seconds={self.seconds} and after={self.after} must not be negative.")
        if (self.kind == "delay") != (self.seconds > 0) and self.kind != "resource_exhausted":
            raise OperatorError(f"seconds={self.seconds} does not fit {self.kind!r}: a delay needs it, the rest refuse it.")


def check_topic(topic: str) -> None:
    if topic != EVERY_TOPIC and not _TOPIC.fullmatch(topic):
        raise OperatorError(f"{topic!r} is not a topic's name. Write projects/PROJECT/topics/TOPIC, or * for every topic.")


@dataclass(slots=True)
class _Active:
    fault: Fault
    passes: int
    lifted: asyncio.Event = field(default_factory=asyncio.Event)


class Faults:
    """The faults in force, and what became of the publish requests. Lives on the server's event loop."""

    def __init__(self) -> None:
        self._active: dict[str, _Active] = {}
        self.published: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def put(self, fault: Fault) -> None:
        self.lift(fault.topic)
        self._active[fault.topic] = _Active(fault, passes=fault.after)

    def lift(self, topic: str) -> None:
        """Lifts the fault of one topic; `*` lifts them all. Whoever hangs looks again at what is in force."""
        for name in list(self._active) if topic == EVERY_TOPIC else [topic]:
            if (active := self._active.pop(name, None)) is not None:
                active.lifted.set()

    async def meet(self, topic: str, *, publishing: bool) -> None:
        """Returns when nothing stands in the way, raises `Refused` when the fault says so."""
        while (active := self._active.get(topic) or self._active.get(EVERY_TOPIC)) is not None:
            if active.passes > 0:
                active.passes -= publishing
                return
            kind = active.fault.kind
            if kind == "delay":
                await asyncio.sleep(active.fault.seconds)
                return
            if kind != "hang":
                set_on = active.fault.topic
                words = f"{topic} answers {kind}: that fault is set on {set_on}. Lift it to go on."
                raise Refused(STATUS[kind], words, active.fault.seconds)
            await active.lifted.wait()

    def stats(self) -> dict[str, dict[str, int]]:
        """For each topic that saw a `Publish`: messages taken, and requests refused for whatever reason."""
        topics = sorted({*self.published, *self.refused})
        return {topic: {"published": self.published[topic], "refused": self.refused[topic]} for topic in topics}

    def handler(self) -> grpc.GenericRpcHandler:
        """The admin service. Without serializers gRPC hands over plain bytes: ours are JSON."""
        methods = {"Set": self._answer_set, "Stats": self._answer_stats}
        handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _answer_set(self, request: bytes, context: Any) -> bytes:
        try:
            asked = json.loads(request)
            topic, kind = asked.pop("topic", EVERY_TOPIC), asked.pop("fault")
            if kind is None:
                check_topic(topic)
                self.lift(topic)
            else:
                self.put(Fault(topic, kind, **asked))
        except (OperatorError, ValueError, TypeError, AttributeError, KeyError) as error:
            example = '{"topic": "projects/PROJECT/topics/TOPIC", "fault": "unavailable", "after": 3}'
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{error} A request looks like {example}.")
        return b"{}"

    async def _answer_stats(self, _request: bytes, _context: Any) -> bytes:
        return json.dumps(self.stats()).encode()


def set_fault(address: str, topic: str, fault: str | None, *, seconds: float = 0.0, after: int = 0) -> None:
    """Sets the fault of a topic on the server at `address`. None lifts it; for the topic `*` it lifts all of them."""
    if fault is not None:
        Fault(topic, fault, seconds, after)  # a mistake is better told here than as a status from afar
    options = {} if fault is None else {"seconds": seconds, "after": after}
    _call(address, "Set", {"topic": topic, "fault": fault, **options})


def get_stats(address: str) -> dict[str, dict[str, int]]:
    """What `Faults.stats` says on the server at `address`."""
    answer: dict[str, dict[str, int]] = _call(address, "Stats", {})
    return answer


def _call(address: str, method: str, request: dict[str, Any]) -> Any:
    with grpc.insecure_channel(address) as channel:
        return json.loads(channel.unary_unary(f"/{SERVICE}/{method}")(json.dumps(request).encode(), timeout=10))
