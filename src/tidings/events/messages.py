"""A message is the bytes for one destination; an outcome is what became of one attempt to send it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent. `id` never changes across retries and replays, so a consumer can tell a duplicate."""

    id: str
    body: bytes
    attributes: dict[str, str] = field(default_factory=dict)


class Verdict(StrEnum):
    SENT = "sent"
    RETRY = "retry"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one attempt. `reason` quotes the destination; it is empty when the message was sent."""

    verdict: Verdict
    reason: str = ""


SENT = Outcome(Verdict.SENT)
