"""Whose topic is it, when a rule is set: bound by the settings, or of the project that came first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import psycopg
import pytest
from botocore.exceptions import ClientError
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google_cloud import google_cloud
from s3_server import Server, s3_server

import canary
import kafka_reader
from conftest import Say, fresh_database
from tidings.access.keys import create_key
from tidings.access.projects import create_project
from tidings.catalog.errors import CatalogError
from tidings.db.pool import make_pool
from tidings.local import kafka, pubsub
from tidings.local.postgres import Postgres
from tidings.rules import catalog_subscriptions
from tidings.rules.catalog_subscriptions import Subscription
from tidings.settings import Settings

RACES = 12


@dataclass
class Place:
    """A server, and two projects there: topics are bound to `owner`, and `stranger` would like to have them."""

    stranger: Server
    owner: Server
    clusters: str
    pubsub: str
    brokers: str


@pytest.fixture(scope="module")
def place(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    url = fresh_database(postgres, "bindings")
    owner, key = another(url, "owner")
    with kafka.running() as brokers, pubsub.running() as google:
        main = {"bootstrap": brokers.bootstrap, "topics": {"bound-": [owner], "": ["*"]}}
        clusters = json.dumps({"main": main, "again": {"bootstrap": brokers.bootstrap, "projects": "*"}})
        settings = {
            "TIDINGS_PUBSUB__EMULATOR_HOST": google.address,
            "TIDINGS_PUBSUB__PROJECTS": json.dumps({"acme-things": [owner], "acme-things/open-": ["*"]}),
            "TIDINGS_KAFKA__CLUSTERS": clusters,
            "TIDINGS_BUCKET_EVENTING__DESTINATIONS": '["pubsub", "kafka"]',
        }
        with s3_server(url, tmp_path_factory.mktemp("bindings"), **settings) as server:
            theirs = replace(server, project=owner, access_key_id=key[0], secret=key[1])
            for name, project in (("bucket-of-a-stranger", server), ("bucket-of-the-owner", theirs)):
                project.client().create_bucket(Bucket=name)
            yield Place(server, theirs, clusters, google.address, brokers.bootstrap)


def another(url: str, name: str) -> tuple[str, tuple[str, str]]:
    with psycopg.connect(url, autocommit=True) as connection:
        project = create_project(connection, name)
        key = create_key(connection, project)
    canary.plant(url)
    return project, key


def put(server: Server, bucket: str, arn: str) -> str:
    """Make this the bucket's rule; returns why not."""
    rule = {"Id": "all", "TopicArn": arn, "Events": ["s3:ObjectCreated:*"]}
    try:
        server.client().put_bucket_notification_configuration(
            Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [rule]}
        )
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 403 or error.response["Error"]["Code"] != "AccessDenied":
            raise
        return str(error.response["Error"]["Message"])
    return ""


@pytest.mark.parametrize(
    ("arn", "setting"),
    [
        ("arn:tidings:kafka::main:bound-orders", "kafka.clusters.main.topics"),
        ("arn:tidings:kafka::again:bound-orders", "kafka.clusters.main.topics"),
    ],
    ids=["by its name", "by another name of the same brokers"],
)
def test_a_kafka_topic_of_another_project_is_refused_and_nothing_changes(place: Place, arn: str, setting: str) -> None:
    topic = arn.rpartition(":")[2]
    assert put(place.owner, "bucket-of-the-owner", arn) == ""
    told = [kafka_reader.headers(each) for each in kafka_reader.read(place.brokers, topic)]
    assert {each["tidings-project"] for each in told} == {place.owner.project}, "also a test event says whose it is"
    before = place.stranger.everything()
    refusal = put(place.stranger, "bucket-of-a-stranger", arn)
    assert all(word in refusal for word in (arn, place.stranger.project, setting)), refusal
    assert place.owner.project not in refusal
    assert place.stranger.everything() == before
    assert len(kafka_reader.read(place.brokers, topic)) == len(told), "not even a test event"


def test_a_pub_sub_topic_of_another_project_is_refused_and_nothing_changes(place: Place) -> None:
    with grpc.insecure_channel(place.pubsub) as channel:
        publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        for name in ("orders", "open-orders"):
            publisher.create_topic(name=f"projects/acme-things/topics/{name}")
            named = f"projects/acme-things/subscriptions/{name}"
            subscriber.create_subscription(name=named, topic=f"projects/acme-things/topics/{name}")
        before = place.stranger.everything()
        arn = "arn:gcp:pubsub::acme-things:orders"
        refusal = put(place.stranger, "bucket-of-a-stranger", arn)
        assert all(word in refusal for word in (arn, place.stranger.project, "pubsub.projects")), refusal
        nobody = put(place.stranger, "bucket-of-a-stranger", "arn:gcp:pubsub::others-things:orders")
        assert "pubsub.projects" in nobody, "what is not named is for nobody"
        assert place.stranger.everything() == before
        assert put(place.owner, "bucket-of-the-owner", arn) == ""
        assert put(place.stranger, "bucket-of-a-stranger", "arn:gcp:pubsub::acme-things:open-orders") == ""
        for name, project in (("orders", place.owner), ("open-orders", place.stranger)):
            named = f"projects/acme-things/subscriptions/{name}"
            got = subscriber.pull(subscription=named, max_messages=10).received_messages
            assert [each.message.attributes["tidings-project"] for each in got] == [project.project]


def test_a_catalog_s_subscription_is_refused_likewise(place: Place) -> None:
    settings = Settings(
        kafka={"clusters": json.loads(place.clusters)}, bucket_eventing={"destinations": ["kafka"], "projects": "*"}
    )
    arn = "arn:tidings:kafka::main:bound-commits"

    async def subscribe(project: str) -> None:
        async with make_pool(place.owner.database_url, 1) as pool:
            await catalog_subscriptions.put(pool, settings, project, Subscription("all", arn), "R1")

    with pytest.raises(CatalogError, match=r"kafka\.clusters\.main\.topics"):
        asyncio.run(subscribe(place.stranger.project))
    asyncio.run(subscribe(place.owner.project))
    rows = place.owner.query("select project from catalog_subscriptions where destination = %s", arn)
    assert rows == [(place.owner.project,)]
    [told] = kafka_reader.read(place.brokers, "bound-commits")
    assert kafka_reader.headers(told)["tidings-project"] == place.owner.project


def test_a_topic_that_no_setting_speaks_of_is_the_first_project_s(place: Place) -> None:
    arn = "arn:tidings:kafka::again:first"
    assert put(place.stranger, "bucket-of-a-stranger", arn) == ""
    refusal = put(place.owner, "bucket-of-the-owner", arn)
    assert all(word in refusal for word in (arn, place.owner.project, "kafka.clusters.CLUSTER.topics")), refusal
    assert put(place.stranger, "bucket-of-a-stranger", arn) == "", "whose it is may change its rules"
    server = place.owner
    server.query("update lanes set state = 'closed', win = 0, seq = 0 where destination = %s returning id", arn)
    assert put(server, "bucket-of-the-owner", arn) == "", "free again when no rule is left"
    assert "kafka.clusters.again.topics is not set" in server.log
    assert "kafka.clusters.main" not in server.log
    assert "pubsub.projects is not set" not in server.log


def test_of_two_projects_that_come_at_once_one_is_first(place: Place, say: Say) -> None:
    pairs = [(place.stranger, "bucket-of-a-stranger"), (place.owner, "bucket-of-the-owner")]
    for number in range(RACES):
        arn = f"arn:tidings:kafka::again:race-{number}"
        with ThreadPoolExecutor(2) as threads:
            said = list(threads.map(lambda pair, arn=arn: put(*pair, arn), pairs))  # type: ignore[misc]
        assert sorted(map(bool, said)) == [False, True], said
        assert len(place.owner.query("select from lanes where destination = %s", arn)) == 1
    say(f"{RACES} topics, each wanted by two projects at once: one has each")


def test_in_production_nobody_shares_a_topic_by_default_and_the_log_says_so(database_url: str, tmp_path: Path) -> None:
    other, key = another(database_url, "other")
    (tmp_path / "google").mkdir()
    with google_cloud(tmp_path / "google") as google, s3_server(database_url, tmp_path, **google.settings()) as server:
        second = replace(server, project=other, access_key_id=key[0], secret=key[1])
        for each, bucket in ((server, "first-bucket"), (second, "second-bucket")):
            each.client().create_bucket(Bucket=bucket)
        arn = "arn:gcp:pubsub::tenant-project:one"
        assert put(server, "first-bucket", arn) == ""
        published = len(google.published)
        refusal = put(second, "second-bucket", arn)
        assert all(word in refusal for word in (arn, other, "pubsub.projects")), refusal
        assert len(google.published) == published
        assert put(second, "second-bucket", "arn:gcp:pubsub::tenant-project:two") == ""
        assert "pubsub.projects is not set" in server.log
