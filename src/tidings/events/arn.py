"""The address of a destination as tenants write it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidings.errors import CallerError

_PROJECT = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_TOPIC = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")


@dataclass(frozen=True, slots=True)
class PubSubTopic:
    """A Pub/Sub topic: `arn:gcp:pubsub::PROJECT:TOPIC` outside, `projects/PROJECT/topics/TOPIC` inside (seed 000)."""

    project: str
    topic: str

    def __post_init__(self) -> None:
        if not _PROJECT.fullmatch(self.project) or not _TOPIC.fullmatch(self.topic):
            raise _unparsable(self.arn)

    @property
    def arn(self) -> str:
        return f"arn:gcp:pubsub::{self.project}:{self.topic}"

    @property
    def name(self) -> str:
        return f"projects/{self.project}/topics/{self.topic}"

    @classmethod
    def from_arn(cls, arn: str) -> PubSubTopic:
        parts = arn.split(":")
        if len(parts) != 6 or parts[:4] != ["arn", "gcp", "pubsub", ""]:
            raise _unparsable(arn)
        return cls(parts[4], parts[5])

    @classmethod
    def from_name(cls, name: str) -> PubSubTopic:
        parts = name.split("/")
        if len(parts) != 4 or (parts[0], parts[2]) != ("projects", "topics"):
            raise _unparsable(name)
        return cls(parts[1], parts[3])


def _unparsable(value: str) -> CallerError:
    return CallerError(
        "InvalidArgument",
        f"The ARN could not be parsed: {value[:200]!r}. Write arn:gcp:pubsub::PROJECT_ID:TOPIC_ID.",
        ArgumentName="Topic",
        ArgumentValue=value[:200],
    )
