"""The two ways to a bucket's notification configuration, S3 over HTTP and Metainfo over gRPC, behind one face for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

import canary
from tidings import client as metainfo
from tidings.events.arn import PubSubTopic


@dataclass(frozen=True)
class Wish:
    """One configuration, in the words of neither front."""

    topic: PubSubTopic | str
    events: tuple[str, ...] = ("s3:ObjectCreated:*",)
    prefix: str = ""
    suffix: str = ""
    id: str = "mine"


class Refused(Exception):
    """`code` is the front's own: an S3 code, or the name of a gRPC status."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Key:
    access_key_id: str
    secret: str
    api_key: str


class Front(Protocol):
    name: str

    def put(self, bucket: str, wish: Wish | None) -> None: ...

    def get(self, bucket: str) -> Wish | None: ...


class Http:
    name = "http"

    def __init__(self, s3: str, region: str, key: Key) -> None:
        client = boto3.client(
            "s3",
            endpoint_url=s3,
            region_name=region,
            aws_access_key_id=key.access_key_id,
            aws_secret_access_key=key.secret,
            config=Config(retries={"total_max_attempts": 1}),
        )
        self.s3 = canary.watched(client)

    def put(self, bucket: str, wish: Wish | None) -> None:
        self._call("put_bucket_notification_configuration", bucket, NotificationConfiguration=_as_boto3(wish))

    def get(self, bucket: str) -> Wish | None:
        configurations = self._call("get_bucket_notification_configuration", bucket).get("TopicConfigurations", [])
        if not configurations:
            return None
        (found,) = configurations
        rules = {rule["Name"].lower(): rule["Value"] for rule in found.get("Filter", {}).get("Key", {}).get("FilterRules", [])}
        topic = PubSubTopic.from_arn(found["TopicArn"])
        return Wish(topic, tuple(found["Events"]), rules.get("prefix", ""), rules.get("suffix", ""), found["Id"])

    def _call(self, operation: str, bucket: str, **more: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self.s3, operation)(Bucket=bucket, **more)
        except ClientError as error:
            said, status = error.response["Error"], error.response["ResponseMetadata"]["HTTPStatusCode"]
            raise Refused(said["Code"], status, said["Message"]) from error
        return answer


def _as_boto3(wish: Wish | None) -> dict[str, Any]:
    if wish is None:
        return {}
    filters = [{"Name": name, "Value": value} for name, value in (("prefix", wish.prefix), ("suffix", wish.suffix)) if value]
    arn = wish.topic.arn if isinstance(wish.topic, PubSubTopic) else wish.topic
    configuration = {"Id": wish.id, "TopicArn": arn, "Events": list(wish.events)}
    return {"TopicConfigurations": [configuration | ({"Filter": {"Key": {"FilterRules": filters}}} if filters else {})]}


class Grpc:
    name = "grpc"

    def __init__(self, target: str, key: Key) -> None:
        self._client = metainfo.Metainfo(target, key.api_key, tls=False)

    def put(self, bucket: str, wish: Wish | None) -> None:
        self._call(self._client.put_bucket_notification_configuration, bucket, None if wish is None else _as_message(wish))

    def get(self, bucket: str) -> Wish | None:
        found = self._call(self._client.get_bucket_notification_configuration, bucket)
        if found is None:
            return None
        topic = PubSubTopic.from_name(found.topic_name)
        return Wish(topic, tuple(found.events), found.prefix, found.suffix, found.id)

    def _call(self, method: Any, *arguments: Any) -> Any:
        try:
            answer = method(*arguments)
            canary.seen(repr(answer))
            return answer
        except metainfo.MetainfoError as error:
            canary.seen(error.message)
            raise Refused(error.status.name, 0, error.message) from error


def _as_message(wish: Wish) -> metainfo.Configuration:
    name = wish.topic.name if isinstance(wish.topic, PubSubTopic) else wish.topic
    return metainfo.Configuration(topic_name=name, events=wish.events, id=wish.id, prefix=wish.prefix, suffix=wish.suffix)
