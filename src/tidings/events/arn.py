"""The address of a destination as tenants write it. A value of these types is always a valid one.

arn:gcp:pubsub::PROJECT_ID:TOPIC_ID        a Google Pub/Sub topic
arn:tidings:kafka::CLUSTER:TOPIC           a topic of a Kafka cluster that the operator named
arn:aws:sns:REGION:ACCOUNT:TOPIC           an SNS topic: of ours where ACCOUNT is a project's public id, else of AWS
arn:aws:sqs:REGION:ACCOUNT:QUEUE           a queue, likewise
arn:tidings:log:::NAME                     the log of the process that delivers
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from tidings.errors import CallerError

_PROJECT = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_TOPIC = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_KAFKA_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_ACCOUNT = re.compile(r"[0-9]{12}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SNS_NAME = re.compile(r"[A-Za-z0-9_-]{1,256}")
_SQS_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_LOG_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class PubSubTopic:
    """`arn:gcp:pubsub::PROJECT:TOPIC` outside, `projects/PROJECT/topics/TOPIC` inside (seed 000)."""

    project: str
    topic: str
    kind: ClassVar[str] = "pubsub"

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


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    cluster: str
    topic: str
    kind: ClassVar[str] = "kafka"

    def __post_init__(self) -> None:
        if not _CLUSTER.fullmatch(self.cluster) or not _KAFKA_TOPIC.fullmatch(self.topic):
            raise _unparsable(self.arn)

    @property
    def arn(self) -> str:
        return f"arn:tidings:kafka::{self.cluster}:{self.topic}"

    name = arn


@dataclass(frozen=True, slots=True)
class SnsTopic:
    region: str
    account: str
    topic: str
    kind: ClassVar[str] = "sns"

    def __post_init__(self) -> None:
        _check_aws(self.arn, self.region, self.account, _SNS_NAME.fullmatch(self.topic))

    @property
    def arn(self) -> str:
        return f"arn:aws:sns:{self.region}:{self.account}:{self.topic}"

    name = arn


@dataclass(frozen=True, slots=True)
class SqsQueue:
    region: str
    account: str
    queue: str
    kind: ClassVar[str] = "queue"

    def __post_init__(self) -> None:
        _check_aws(self.arn, self.region, self.account, _SQS_NAME.fullmatch(self.queue))

    @property
    def arn(self) -> str:
        return f"arn:aws:sqs:{self.region}:{self.account}:{self.queue}"

    name = arn


@dataclass(frozen=True, slots=True)
class LogLine:
    label: str
    kind: ClassVar[str] = "log"

    def __post_init__(self) -> None:
        if not _LOG_NAME.fullmatch(self.label):
            raise _unparsable(self.arn)

    @property
    def arn(self) -> str:
        return f"arn:tidings:log:::{self.label}"

    name = arn


Address = PubSubTopic | KafkaTopic | SnsTopic | SqsQueue | LogLine
"""`arn` is what tenants write, `name` what the table of rules has, `kind` the destination's file."""


def parse(arn: str) -> Address:
    """The address that an ARN stands for; a CallerError where it stands for none."""
    match arn.split(":"):
        case ["arn", "gcp", "pubsub", "", project, topic]:
            return PubSubTopic(project, topic)
        case ["arn", "tidings", "kafka", "", cluster, topic]:
            return KafkaTopic(cluster, topic)
        case ["arn", "aws", "sns", region, account, topic]:
            return SnsTopic(region, account, topic)
        case ["arn", "aws", "sqs", region, account, queue]:
            return SqsQueue(region, account, queue)
        case ["arn", "tidings", "log", "", "", label]:
            return LogLine(label)
    raise _unparsable(arn)


def from_name(name: str) -> Address:
    """The address behind the `name` of one."""
    return PubSubTopic.from_name(name) if name.startswith("projects/") else parse(name)


def fans_out(address: Address) -> bool:
    """Whether it is a topic of ours: what is sent there goes to each of its subscriptions, over a lane of its own."""
    return isinstance(address, SnsTopic) and not address.account.isdigit()


def _check_aws(arn: str, region: str, account: str, resource: object) -> None:
    if not _REGION.fullmatch(region) or not _ACCOUNT.fullmatch(account) or not resource:
        raise _unparsable(arn)


def _unparsable(value: str) -> CallerError:
    kind = value.split(":")[2] if value.count(":") >= 2 else ""
    form = _FORMS.get(kind, _FORMS["pubsub"])
    return CallerError(
        "InvalidArgument",
        f"The ARN could not be parsed: {value[:200]!r}. Write {form}.",
        ArgumentName="Queue" if kind == "sqs" else "Topic",
        ArgumentValue=value[:200],
    )


_FORMS = {
    "pubsub": "arn:gcp:pubsub::PROJECT_ID:TOPIC_ID",
    "kafka": "arn:tidings:kafka::CLUSTER:TOPIC",
    "sns": "arn:aws:sns:REGION:ACCOUNT:TOPIC",
    "sqs": "arn:aws:sqs:REGION:ACCOUNT:QUEUE",
    "log": "arn:tidings:log:::NAME",
}
