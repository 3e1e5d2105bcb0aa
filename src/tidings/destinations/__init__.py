"""Where a message goes: one file, one destination, named for what it is.

A destination's file MUST hold

- a docstring that is its card: the lines `ARN`, `Guarantee`, `Order`, `Batch` and `Limits`;
- `connect(arn, settings) -> Destination`, which makes a client and does no I/O.

A `Destination` MUST

- say in `max_batch` how many messages one call of `send` may carry, in `max_bytes` how many bytes of bodies, and in `ahead` how
  many messages of a lane may be under way at once, in as many calls as that takes;
- answer `send` with exactly one outcome for each message, in the same order, and never raise for what a peer did:
  an expected failure is an outcome;
- return from `send` within `timeout` seconds, whatever the peer does;
- say `sent` only for what the peer has confirmed;
- say `rejected` only for a message that no retry can help, `wait` where somebody must act first (a topic that is not there, a
  permission), and `retry` for everything else, each with the peer's own words; its tests have that table, cell by cell;
- be usable again after a failure, from the event loop that first used it.

It MAY hold `async refusal(connection, project, arn, settings) -> str | None`: why a project may not send there, if it may not.
Without it every project may. What of that follows from the settings alone is `unbound(project, arn, settings) -> str | None`,
which is asked again whenever a lane is delivered. `shared(project, arn, settings) -> list[str]` gives the ARNs of what the
settings leave open to several projects: there the first project that has a rule keeps the others out. Order is not its
business: the caller never has two messages of a key in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidings import plugins
from tidings.errors import CallerError
from tidings.events.messages import Message, Outcome, Verdict
from tidings.settings import Settings


class Destination(Protocol):
    max_batch: int
    max_bytes: int
    ahead: int

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]: ...

    async def close(self) -> None: ...


_FILES = {"sqs": "queue"}
"""Services that do not have the name of the file that serves them."""


def kind_of(arn: str) -> str:
    """The name of the plugin that serves an ARN, by its third part, the service."""
    parts = arn.split(":")
    service = parts[2] if len(parts) >= 6 and parts[0] == "arn" else ""
    kind = _FILES.get(service, service)
    if kind not in plugins.names("destinations"):
        raise CallerError("InvalidArgument", f"The ARN could not be parsed: {arn[:200]!r}.", ArgumentValue=arn[:200])
    return kind


def connect(arn: str, settings: Settings) -> Destination:
    """A client for the destination behind an ARN."""
    destination: Destination = plugins.load("destinations", kind_of(arn)).connect(arn, settings)
    return destination


def connect_for(project: str, arn: str, settings: Settings) -> Destination:
    """A client for a project's lane. Where the settings do not let the project send there any more, its messages wait."""
    asked = getattr(plugins.load("destinations", kind_of(arn)), "unbound", None)
    reason = asked(project, arn, settings) if asked is not None else None
    return connect(arn, settings) if reason is None else Unbound(f"{arn}: {reason}")


class Unbound:
    """A destination that the operator has not bound to the project: nothing is sent, and nothing is lost."""

    max_batch = ahead = 1000
    max_bytes = 16_000_000

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:  # noqa: ARG002 - nobody is asked
        return [Outcome(Verdict.WAIT, self._reason)] * len(messages)

    async def close(self) -> None:
        """Nothing was opened."""
