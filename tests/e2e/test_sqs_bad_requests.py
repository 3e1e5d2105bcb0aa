"""A thousand requests to the SQS front that no SDK would send: each is answered with a 4xx, or does what it says."""

from __future__ import annotations

import http.client
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from s3_server import REGION, Server, s3_server
from sqs_clients import sqs

import canary
from conftest import Say, fresh_database
from tidings.api.sqs import OPERATIONS
from tidings.local.postgres import Postgres
from traffic import seeded

TABLES = ("queues", "queue_messages", "queue_grants", "queue_moves")


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"TIDINGS_QUEUES__SWEEP_SECONDS": "1000", "TIDINGS_API__WORKERS": "1"}
    with s3_server(fresh_database(postgres, "sqs_bad"), tmp_path_factory.mktemp("sqs"), **settings) as running:
        yield running


def state(server: Server) -> list[Any]:
    return [
        server.query(f"select md5(coalesce(string_agg(t::text, ',' order by t::text), '')) from {table} t") for table in TABLES
    ]


class Wire:
    """Signs whatever it is given, and sends it on one connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def post(self, operation: str, body: bytes, path: str = "/") -> tuple[int, dict[str, str], Any]:
        headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{operation}"}
        request = AWSRequest("POST", f"{self._server.endpoint}{path}", headers, body)
        SigV4Auth(Credentials(self._server.access_key_id, self._server.secret), "sqs", REGION).add_auth(request)
        self._connection.request("POST", path, body, dict(request.headers.items()))
        response = self._connection.getresponse()
        answer = response.read()
        found = {name.lower(): value for name, value in response.getheaders()}
        canary.answered(found, answer)
        return response.status, found, json.loads(answer)


DEEP = json.loads("[" * 20 + "]" * 20)
NASTY: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        11,
        10**18,
        10**400,
        1.5,
        "",
        "x",
        "\x00",
        "\ud800",
        "a b",
        "é" * 300,
        "x" * 300_000,
        "%s",
        "'; drop table",
    ),
    *(
        [],
        [None],
        ["All"],
        ["x"] * 12,
        [[]],
        {},
        {"": ""},
        {"a": None},
        {"DataType": "String"},
        {"a": {"DataType": "Binary"}},
        DEEP,
    ),
    *(
        [{"Id": "1"}],
        [{"Id": "1"}, {"Id": "1"}],
        [{"Id": 1}],
        [{"Id": "a", "MessageBody": 5}],
        [{"Id": "a", "ReceiptHandle": "AAAA"}],
    ),
    *(
        {"VisibilityTimeout": "x"},
        {"RedrivePolicy": "{"},
        {"RedrivePolicy": '{"deadLetterTargetArn": 1, "maxReceiveCount": []}'},
    ),
    *("http://h/p/q", "https://[::1", "arn:aws:sqs:us-east-1:123456789012:q", "arn:aws:sqs:mars", "2" * 5000, "A" * 54 + "=="),
]
BROKEN = [
    b"",
    b"{",
    b"[]",
    b"1",
    b'{"a": 1, "a": 2}',
    b'{"QueueName": NaN}',
    b"\xff",
    b'{"a":' * 5000,
    b"[" * 100_000,
    b'"' + b"x" * 1000,
]


NASTY += [
    *({"a": {"DataType": "Number", "StringValue": "1e5x"}}, {"aws.a": {"DataType": "String", "StringValue": "x"}}),
    *(
        {"a": {"DataType": "Binary", "BinaryValue": "?"}},
        {"a": {"DataType": "String.\x01", "StringValue": "x"}},
        {"a" * 300: "x"},
    ),
    *(
        {"VisibilityTimeout": "٣"},
        {"RedrivePolicy": "[" * 5000},
        {"FifoQueue": "true"},
        {"Colour": "x"},
        {"k": "v"},
        {"aws:x": "y"},
    ),
    *(
        [{"Id": "a", "MessageBody": "x" * 200_000}, {"Id": "b", "MessageBody": "y" * 200_000}],
        [{"Id": "a", "MessageBody": "\x07"}],
    ),
    *([{"Id": "a b", "MessageBody": "x"}], [{"Id": "a", "MessageBody": "m", "Extra": 1}], [{"Id": str(n)} for n in range(11)]),
    *(
        [{"Id": "a", "ReceiptHandle": "A" * 54, "VisibilityTimeout": 10**9}],
        ["SendMessage"],
        ["*"],
        ["QueueArn", "Colour"],
        [""],
    ),
    *(1, 5, 900, 43_201, "fine", "RUNNING", "00000000-0000-0000-0000-000000000000"),
]
_LISTS = (
    "AttributeNames",
    "MessageAttributeNames",
    "MessageSystemAttributeNames",
    "AWSAccountIds",
    "Actions",
    "TagKeys",
    "Entries",
)
_OBJECTS = ("Attributes", "tags", "Tags", "MessageAttributes", "MessageSystemAttributes")
_NUMBERS = ("DelaySeconds", "MaxResults", "MaxNumberOfMessages", "VisibilityTimeout", "MaxNumberOfMessagesPerSecond")


def _fits(name: str, value: Any) -> bool:
    kind = list if name in _LISTS else dict if name in _OBJECTS else int if name in _NUMBERS else str
    return isinstance(value, kind)


def asked(draw: random.Random, operation: str, url: str, arn: str) -> bytes:
    if draw.random() < 0.1:
        return draw.choice(BROKEN)
    good = {"QueueUrl": url, "QueueName": "fine", "SourceArn": arn, "ReceiptHandle": "A" * 54, "MessageBody": "m", "Label": "l"}
    names = sorted(OPERATIONS[operation].parameters)
    values = {name: good[name] for name in names if name in good}
    for name in draw.sample(names, min(draw.choice([1, 1, 2, 9]), len(names))):
        if name != "QueueUrl" or draw.random() < 0.2:
            values[name] = draw.choice([each for each in NASTY if _fits(name, each)] if draw.random() < 0.8 else NASTY)
    values.pop("WaitTimeSeconds", None)  # it would be waited for
    if draw.random() < 0.1:
        values[draw.choice(["MessageGroupId", "unheard of", "\x00"])] = draw.choice(NASTY)
    return json.dumps(values).encode()


def test_no_request_breaks_the_server_and_a_refused_one_changes_nothing(server: Server, say: Say) -> None:
    seed = seeded()
    draw = random.Random(seed)
    client, wire = sqs(server), Wire(server)
    url = client.create_queue(QueueName="kept")["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    client.send_message(QueueUrl=url, MessageBody="kept")
    harmless = sorted(set(OPERATIONS) - {"DeleteQueue", "PurgeQueue"})
    before, seen = state(server), Counter[int]()
    for _ in range(1000):
        operation = draw.choice(harmless)
        body = asked(draw, operation, url, arn)
        status, headers, answer = wire.post(operation, body)
        seen[status] += 1
        assert status < 500, (seed, operation, body[:1000], answer)
        if status != 200:
            assert answer["message"], (seed, operation, body[:1000])
            assert answer["__type"].startswith("com.amazonaws.sqs#")
            assert headers["x-amzn-query-error"].endswith(";Sender")
            assert state(server) == before, (seed, operation, body[:1000])
        before = state(server)
    say(f"seed {seed}: {dict(sorted(seen.items()))}")
    assert seen[400] > 400
    assert seen[200] > 20
    assert client.get_queue_url(QueueName="kept")["QueueUrl"] == url


def test_what_is_asked_of_no_operation_is_said_to_be_unknown(server: Server) -> None:
    wire = Wire(server)
    for operation in ("", "CreateQueues", "createQueue", "é"[:0] + "../SendMessage"):
        status, headers, answer = wire.post(operation, b"{}")
        assert (status, headers["x-amzn-query-error"]) == (400, "UnknownOperationException;Sender")
        assert "CreateQueue" in answer["message"]


def test_a_document_of_depth_33_and_a_body_that_is_too_long_are_refused(server: Server) -> None:
    wire = Wire(server)
    for depth, code in ((31, "UnsupportedOperation"), (33, "SerializationException")):
        status, _, answer = wire.post("ListQueues", b'{"a":' + b"[" * depth + b"]" * depth + b"}")
        assert (status, answer["__type"]) == (400, f"com.amazonaws.sqs#{code}")
    status, _, answer = wire.post("ListQueues", b" " * (2 * 1024 * 1024 + 1))
    assert (status, answer["__type"]) == (413, "com.amazonaws.sqs#RequestEntityTooLarge")


def test_a_key_that_is_not_known_and_a_wrong_secret_are_named_as_aws_names_them(server: Server) -> None:
    for key, secret, code in (
        ("AKIANOBODY", server.secret, "InvalidClientTokenId"),
        (server.access_key_id, "wrong", "SignatureDoesNotMatch"),
    ):
        with pytest.raises(Exception, match=code):
            sqs(server, key, secret).list_queues()
