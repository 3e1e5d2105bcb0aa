"""A message is the bytes for one destination; an outcome is what became of one attempt to send it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

PROJECT = "tidings-project"
"""The attribute that names the project whose change a message tells of, by its public id. Only we set it: a receiver may trust
it as far as it trusts the transport."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent. `id` never changes across retries and replays, so a consumer can tell a duplicate."""

    id: str
    body: bytes
    attributes: dict[str, str] = field(default_factory=dict)
    """What travels beside the body where the transport has room for it: `id`, `sequencer` and more. A format that speaks in
    headers puts them here (`ce-type`, `content-type`)."""
    key: bytes | None = None
    """What the format says for a transport that has keys (Kafka)."""
    group: str = ""
    """The same for all messages of one object: what must stay in order, where a transport can be told."""


class Verdict(StrEnum):
    SENT = "sent"
    RETRY = "retry"
    """The peer, or the way to it, is not well: this may pass by itself."""
    WAIT = "wait"
    """Somebody must do something first: a topic that is not there, a permission. The message waits in its lane."""
    REJECTED = "rejected"
    """No retry can help this message. It becomes a dead letter."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one attempt. `reason` quotes the destination; it is empty when the message was sent.

    `after` is how many seconds the peer asked us to wait, if it did.
    """

    verdict: Verdict
    reason: str = ""
    after: float | None = None


SENT = Outcome(Verdict.SENT)
