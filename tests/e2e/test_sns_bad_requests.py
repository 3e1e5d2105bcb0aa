"""A thousand requests that are wrong in every way: each gets a 4xx in SNS's form, and nothing changes."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import random
import string
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import pytest
from s3_server import Server, s3_server

import canary
from conftest import Say, fresh_database
from tidings.local.postgres import Postgres

REQUESTS = 1000
ACTIONS = (
    *("CreateTopic", "DeleteTopic", "ListTopics", "GetTopicAttributes", "SetTopicAttributes", "TagResource", "UntagResource"),
    *("ListTagsForResource", "AddPermission", "RemovePermission", "Subscribe", "ConfirmSubscription", "Unsubscribe"),
    *("ListSubscriptions", "ListSubscriptionsByTopic", "GetSubscriptionAttributes", "SetSubscriptionAttributes", "Publish", ""),
)
NAMES = (
    *("Name", "TopicArn", "ResourceArn", "SubscriptionArn", "Protocol", "Endpoint", "Token", "Label", "NextToken", "Version"),
    *("AttributeName", "AttributeValue", "AuthenticateOnUnsubscribe", "ReturnSubscriptionArn", "Tags.member.1.Key"),
    *("Tags.member.1.Value", "Tags.member.x.Key", "TagKeys.member.1", "AWSAccountId.member.1", "ActionName.member.1"),
    *("Attributes.entry.1.key", "Attributes.entry.1.value", "Attributes.entry.99999999.key", "Tags.member..Key", "Action.x"),
)
WRONG = (
    *(
        "",
        " ",
        "\0",
        "\x7f",
        "\u0130",
        "\ud7ff\U0010ffff",
        "' or 1=1 --",
        "%s",
        "%(arn)s",
        "../..",
        "{}",
        "null",
        "-1",
        "1e999",
    ),
    *("x" * 3000, "arn:aws:sns:us-east-1:123456789012:x", "arn:aws:sns", ":" * 50, "arn:aws:sqs:us-east-1:x:y", "\r\nX: y"),
    *("http://127.0.0.1:1/", "https://[::1", "file:///etc/passwd", "email", "sqs", "<a>&amp;]]>", "whsec_", "true"),
)


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(fresh_database(postgres, "sns_bad"), tmp_path_factory.mktemp("sns_bad")) as running:
        yield running


def signed(server: Server, method: str, query: str, body: bytes) -> dict[str, str]:
    """As boto3 signs for SNS, and as little as that: any bytes may be in the body."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/us-east-1/sns/aws4_request"
    headers = {"host": f"127.0.0.1:{server.port}", "x-amz-date": stamp}
    if method == "POST":
        headers["content-type"] = "application/x-www-form-urlencoded; charset=utf-8"
    names = sorted(headers)
    canonical = [method, "/", query, *(f"{name}:{headers[name]}" for name in names), "", ";".join(names)]
    canonical.append(hashlib.sha256(body).hexdigest())
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    key = f"AWS4{server.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}".encode(), "sha256").hex()
    credential = f"Credential={server.access_key_id}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
    return {**headers, "authorization": f"AWS4-HMAC-SHA256 {credential}"}


def fields(chance: random.Random, good: dict[str, str]) -> list[tuple[str, str]]:
    made = [("Action", chance.choice(ACTIONS))]
    for name in chance.sample(NAMES, chance.randint(0, 8)):
        made.append((name, good[name] if name in good and chance.random() < 0.5 else chance.choice(WRONG)))
    if chance.random() < 0.1:
        made.append(made[-1])
    return made


def noise(chance: random.Random) -> bytes:
    return bytes(chance.choices(string.printable.encode() + bytes(range(128, 256)), k=chance.randint(0, 200)))


def test_a_thousand_bad_requests_get_a_4xx_each_and_change_nothing(server: Server, say: Say) -> None:
    seed = 20261115
    chance = random.Random(seed)
    good = {
        "TopicArn": f"arn:aws:sns:us-east-1:{server.project}:no-such-topic",
        "ResourceArn": f"arn:aws:sns:us-east-1:{server.project}:no-such-topic",
        "SubscriptionArn": f"arn:aws:sns:us-east-1:{server.project}:no-such-topic:{server.project}",
        "Name": "bad name",
        "Protocol": "https",
        "Endpoint": "https://hooks.example/",
        "Token": "ab" * 64,
        "Version": "2010-03-31",
        "AttributeName": "DisplayName",
        "Label": "label",
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    counts: dict[int, int] = {}
    for number in range(REQUESTS):
        method, target, body, headers = request(server, chance, good, number)
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        said = answer.read()
        canary.seen(said)
        counts[answer.status] = counts.get(answer.status, 0) + 1
        assert answer.status < 500, (number, body, said)
        root = ElementTree.fromstring(said)
        if answer.status != 200:
            assert root.tag.endswith("Error") or root.tag.endswith("ErrorResponse"), said
    connection.close()
    say(f"seed {seed}: {sum(counts.values())} requests, by status {dict(sorted(counts.items()))}")
    assert sum(counts.values()) == REQUESTS
    assert counts.get(200, 0) < REQUESTS / 5, "listings, and deletions of what is not there"
    assert server.query("select count(*) from subscriptions") == [(0,)]
    assert server.query("select count(*) from topics") == [(0,)]
    assert "Traceback" not in server.log


Made = tuple[str, str, bytes, dict[str, str]]


def request(server: Server, chance: random.Random, good: dict[str, str], number: int) -> Made:
    makers: list[Callable[[], Made]] = [
        lambda: post(server, urlencode(fields(chance, good)).encode()),
        lambda: post(server, urlencode(fields(chance, good)).encode()),
        lambda: post(server, noise(chance)),
        lambda: link(chance, good),
    ]
    return makers[number % len(makers)]()


def post(server: Server, body: bytes) -> Made:
    return "POST", "/", body, signed(server, "POST", "", body)


def link(chance: random.Random, good: dict[str, str]) -> Made:
    """Without a signature, as the links in messages are."""
    made = [pair for pair in fields(chance, good) if pair[0] != "Action"]
    query = "&".join(f"{quote(name)}={quote(value)}" for name, value in made)
    return "GET", f"/?Action={chance.choice(('ConfirmSubscription', 'Unsubscribe'))}&{query}", b"", {}
