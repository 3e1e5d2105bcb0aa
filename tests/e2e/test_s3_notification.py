"""Notification configuration over S3: entity tags, a hundred rules, what is counted, and documents that nobody would send."""

from __future__ import annotations

import random
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest
from botocore.exceptions import ClientError
from google.pubsub_v1 import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from s3_server import Answer, Server, request, s3_server
from test_s3_metrics import figures

from conftest import Say, fresh_database
from tidings.errors import CallerError
from tidings.local.postgres import Postgres
from tidings.local.pubsub import PubSubServer, running
from tidings.rules.xml import parse
from traffic import seeded

TOPIC = "projects/my-gcp-project/topics/my-bucket-events"
ARN = "arn:gcp:pubsub::my-gcp-project:my-bucket-events"
SEED = (Path(__file__).parents[1] / "golden" / "notification" / "seed.xml").read_bytes()
EMPTY = b"<NotificationConfiguration/>"
FUZZED, AT_ONCE = 2000, 8


@pytest.fixture(scope="module")
def pubsub() -> Iterator[PubSubServer]:
    with running() as server, grpc.insecure_channel(server.address) as channel:
        PublisherClient(transport=PublisherGrpcTransport(channel=channel)).create_topic(name=TOPIC)
        yield server


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory, pubsub: PubSubServer) -> Iterator[Server]:
    url, folder = fresh_database(postgres, "s3_notification"), tmp_path_factory.mktemp("s3")
    with s3_server(url, folder, TIDINGS_PUBSUB__EMULATOR_HOST=pubsub.address) as running:
        yield running


def made(server: Server, name: str) -> str:
    server.client().create_bucket(Bucket=name)
    return name


def put(server: Server, bucket: str, body: bytes, **headers: str) -> Answer:
    return request(server, "PUT", f"/{bucket}", "notification=", body, {k.replace("_", "-"): v for k, v in headers.items()})


def get(server: Server, bucket: str) -> Answer:
    return request(server, "GET", f"/{bucket}", "notification=")


# entity tags


def test_a_configuration_is_not_overwritten_by_who_has_not_seen_it(server: Server) -> None:
    bucket = made(server, "etags")
    none = get(server, bucket).headers["etag"]
    first = put(server, bucket, SEED, if_match=none)
    assert first.status == 200
    etag = get(server, bucket).headers["etag"]
    assert first.headers["etag"] == etag != none
    for late in (none, '"something else"', f"{none}, {none}"):
        refused = put(server, bucket, EMPTY, if_match=late)
        assert (refused.status, refused.error["Code"]) == (412, "PreconditionFailed")
    assert b"MyNotificationConfig" in get(server, bucket).body
    assert put(server, bucket, EMPTY, if_match=f"{none}, {etag}").status == 200
    assert put(server, bucket, SEED, if_match="*").status == 200
    assert put(server, bucket, EMPTY).status == 200, "who does not ask is not held up"


def test_of_many_who_change_what_they_have_read_each_finds_the_others_changes(server: Server) -> None:
    bucket = made(server, "together")

    def add(number: int) -> None:
        """Read, add a rule, put; again if somebody was quicker."""
        own = SEED.replace(b"MyNotificationConfig", b"rule-%d" % number).replace(b"logs/", b"%d/" % number)
        own = own[own.index(b"<TopicConfiguration>") : own.index(b"</NotificationConfiguration>")]
        for _ in range(100):
            seen = get(server, bucket)
            body = seen.body.replace(b"</NotificationConfiguration>", own + b"</NotificationConfiguration>")
            answer = put(server, bucket, body, if_match=seen.headers["etag"])
            if answer.status == 200:
                return
            assert answer.status == 412, answer.body
        raise AssertionError("never")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(12)))
    rules = parse(get(server, bucket).body)
    assert {rule.config_id for rule in rules} == {f"rule-{number}" for number in range(12)}


# as much as there may be


def test_a_hundred_rules_are_kept_and_given_back_in_their_order(server: Server, pubsub: PubSubServer) -> None:
    bucket, s3 = made(server, "hundred"), server.client()
    rules = [
        {
            "Id": f"rule {number}",
            "TopicArn": ARN,
            "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:Delete"],
            "Filter": {
                "Key": {"FilterRules": [{"Name": "Prefix", "Value": f"{number:03}/"}, {"Name": "suffix", "Value": ".x"}]}
            },
        }
        for number in range(100)
    ]
    before = pubsub.stats()[TOPIC]["published"]
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={"TopicConfigurations": rules})
    assert pubsub.stats()[TOPIC]["published"] == before + 1, "one destination, one test event"
    found = s3.get_bucket_notification_configuration(Bucket=bucket)["TopicConfigurations"]
    assert [(rule["Id"], rule["TopicArn"], rule["Events"]) for rule in found] == [
        (rule["Id"], rule["TopicArn"], rule["Events"]) for rule in rules
    ]
    more = {"TopicConfigurations": [*rules, {**rules[0], "Id": "more", "Filter": {"Key": {"FilterRules": []}}}]}
    with pytest.raises(ClientError, match="A bucket has 100 at most"):
        s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=more)
    s3.put_object(Bucket=bucket, Key="042/a.x", Body=b"x")
    wanted = "select config_id from changes join bucket_eventing_configs on rules = rule::text where bucket = %s"
    assert server.query(wanted, bucket) == [("rule 42",)]


def test_a_form_upload_is_an_event_of_its_own(server: Server) -> None:
    bucket, s3 = made(server, "forms"), server.client(signature_version="s3v4")
    post = s3.generate_presigned_post(bucket, "by-form.txt")
    boundary = "tidings-boundary"
    fields = [*post["fields"].items()]
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields]
    last = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nhello\r\n--{boundary}--\r\n'
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    urllib.request.urlopen(urllib.request.Request(post["url"], "".join([*parts, last]).encode(), headers), timeout=60).close()
    assert server.query("select event from changes where bucket = %s", bucket) == [("ObjectCreated:Post",)]


# rules that cannot be read


def test_without_the_right_to_read_the_rules_a_put_succeeds_and_is_transmitted(postgres: Postgres, tmp_path: Path) -> None:
    url, role = fresh_database(postgres, "s3_without_rules"), "s3_without_rules"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create role {role} login password 'only-for-tests'".encode())
        connection.execute(f"grant all on all tables in schema public to {role}".encode())
        connection.execute(f"grant all on all sequences in schema public to {role}".encode())
        connection.execute(f"revoke select on bucket_eventing_configs from {role}".encode())
    limited = psycopg.conninfo.make_conninfo(url, user=role, password="only-for-tests")
    with s3_server(url, tmp_path, TIDINGS_DATABASE__URL=limited) as server:
        bucket, s3 = made(server, "unreadable"), server.client()
        s3.put_object(Bucket=bucket, Key="key", Body=b"x")
        assert s3.get_object(Bucket=bucket, Key="key")["Body"].read() == b"x"
        s3.delete_object(Bucket=bucket, Key="key")
        assert server.query("select event, rules from changes order by seq") == [
            ("ObjectCreated:Put", "*"),
            ("ObjectRemoved:Delete", "*"),
        ]
        assert server.log.count("permission denied for table bucket_eventing_configs") == 2
        assert figures(server)["tidings_transmit_decisions_total{decision=unread}"] == 2


# what is counted


def test_decisions_and_lookups_are_counted(server: Server) -> None:
    bucket, s3 = made(server, "counted"), server.client()
    assert put(server, bucket, SEED).status == 200
    before = figures(server)
    for key in ("logs/a.txt", "logs/b.txt", "data/c.txt"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "logs/a.txt"}, {"Key": "absent"}]})
    after = figures(server)
    grown = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
    assert grown["tidings_transmit_decisions_total{decision=transmitted}"] == 3
    assert grown["tidings_transmit_decisions_total{decision=unmatched}"] == 1
    assert grown["tidings_rule_lookups_total{source=database}"] == 4
    assert after["tidings_notification_configurations{}"] >= 1


# what nobody would send


WORDS = (
    *(b"<Id>", b"</Id>", b"<Topic>", b"<Event>", b"<Filter>", b"<S3Key>", b"<FilterRule>", b"<Name>", b"<Value>", b"prefix"),
    *(
        b"<TopicConfiguration>",
        b"</TopicConfiguration>",
        b"<QueueConfiguration/>",
        b"<CloudFunctionConfiguration/>",
        b"<!--x-->",
    ),
    *(
        b"<![CDATA[x]]>",
        b"<!DOCTYPE a>",
        b"&lt;",
        b"&#0;",
        b"&#x1F98A;",
        b"&amp;",
        b"\0",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"s3:*",
    ),
    *(b"s3:ObjectCreated:Put", b"s3:TestEvent", ARN.encode(), b"arn:aws:sqs:us-east-1:1:q", b"x" * 1100, b"]]>", b"<a " * 50),
    *(b' xmlns="urn:x"', b"%s", b"'; drop table projects; --", "ž🦊".encode(), b"\r\n", b"  ", b"<?xml version='1.1'?>"),
)


def mutated(chance: random.Random) -> bytes:
    body = bytearray(chance.choice([SEED, SEED, SEED, EMPTY, SEED * 2]))
    for _ in range(chance.choice([1, 1, 2, 3, 8])):
        at, length = chance.randrange(len(body) + 1), chance.choice([0, 0, 1, 4, 20, 100])
        match chance.randrange(4):
            case 0:
                body[at : at + length] = chance.choice(WORDS)
            case 1:
                body[at : at + length] = b""
            case 2:
                body[at:at] = body[chance.randrange(len(body) + 1) :][:length]
            case _:
                body[at : at + 1] = chance.randbytes(chance.choice([1, 1, 3]))
    return bytes(body)


def good(body: bytes) -> Any:
    """The rules, if this is a document that may be taken; None for one that must be refused."""
    with suppress(CallerError):
        return parse(body)
    return None


def test_two_thousand_fuzzed_documents_get_a_4xx_or_are_good_and_change_nothing_else(server: Server, say: Say) -> None:
    seed = seeded()
    chance = random.Random(seed)
    documents = [mutated(chance) for _ in range(FUZZED)]
    buckets = [made(server, f"fuzzed-{number}") for number in range(AT_ONCE)]
    statuses: Counter[int] = Counter()

    def send(lane: int) -> None:
        bucket, config = buckets[lane], put(server, buckets[lane], SEED).headers["etag"]
        rules = parse(SEED)
        for body in documents[lane::AT_ONCE]:
            answer = put(server, bucket, body)
            statuses[answer.status] += 1
            wanted = good(body)
            there = wanted is not None and all(rule.destination.name == TOPIC for rule in wanted)
            assert (answer.status == 200) is there, (seed, body, answer.body)
            assert answer.status in (200, 400), (seed, body, answer.body)
            if answer.status == 200:
                rules, config = wanted, answer.headers["etag"]
            now = get(server, bucket)
            assert (parse(now.body), now.headers["etag"]) == (rules, config), (seed, body)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(send, range(AT_ONCE)))
    assert server.process.poll() is None
    assert statuses[200] > 20
    say(f"seed {seed}: {dict(statuses)}")
