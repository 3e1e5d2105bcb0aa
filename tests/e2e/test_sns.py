"""Topics and subscriptions as boto3's `sns` client and `aws sns` see them, with a real webhook."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from s3_server import Server, s3_server

import canary
from conftest import fresh_database
from tidings import destinations
from tidings.access import api_keys
from tidings.access.api_keys import Access
from tidings.access.keys import create_key
from tidings.access.macaroons import Caveat
from tidings.access.permissions import ACTIONS, FIRST_ACTIONS, MANAGE_TOPICS, SUBSCRIBE
from tidings.access.projects import create_project
from tidings.events.messages import SENT, Message, Outcome
from tidings.local.postgres import Postgres
from tidings.settings import Settings
from waiting import PATIENCE_SECONDS
from webhooks import Webhook, webhook

PROJECT = "11111111-2222-3333-4444-555555555555"
RAW = {"AttributeName": "RawMessageDelivery", "AttributeValue": "true"}
SECRET = "whsec_" + "c2VjcmV0LXRoYXQtbm9ib2R5LWVsc2UtaGFzLTE="


@dataclass
class Stack:
    server: Server
    hook: Webhook
    names: Iterator[int] = field(default_factory=lambda: iter(range(1000)))

    def client(self, server: Server | None = None) -> Any:
        server = server or self.server
        client = boto3.client(
            "sns",
            endpoint_url=server.endpoint,
            region_name="us-east-1",
            aws_access_key_id=server.access_key_id,
            aws_secret_access_key=server.secret,
            config=Config(retries={"total_max_attempts": 1}),
        )
        client.meta.events.register("after-call.sns", lambda http_response, **_: canary.seen(http_response.content))
        return client

    def project(self) -> Server:
        """Another project, with a key."""
        with psycopg.connect(self.server.database_url, autocommit=True) as connection:
            project = create_project(connection, f"other {next(self.names)}")
            access_key_id, secret = create_key(connection, project)
        canary.plant(self.server.database_url)
        return replace(self.server, access_key_id=access_key_id, secret=secret, project=project)

    def topic(self, **more: Any) -> str:
        arn: str = self.client().create_topic(Name=f"topic-{next(self.names)}", **more)["TopicArn"]
        return arn

    def settings(self) -> Settings:
        return Settings(
            database={"url": self.server.database_url},
            api={"port": self.server.port},
            outgoing={"allow_http": True, "allow": (f"127.0.0.1:{self.hook.port}",)},
        )

    def subscribed(self, topic: str, path: str, **attributes: str) -> str:
        """A confirmed subscription."""
        url = f"http://127.0.0.1:{self.hook.port}{path}"
        self.client().subscribe(TopicArn=topic, Protocol="http", Endpoint=url, Attributes=attributes)
        token = self.hook.confirmation(path).envelope["Token"]
        arn: str = self.client().confirm_subscription(TopicArn=topic, Token=token)["SubscriptionArn"]
        return arn

    def send(self, arn: str, *bodies: str) -> list[Outcome]:
        """Through the destination, as a lane does."""

        async def go() -> list[Outcome]:
            destination = destinations.connect(arn, self.settings())
            try:
                messages = [Message(f"{body}-id", body.encode(), {"id": f"{body}-id", "sequencer": "1"}) for body in bodies]
                return await destination.send(messages, 10.0)
            finally:
                await destination.close()

        return asyncio.run(go())


@pytest.fixture(scope="module")
def stack(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with webhook() as hook:
        environment = {
            "TIDINGS_OUTGOING__ALLOW_HTTP": "true",
            "TIDINGS_OUTGOING__ALLOW": f'["127.0.0.1:{hook.port}"]',
            "TIDINGS_TOPICS__MAX_TOPICS": "105",
            "TIDINGS_TOPICS__MAX_SUBSCRIPTIONS": "3",
        }
        with s3_server(fresh_database(postgres, "sns"), tmp_path_factory.mktemp("sns"), **environment) as server:
            yield Stack(server, hook)


def code(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] < 500
    return str(caught.value.response["Error"]["Code"])


def get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_topic_is_made_changed_listed_and_deleted(stack: Stack) -> None:
    sns = stack.client()
    arn = sns.create_topic(Name="life", Attributes={"DisplayName": "Life"}, Tags=[{"Key": "event-format", "Value": "s3"}])[
        "TopicArn"
    ]
    assert arn == f"arn:aws:sns:us-east-1:{stack.server.project}:life"
    assert sns.create_topic(Name="life")["TopicArn"] == arn, "it is there already"
    sns.set_topic_attributes(TopicArn=arn, AttributeName="SignatureVersion", AttributeValue="2")
    attributes = sns.get_topic_attributes(TopicArn=arn)["Attributes"]
    assert attributes["DisplayName"] == "Life"
    assert attributes["SignatureVersion"] == "2"
    assert attributes["Owner"] == stack.server.project
    assert [attributes[f"Subscriptions{which}"] for which in ("Confirmed", "Pending", "Deleted")] == ["0", "0", "0"]
    sns.tag_resource(ResourceArn=arn, Tags=[{"Key": "team", "Value": "data"}])
    sns.untag_resource(ResourceArn=arn, TagKeys=["event-format"])
    assert sns.list_tags_for_resource(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "data"}]
    assert {"TopicArn": arn} in sns.list_topics()["Topics"]
    sns.delete_topic(TopicArn=arn)
    sns.delete_topic(TopicArn=arn)
    assert code(sns.get_topic_attributes, TopicArn=arn) == "NotFound"


def test_topics_come_in_pages_and_there_is_a_limit(stack: Stack) -> None:
    other = stack.client(stack.project())
    made = {other.create_topic(Name=f"page-{i}")["TopicArn"] for i in range(105)}
    listed = [topic["TopicArn"] for page in other.get_paginator("list_topics").paginate() for topic in page["Topics"]]
    assert len(listed) == 105
    assert set(listed) == made
    assert code(other.create_topic, Name="one-more") == "TopicLimitExceeded"
    assert other.create_topic(Name="page-1")["TopicArn"] in made


ELSEWHERE = {"Protocol": "https", "Endpoint": "https://a.example/"}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("create_topic", {"Name": "with space"}, "InvalidParameter"),
    ("create_topic", {"Name": "a.fifo"}, "InvalidParameter"),
    ("create_topic", {"Name": "a", "Attributes": {"FifoTopic": "true"}}, "InvalidParameter"),
    ("create_topic", {"Name": "a", "Tags": [{"Key": "event-format", "Value": "morse"}]}, "InvalidParameter"),
    ("create_topic", {"Name": "a", "Tags": [{"Key": "event-format", "Value": "nessie"}]}, "InvalidParameter"),
    ("create_topic", {"Name": "a", "Tags": [{"Key": str(i), "Value": ""} for i in range(51)]}, "TagLimitExceeded"),
    ("set_topic_attributes", {"AttributeName": "SignatureVersion", "AttributeValue": "3"}, "InvalidParameter"),
    ("set_topic_attributes", {"AttributeName": "Policy", "AttributeValue": "{}"}, "InvalidParameter"),
    ("set_topic_attributes", {"AttributeName": "DisplayName", "AttributeValue": "x" * 101}, "InvalidParameter"),
    ("add_permission", {"Label": "l", "AWSAccountId": ["123456789012"], "ActionName": ["Publish"]}, "InvalidParameter"),
    ("add_permission", {"Label": "l l", "AWSAccountId": ["x"], "ActionName": ["Publish"]}, "InvalidParameter"),
    ("remove_permission", {"Label": "not-there"}, "NotFound"),
    ("subscribe", {"Protocol": "email", "Endpoint": "me@example.com"}, "InvalidParameter"),
    ("subscribe", {"Protocol": "https", "Endpoint": "http://example.com/"}, "InvalidParameter"),
    ("subscribe", {"Protocol": "http", "Endpoint": "http://127.0.0.1:1/"}, "InvalidParameter"),
    ("subscribe", {"Protocol": "http", "Endpoint": "http://169.254.169.254/latest/"}, "InvalidParameter"),
    ("subscribe", {"Protocol": "https", "Endpoint": "https://[::ffff:10.0.0.1]/"}, "InvalidParameter"),
    ("subscribe", {**ELSEWHERE, "Attributes": {"FilterPolicy": "{}"}}, "InvalidParameter"),
    ("subscribe", {**ELSEWHERE, "Attributes": {"WebhookSecrets": "hush"}}, "InvalidParameter"),
    ("confirm_subscription", {"Token": "0" * 128}, "InvalidParameter"),
    ("list_subscriptions_by_topic", {"NextToken": "!"}, "InvalidParameter"),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "arguments", "expected"), WRONG, ids=[f"{i}-{o}" for i, (o, _, _) in enumerate(WRONG)])
def test_bad_input_is_refused_by_its_name_and_changes_nothing(
    stack: Stack, operation: str, arguments: dict[str, Any], expected: str
) -> None:
    sns = stack.client()
    topic = sns.create_topic(Name="bad-input")["TopicArn"]
    before = everything(stack)
    more = {} if operation == "create_topic" else {"TopicArn": topic}
    assert code(getattr(sns, operation), **more, **arguments) == expected
    assert everything(stack) == before


def everything(stack: Stack) -> list[Any]:
    return [
        stack.server.query(f"select * from {table} order by 1")
        for table in ("topics", "subscriptions", "topic_grants", "lanes")
    ]


def test_an_endpoint_confirms_by_the_link_alone_and_gets_its_messages_from_then_on(stack: Stack) -> None:
    sns, topic = stack.client(), stack.topic()
    url = f"{stack.hook.url}/link"
    made = sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=url)
    assert made["SubscriptionArn"] == "pending confirmation"
    listed = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert [each["SubscriptionArn"] for each in listed] == ["PendingConfirmation"]
    assert sns.get_topic_attributes(TopicArn=topic)["Attributes"]["SubscriptionsPending"] == "1"

    asked = stack.hook.confirmation("/hook/link")
    assert asked.headers["x-amz-sns-topic-arn"] == topic
    assert asked.headers["content-type"] == "text/plain; charset=UTF-8"
    said = asked.envelope
    assert said["SubscribeURL"].startswith(f"{stack.server.endpoint}/?Action=ConfirmSubscription&")
    assert get(said["SubscribeURL"].replace(said["Token"], "0" * 128))[0] == 400, "a token that is not the one"
    status, answer = get(said["SubscribeURL"])
    assert status == 200
    assert get(said["SubscribeURL"])[0] == 200, "once more changes nothing"

    (found,) = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    arn = found["SubscriptionArn"]
    assert arn.startswith(f"{topic}:")
    assert arn.encode() in answer
    [(state, destination)] = stack.server.query(
        "select l.state, l.destination from subscriptions s join lanes l on l.id = s.lane where s.arn = %s", arn
    )
    assert (state, destination) == ("behind", arn)

    assert stack.send(arn, "first") == [SENT]
    got = stack.hook.wait(lambda each: each.path == "/hook/link" and b'"first"' in each.body)
    assert got.headers["x-amz-sns-message-type"] == "Notification"
    assert got.headers["x-amz-sns-subscription-arn"] == arn
    assert got.envelope["MessageAttributes"]["sequencer"] == {"Type": "String", "Value": "1"}


def test_the_stream_hears_of_a_new_subscriber_and_of_one_that_has_left(stack: Stack) -> None:
    def version() -> int:
        [(number,)] = stack.server.query("select version from rules_version")
        return int(number)

    topic = stack.topic()
    before = version()
    arn = stack.subscribed(topic, "/stream")
    confirmed = version()
    secrets = {"AttributeName": "WebhookSecrets", "AttributeValue": SECRET}
    stack.client().set_subscription_attributes(SubscriptionArn=arn, **secrets)
    assert before < confirmed == version(), "how it is signed is none of the stream's business"
    stack.client().unsubscribe(SubscriptionArn=arn)
    assert version() > confirmed


def test_who_subscribes_again_is_asked_again_and_a_confirmed_one_is_found(stack: Stack) -> None:
    sns, topic = stack.client(), stack.topic()
    arguments = {"TopicArn": topic, "Protocol": "http", "Endpoint": f"{stack.hook.url}/again"}
    sns.subscribe(**arguments)
    first = stack.hook.confirmation("/hook/again").envelope["Token"]
    named = sns.subscribe(**arguments, ReturnSubscriptionArn=True)["SubscriptionArn"]
    second = stack.hook.wait(lambda each: each.path == "/hook/again" and each.envelope["Token"] != first).envelope["Token"]
    assert code(sns.confirm_subscription, TopicArn=topic, Token=first) == "InvalidParameter", "the older token"
    assert sns.confirm_subscription(TopicArn=topic, Token=second)["SubscriptionArn"] == named
    assert sns.subscribe(**arguments)["SubscriptionArn"] == named
    assert code(sns.subscribe, **arguments, Attributes={"RawMessageDelivery": "true"}) == "InvalidParameter"
    assert len(sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]) == 1


def test_a_token_is_good_for_three_days(stack: Stack) -> None:
    sns, topic = stack.client(), stack.topic()
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=f"{stack.hook.url}/late")
    token = stack.hook.confirmation("/hook/late").envelope["Token"]
    with psycopg.connect(stack.server.database_url, autocommit=True) as connection:
        row = connection.execute("select token_until - now() from subscriptions where topic = %s", [topic]).fetchone()
        assert row is not None
        assert 3 * 86400 - 120 < row[0].total_seconds() <= 3 * 86400
        connection.execute("update subscriptions set token_until = now() - interval '1 s' where topic = %s", [topic])
    assert code(sns.confirm_subscription, TopicArn=topic, Token=token) == "InvalidParameter"
    assert sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == []


def test_tokens_are_not_in_the_database(stack: Stack) -> None:
    topic = stack.topic()
    stack.client().subscribe(TopicArn=topic, Protocol="http", Endpoint=f"{stack.hook.url}/token")
    token = stack.hook.confirmation("/hook/token").envelope["Token"]
    assert token not in str(stack.server.query("select * from subscriptions"))


def test_who_unsubscribes_by_the_link_is_told_and_gets_no_more_and_can_come_back(stack: Stack) -> None:
    sns, topic = stack.client(), stack.topic()
    arn = stack.subscribed(topic, "/leaving")
    assert stack.send(arn, "before") == [SENT]
    link = stack.hook.wait(lambda each: b'"before"' in each.body).envelope["UnsubscribeURL"]
    assert get(link)[0] == 200
    assert get(link)[0] == 404, "it is gone"
    farewell = stack.hook.confirmation("/leaving", "UnsubscribeConfirmation").envelope
    assert sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == []
    assert sns.get_topic_attributes(TopicArn=topic)["Attributes"]["SubscriptionsDeleted"] == "1"
    (outcome,) = stack.send(arn, "after")
    assert outcome.verdict == "wait"
    assert get(farewell["SubscribeURL"])[0] == 200
    (back,) = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert back["SubscriptionArn"] not in (arn, "PendingConfirmation")
    assert not [each for each in stack.hook.received if b'"after"' in each.body]


def test_a_subscription_that_asks_for_it_is_ended_by_a_signed_request_only(stack: Stack) -> None:
    sns, topic = stack.client(), stack.topic()
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=f"{stack.hook.url}/kept")
    token = stack.hook.confirmation("/hook/kept").envelope["Token"]
    arn = sns.confirm_subscription(TopicArn=topic, Token=token, AuthenticateOnUnsubscribe="true")["SubscriptionArn"]
    assert get(f"{stack.server.endpoint}/?Action=Unsubscribe&SubscriptionArn={arn}")[0] == 403
    assert sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]["ConfirmationWasAuthenticated"] == "true"
    sns.unsubscribe(SubscriptionArn=arn)
    assert code(sns.unsubscribe, SubscriptionArn=arn) == "NotFound"


def test_whoever_only_looks_at_a_link_has_not_followed_it(stack: Stack) -> None:
    topic = stack.topic()
    stack.client().subscribe(TopicArn=topic, Protocol="http", Endpoint=f"{stack.hook.url}/seen")
    link = stack.hook.confirmation("/hook/seen").envelope["SubscribeURL"]
    urllib.request.urlopen(urllib.request.Request(link, method="HEAD"), timeout=60).close()
    (found,) = stack.client().list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert found["SubscriptionArn"] == "PendingConfirmation"


def test_attributes_of_a_subscription_are_set_and_its_secrets_never_shown(stack: Stack) -> None:
    sns, topic = stack.client(), stack.topic()
    arn = stack.subscribed(topic, "/attributes", RawMessageDelivery="true", WebhookSecrets=SECRET)
    attributes = sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
    assert (attributes["RawMessageDelivery"], attributes["WebhookSecretCount"]) == ("true", "1")
    assert SECRET not in str(attributes)
    two = f"whsec_{'bmV3' * 8} {SECRET}"
    sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName="WebhookSecrets", AttributeValue=two)
    assert sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]["WebhookSecretCount"] == "2"
    for wrong in (f"{two} whsec_{'b2xk' * 8}", f"{SECRET} {SECRET}", "whsec_c2hvcnQ=", SECRET[6:]):
        refused = code(
            sns.set_subscription_attributes, SubscriptionArn=arn, AttributeName="WebhookSecrets", AttributeValue=wrong
        )
        assert refused == "InvalidParameter"
    sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName="WebhookSecrets", AttributeValue="")
    assert sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]["WebhookSecretCount"] == "0"


def test_a_topic_has_so_many_subscriptions_and_no_more(stack: Stack) -> None:
    sns, topic = stack.client(), stack.topic()
    for i in range(3):
        sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=f"{stack.hook.url}/limit{i}")
    refused = code(sns.subscribe, TopicArn=topic, Protocol="http", Endpoint=f"{stack.hook.url}/limit3")
    assert refused == "SubscriptionLimitExceeded"


def test_a_topic_that_is_deleted_takes_its_subscriptions_along(stack: Stack) -> None:
    sns, topic = stack.client(), stack.topic()
    arn = stack.subscribed(topic, "/topic-deleted")
    sns.delete_topic(TopicArn=topic)
    assert arn not in [each["SubscriptionArn"] for each in sns.list_subscriptions()["Subscriptions"]]
    assert [outcome.verdict for outcome in stack.send(arn, "gone")] == ["wait"]
    assert code(sns.subscribe, TopicArn=topic, Protocol="http", Endpoint=stack.hook.url) == "NotFound"


def test_a_test_event_goes_to_all_subscribers_and_a_topic_without_any_takes_it_too(stack: Stack) -> None:
    topic = stack.topic()
    assert stack.send(topic, "nobody listens") == [SENT]
    for path in ("/test-a", "/test-b"):
        stack.subscribed(topic, path)
    assert stack.send(topic, "to all") == [SENT]
    for path in ("/test-a", "/test-b"):
        stack.hook.wait(lambda each, path=path: each.path == path and b'"to all"' in each.body)  # type: ignore[misc]
    (missing,) = stack.send(f"{topic}-not", "x")
    assert missing.verdict == "wait"
    assert "there is no topic" in missing.reason


def sqs(stack: Stack, server: Server | None = None) -> Any:
    server = server or stack.server
    return boto3.client(
        "sqs",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret,
        config=Config(retries={"total_max_attempts": 1}),
    )


def test_a_queue_is_subscribed_at_once_and_gets_envelopes_or_the_bodies_themselves(stack: Stack) -> None:
    sns, topic = stack.client(), stack.topic()
    queues = sqs(stack)
    for name, raw in (("enveloped", "false"), ("raw", "true")):
        url = queues.create_queue(QueueName=name)["QueueUrl"]
        queue = f"arn:aws:sqs:us-east-1:{stack.server.project}:{name}"
        arguments = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": queue, "Attributes": {"RawMessageDelivery": raw}}
        arn = sns.subscribe(**arguments)["SubscriptionArn"]
        assert arn.startswith(f"{topic}:"), "confirmed"
        assert sns.subscribe(**arguments)["SubscriptionArn"] == arn
        assert stack.send(arn, "to a queue", "x" * 262_144)[0] == SENT
        (got,) = queues.receive_message(QueueUrl=url, WaitTimeSeconds=5, MessageAttributeNames=["All"])["Messages"]
        if raw == "true":
            assert got["Body"] == "to a queue"
            assert got["MessageAttributes"]["sequencer"]["StringValue"] == "1"
        else:
            said = json.loads(got["Body"])
            assert (said["Type"], said["Message"], said["TopicArn"]) == ("Notification", "to a queue", topic)
            assert said["MessageAttributes"]["sequencer"]["Value"] == "1"
        sns.unsubscribe(SubscriptionArn=arn)
        assert stack.send(arn, "after")[0].verdict == "wait"


def test_a_queue_that_is_not_there_or_another_s_cannot_be_subscribed_until_it_is_granted(stack: Stack) -> None:
    sns, topic = stack.client(), stack.topic()
    other = stack.project()
    url = sqs(stack, other).create_queue(QueueName="theirs")["QueueUrl"]
    theirs = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": f"arn:aws:sqs:us-east-1:{other.project}:theirs"}
    missing = {**theirs, "Endpoint": f"arn:aws:sqs:us-east-1:{stack.server.project}:not-there"}
    assert code(sns.subscribe, **missing) == "InvalidParameter"
    assert code(sns.subscribe, **{**theirs, "Endpoint": "https://queue.example/"}) == "InvalidParameter"
    assert code(sns.subscribe, **theirs) == "AuthorizationError"
    sqs(stack, other).add_permission(QueueUrl=url, Label="them", AWSAccountIds=[stack.server.project], Actions=["SendMessage"])
    assert sns.subscribe(**theirs)["SubscriptionArn"].startswith(topic)


# tenancy


def test_nobody_reads_changes_or_subscribes_to_another_project_s_topic(stack: Stack) -> None:
    topic = stack.topic()
    arn = stack.subscribed(topic, "/tenancy")
    stranger = stack.client(stack.project())
    before = everything(stack)
    not_there = f"{topic}-not"
    for name in (topic, not_there):
        calls = [
            (stranger.get_topic_attributes, {"TopicArn": name}),
            (stranger.set_topic_attributes, {"TopicArn": name, "AttributeName": "DisplayName", "AttributeValue": "x"}),
            (stranger.delete_topic, {"TopicArn": name}),
            (stranger.tag_resource, {"ResourceArn": name, "Tags": [{"Key": "a", "Value": "b"}]}),
            (stranger.untag_resource, {"ResourceArn": name, "TagKeys": ["a"]}),
            (stranger.list_tags_for_resource, {"ResourceArn": name}),
            (stranger.add_permission, {"TopicArn": name, "Label": "x", "AWSAccountId": [PROJECT], "ActionName": ["Publish"]}),
            (stranger.remove_permission, {"TopicArn": name, "Label": "x"}),
            (stranger.list_subscriptions_by_topic, {"TopicArn": name}),
            (stranger.subscribe, {"TopicArn": name, "Protocol": "http", "Endpoint": stack.hook.url}),
        ]  # fmt: skip
        for call, arguments in calls:
            assert code(call, **arguments) == "AuthorizationError", "the same answer, whether there is such a topic or not"
    for call, arguments in [
        (stranger.get_subscription_attributes, {"SubscriptionArn": arn}),
        (stranger.set_subscription_attributes, {"SubscriptionArn": arn, **RAW}),
        (stranger.unsubscribe, {"SubscriptionArn": arn}),
    ]:  # fmt: skip
        assert code(call, **arguments) == "NotFound"
    assert stranger.list_topics()["Topics"] == []
    assert stranger.list_subscriptions()["Subscriptions"] == []
    assert everything(stack) == before


def refusal(stack: Stack, project: str, arn: str) -> str | None:
    from tidings.destinations import sns

    async def go() -> str | None:
        async with await psycopg.AsyncConnection.connect(stack.server.database_url) as connection:
            return await sns.refusal(connection, project, arn, stack.settings())

    return asyncio.run(go())


def test_a_granted_project_subscribes_and_names_the_topic_in_a_rule_until_the_grant_is_taken_back(stack: Stack) -> None:
    owner, topic = stack.client(), stack.topic()
    other = stack.project()
    friend = stack.client(other)
    assert refusal(stack, stack.server.project, topic) is None
    assert "has not granted" in str(refusal(stack, other.project, topic))
    owner.add_permission(TopicArn=topic, Label="publish", AWSAccountId=[other.project], ActionName=["Publish"])
    assert refusal(stack, other.project, topic) is None
    arguments = {"TopicArn": topic, "Protocol": "http", "Endpoint": f"{stack.hook.url}/granted"}
    assert code(friend.subscribe, **arguments) == "AuthorizationError", "Publish is not Subscribe"
    owner.add_permission(TopicArn=topic, Label="subscribe", AWSAccountId=[other.project], ActionName=["Subscribe"])
    again = {"TopicArn": topic, "Label": "subscribe", "AWSAccountId": [other.project], "ActionName": ["Publish"]}
    assert code(owner.add_permission, **again) == "InvalidParameter"
    friend.subscribe(**arguments)
    token = stack.hook.confirmation("/hook/granted").envelope["Token"]
    arn = friend.confirm_subscription(TopicArn=topic, Token=token)["SubscriptionArn"]
    policy = json.loads(owner.get_topic_attributes(TopicArn=topic)["Attributes"]["Policy"])
    assert [each["Sid"] for each in policy["Statement"]] == ["publish", "subscribe"]
    assert friend.list_subscriptions()["Subscriptions"][0]["SubscriptionArn"] == arn
    assert code(owner.set_subscription_attributes, SubscriptionArn=arn, **RAW) == "AuthorizationError"
    owner.remove_permission(TopicArn=topic, Label="publish")
    assert "has not granted" in str(refusal(stack, other.project, topic))
    owner.unsubscribe(SubscriptionArn=arn)
    assert friend.list_subscriptions()["Subscriptions"] == []


def made(stack: Stack, actions: tuple[str, ...], **limit: Any) -> Any:
    with psycopg.connect(stack.server.database_url, autocommit=True) as connection:
        access: Access = api_keys.create(connection, stack.server.project, actions, Caveat(**limit))
    canary.plant(stack.server.database_url)
    return stack.client(replace(stack.server, access_key_id=access.access_key_id, secret=access.secret))


def test_a_key_does_what_it_was_made_for_and_nothing_else(stack: Stack) -> None:
    topic = stack.topic()
    subscribe = {"TopicArn": topic, "Protocol": "http", "Endpoint": f"{stack.hook.url}/keys"}
    managing, subscribing, old = made(stack, (MANAGE_TOPICS,)), made(stack, (SUBSCRIBE,)), made(stack, FIRST_ACTIONS)
    assert managing.create_topic(Name="by-a-key")
    assert code(managing.subscribe, **subscribe) == "AuthorizationError"
    assert subscribing.subscribe(**subscribe)
    assert code(subscribing.create_topic, Name="by-a-key") == "AuthorizationError"
    assert code(subscribing.delete_topic, TopicArn=topic) == "AuthorizationError"
    for call, arguments in ((old.create_topic, {"Name": "x"}), (old.list_topics, {}), (old.subscribe, subscribe)):
        assert code(call, **arguments) == "AuthorizationError", "made before there were topics"
    for limit in ({"buckets": ("a-bucket",)}, {"prefixes": (("a-bucket", "x/"),)}, {"not_after": 1}):
        limited = made(stack, ACTIONS, **limit)
        assert code(limited.list_topics) == "AuthorizationError", limit


def test_an_unsigned_or_wrongly_signed_request_does_nothing(stack: Stack) -> None:
    before = everything(stack)
    wrong = stack.client(replace(stack.server, secret="x" * 40))
    assert code(wrong.create_topic, Name="x") == "SignatureDoesNotMatch"
    unknown = stack.client(replace(stack.server, access_key_id="AKIA" + "A" * 16))
    assert code(unknown.create_topic, Name="x") == "InvalidClientTokenId"
    for query in ("Action=CreateTopic&Name=x", f"Action=DeleteTopic&TopicArn={stack.topic()}"):
        status, _ = get(f"{stack.server.endpoint}/?{query}")
        assert status in (400, 403)
    assert [row for row in everything(stack)[0] if row[0].endswith(":x")] == []
    assert before[1:] == everything(stack)[1:]


def test_the_certificate_is_served_under_its_own_name_only(stack: Stack) -> None:
    topic = stack.topic()
    stack.client().subscribe(TopicArn=topic, Protocol="http", Endpoint=f"{stack.hook.url}/certificate")
    url = stack.hook.confirmation("/hook/certificate").envelope["SigningCertURL"]
    status, pem = get(url)
    assert status == 200
    assert pem.startswith(b"-----BEGIN CERTIFICATE-----")
    assert b"PRIVATE" not in pem
    assert get(url.replace(".pem", "0.pem"))[0] == 404


def test_the_aws_command_line_does_it_too(stack: Stack) -> None:
    def aws(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "awscli", "sns", *arguments, "--output", "json"],
            env=stack.server.environment(), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else None

    topic = aws("create-topic", "--name", "by-cli", "--tags", "Key=event-format,Value=s3")["TopicArn"]
    aws("subscribe", "--topic-arn", topic, "--protocol", "http", "--notification-endpoint", f"{stack.hook.url}/cli")
    token = stack.hook.confirmation("/hook/cli").envelope["Token"]
    arn = aws("confirm-subscription", "--topic-arn", topic, "--token", token)["SubscriptionArn"]
    listed = aws("list-subscriptions-by-topic", "--topic-arn", topic)["Subscriptions"]
    assert [each["SubscriptionArn"] for each in listed] == [arn]
    aws("unsubscribe", "--subscription-arn", arn)
    aws("delete-topic", "--topic-arn", topic)


def test_an_endpoint_that_does_not_answer_at_first_is_asked_again(stack: Stack) -> None:
    from webhooks import Answer

    topic, asked = stack.topic(), []

    def answer(received: Any) -> Answer:
        if received.path == "/hook/deaf":
            asked.append(time.monotonic())
            return Answer(503 if len(asked) == 1 else 200)
        return Answer()

    stack.hook.answer = answer
    stack.client().subscribe(TopicArn=topic, Protocol="http", Endpoint=f"{stack.hook.url}/deaf")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(asked) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(asked) == 2


def test_the_commands_of_the_guide_do_what_it_says_and_the_operator_sees_them(stack: Stack) -> None:
    guide = (Path(__file__).parent.parent.parent / "docs" / "topics.md").read_text()
    shown = "".join(re.findall(r"```console\n(.*?)```", guide, re.DOTALL))
    script = "set -eux\n" + re.sub(r"^\$ ", "", shown, flags=re.MULTILINE)
    before, unsubscribe, after = script.partition("sns unsubscribe")
    operator = f"{sys.executable} -m tidings subscriptions list --project tests"
    script = f"{before}{operator} --json\n{operator}\n{unsubscribe}{after}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    more = {"ENDPOINT": stack.server.endpoint, "HOOK": f"{stack.hook.url}/guide", "PATH": path}
    environment = {**stack.server.environment(), **more, "TIDINGS_DATABASE__URL": stack.server.database_url}

    def confirm() -> None:
        get(stack.hook.confirmation("/hook/guide").envelope["SubscribeURL"])

    with ThreadPoolExecutor(1) as beside:
        confirmed = beside.submit(confirm)
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stderr
        confirmed.result()
    canary.seen(done.stdout)
    line = next(line for line in done.stdout.splitlines() if line.startswith("[{"))
    (row,) = [each for each in json.loads(line) if each["topic"].endswith(":changes")]
    assert (row["state"], row["raw"], row["secrets"], row["endpoint"]) == ("behind", True, 1, f"{stack.hook.url}/guide")
    assert "raw, 1 secrets" in done.stdout
