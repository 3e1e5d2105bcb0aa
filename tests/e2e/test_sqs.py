"""Queues through boto3 and the AWS command line, against a server of its own process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from botocore.exceptions import ClientError
from s3_server import REGION, Server, s3_server
from sqs_clients import another_project, code_of, sqs, with_key

import canary
from conftest import fresh_database
from tidings.access.api_keys import SECRET
from tidings.access.macaroons import Caveat
from tidings.local.postgres import Postgres
from tidings.secrets import keyring
from waiting import PATIENCE_SECONDS

OLD = "AWS.SimpleQueueService."


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {
        "TIDINGS_QUEUES__SWEEP_SECONDS": "1",
        "TIDINGS_API__WORKERS": "2",
        "TIDINGS_QUEUES__MAX_PER_PROJECT": "60",
        "TIDINGS_BUCKET_EVENTING__DESTINATIONS": '["pubsub", "queue"]',
    }
    with s3_server(fresh_database(postgres, "sqs"), tmp_path_factory.mktemp("sqs"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    return sqs(server)


@pytest.fixture
def url(client: Any) -> str:
    return str(client.create_queue(QueueName=f"q-{uuid.uuid4().hex}")["QueueUrl"])


def arn_of(client: Any, url: str) -> str:
    return str(client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def count(client: Any, url: str, what: str = "") -> int:
    name = f"ApproximateNumberOfMessages{what}"
    return int(client.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])


def received(client: Any, url: str, **how: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.receive_message(QueueUrl=url, **how).get("Messages", [])
    return found


def until(true: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_queue_is_made_once_and_found_by_name(client: Any, server: Server) -> None:
    made = client.create_queue(QueueName="first", Attributes={"VisibilityTimeout": "5"}, tags={"event-format": "cos"})
    assert made["QueueUrl"] == f"{server.endpoint}/{server.project}/first"
    assert client.create_queue(QueueName="first")["QueueUrl"] == made["QueueUrl"]
    assert client.create_queue(QueueName="first", Attributes={"VisibilityTimeout": "5"})["QueueUrl"] == made["QueueUrl"]
    with pytest.raises(client.exceptions.QueueNameExists) as error:
        client.create_queue(QueueName="first", Attributes={"VisibilityTimeout": "6"})
    assert code_of(error) == "QueueAlreadyExists"
    assert client.get_queue_url(QueueName="first")["QueueUrl"] == made["QueueUrl"]
    assert client.list_queue_tags(QueueUrl=made["QueueUrl"])["Tags"] == {"event-format": "cos"}
    client.delete_queue(QueueUrl=made["QueueUrl"])
    with pytest.raises(client.exceptions.QueueDoesNotExist) as error:
        client.get_queue_url(QueueName="first")
    assert code_of(error) == f"{OLD}NonExistentQueue"


@pytest.mark.parametrize("chosen", ["typo", "S3", "", "nessie", "nessie_cloudevents"])
def test_a_queue_s_tag_cannot_choose_a_format_that_is_not_for_objects(client: Any, url: str, chosen: str) -> None:
    with pytest.raises(ClientError, match="cloudevents, cos, r2, s3") as error:
        client.create_queue(QueueName="badly-tagged", tags={"event-format": chosen})
    assert code_of(error) == "InvalidParameterValue"
    with pytest.raises(client.exceptions.QueueDoesNotExist):
        client.get_queue_url(QueueName="badly-tagged")
    with pytest.raises(ClientError, match="cloudevents, cos, r2, s3") as error:
        client.tag_queue(QueueUrl=url, Tags={"team": "x", "event-format": chosen})
    assert code_of(error) == "InvalidParameterValue"
    assert "Tags" not in client.list_queue_tags(QueueUrl=url)
    client.tag_queue(QueueUrl=url, Tags={"event-format": "r2"})


def test_attributes_are_what_was_set_and_bad_ones_change_nothing(client: Any, url: str, server: Server) -> None:
    wanted = {
        "DelaySeconds": "3",
        "MaximumMessageSize": "2048",
        "MessageRetentionPeriod": "60",
        "ReceiveMessageWaitTimeSeconds": "1",
        "VisibilityTimeout": "7",
    }
    client.set_queue_attributes(QueueUrl=url, Attributes=wanted)
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert wanted.items() <= found.items()
    assert found["QueueArn"] == f"arn:aws:sqs:{REGION}:{server.project}:{url.rpartition('/')[2]}"
    for bad, code in [
        ({"VisibilityTimeout": "1", "DelaySeconds": "901"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "1", "Colour": "red"}, "InvalidAttributeName"),
        ({"VisibilityTimeout": "1", "RedrivePolicy": "{}"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "1", "FifoQueue": "true"}, f"{OLD}UnsupportedOperation"),
        ({"VisibilityTimeout": "-1"}, "InvalidAttributeValue"),
    ]:
        with pytest.raises(ClientError) as error:
            client.set_queue_attributes(QueueUrl=url, Attributes=bad)
        assert code_of(error) == code
    missing = json.dumps({"deadLetterTargetArn": f"{found['QueueArn']}-none", "maxReceiveCount": 1})
    with pytest.raises(ClientError, match="does not exist"):
        client.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "1", "RedrivePolicy": missing})
    assert client.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])["Attributes"] == {
        "VisibilityTimeout": "7"
    }


def test_what_is_sent_is_received_with_attributes_and_deleted(client: Any, url: str, server: Server) -> None:
    attributes = {
        "text": {"DataType": "String", "StringValue": "grüße"},
        "number": {"DataType": "Number.int", "StringValue": "-1.5e3"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    body = 'a "quoted" \t body\r\n with \U0001f600'
    sent = client.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes, MessageSystemAttributes=trace)
    (found,) = received(client, url, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"])
    # boto3 has compared both MD5s by now.
    assert (found["MessageId"], found["Body"], found["MessageAttributes"]) == (sent["MessageId"], body, attributes)
    about = found["Attributes"]
    assert (about["SenderId"], about["ApproximateReceiveCount"]) == (server.project, "1")
    assert about["AWSTraceHeader"].startswith("Root=")
    assert abs(int(about["SentTimestamp"]) / 1000 - time.time()) < 60
    assert (count(client, url), count(client, url, "NotVisible")) == (0, 1)
    assert received(client, url) == []
    client.delete_message(QueueUrl=url, ReceiptHandle=found["ReceiptHandle"])
    assert count(client, url, "NotVisible") == 0


def test_a_receiver_gets_the_attributes_that_it_asks_for(client: Any, url: str) -> None:
    attributes = {name: {"DataType": "String", "StringValue": name} for name in ("a.one", "a.two", "b")}
    client.send_message(QueueUrl=url, MessageBody="m", MessageAttributes=attributes)
    for wanted, names in [(["b"], {"b"}), (["a.*"], {"a.one", "a.two"}), ([".*"], set(attributes)), ([], set())]:
        (found,) = received(client, url, MessageAttributeNames=wanted, VisibilityTimeout=0)
        assert set(found.get("MessageAttributes", {})) == names


def test_a_consumer_that_dies_before_it_deletes_sees_the_message_again(client: Any, url: str) -> None:
    client.send_message(QueueUrl=url, MessageBody="important")
    (first,) = received(client, url, VisibilityTimeout=1)
    until(lambda: count(client, url) == 1)
    (second,) = received(client, url, AttributeNames=["ApproximateReceiveCount"])
    assert (second["MessageId"], second["Body"]) == (first["MessageId"], "important")
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    client.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])  # an old handle: taken, and nothing is deleted
    assert count(client, url, "NotVisible") == 1
    with pytest.raises(client.exceptions.MessageNotInflight):
        client.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=1)
    client.delete_message(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"])
    assert count(client, url, "NotVisible") == 0


def test_visibility_is_changed_for_the_message_in_flight(client: Any, url: str) -> None:
    client.send_message(QueueUrl=url, MessageBody="m")
    (found,) = received(client, url)
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=found["ReceiptHandle"], VisibilityTimeout=0)
    (again,) = received(client, url)
    assert again["MessageId"] == found["MessageId"]


def test_batches_answer_for_each_entry(client: Any, url: str) -> None:
    entries = [{"Id": f"e{n}", "MessageBody": f"m{n}"} for n in range(9)]
    sent = client.send_message_batch(QueueUrl=url, Entries=[*entries, {"Id": "bad", "MessageBody": "x\x07"}])
    assert [each["Id"] for each in sent["Successful"]] == [each["Id"] for each in entries]
    assert [(each["Id"], each["Code"], each["SenderFault"]) for each in sent["Failed"]] == [
        ("bad", "InvalidMessageContents", True)
    ]
    found = received(client, url, MaxNumberOfMessages=10)
    assert [each["Body"] for each in found] == [f"m{n}" for n in range(9)]
    handles = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(found)]
    changed = client.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[{**handles[0], "VisibilityTimeout": 100}, {"Id": "none", "ReceiptHandle": "no", "VisibilityTimeout": 1}],
    )
    assert [each["Id"] for each in changed["Successful"]] == ["0"]
    assert [each["Code"] for each in changed["Failed"]] == ["ReceiptHandleIsInvalid"]
    deleted = client.delete_message_batch(QueueUrl=url, Entries=[*handles, {"Id": "none", "ReceiptHandle": "no"}])
    assert (len(deleted["Successful"]), [each["Id"] for each in deleted["Failed"]]) == (9, ["none"])
    assert count(client, url, "NotVisible") == 0


def test_delays_hold_a_message_back(client: Any, url: str) -> None:
    client.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=2)
    assert (received(client, url), count(client, url, "Delayed")) == ([], 1)
    (found,) = received(client, url, WaitTimeSeconds=20)
    assert found["Body"] == "later"


def test_poison_goes_to_the_dead_letter_queue_and_back(client: Any, url: str) -> None:
    letters = client.create_queue(QueueName=f"dlq-{uuid.uuid4().hex}")["QueueUrl"]
    policy = json.dumps({"deadLetterTargetArn": arn_of(client, letters), "maxReceiveCount": 2})
    client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
    assert client.list_dead_letter_source_queues(QueueUrl=letters)["queueUrls"] == [url]
    for body in ("poison", "also poison"):
        client.send_message(QueueUrl=url, MessageBody=body)
    for _ in range(2):
        assert len(received(client, url, MaxNumberOfMessages=10, VisibilityTimeout=0)) == 2
    client.send_message(QueueUrl=url, MessageBody="good")
    (good,) = received(client, url, MaxNumberOfMessages=10)  # the two are moved out of its way
    assert good["Body"] == "good"
    assert count(client, letters) == 2
    found = received(client, letters, MaxNumberOfMessages=10, VisibilityTimeout=0, MessageSystemAttributeNames=["All"])
    assert {each["Body"] for each in found} == {"poison", "also poison"}
    assert found[0]["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(client, url)
    handle = client.start_message_move_task(SourceArn=arn_of(client, letters))["TaskHandle"]
    until(lambda: count(client, url) == 2)
    assert {each["Body"] for each in received(client, url, MaxNumberOfMessages=10)} == {"poison", "also poison"}
    until(lambda: tasks(client, letters)[0]["Status"] == "COMPLETED")
    (task,) = tasks(client, letters)
    assert (task["ApproximateNumberOfMessagesMoved"], task["ApproximateNumberOfMessagesToMove"]) == (2, 2)
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.cancel_message_move_task(TaskHandle=handle)


def tasks(client: Any, url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.list_message_move_tasks(SourceArn=arn_of(client, url), MaxResults=10)["Results"]
    return found


def test_a_move_task_goes_where_it_is_told_and_says_what_has_no_home(client: Any, url: str) -> None:
    letters = client.create_queue(QueueName=f"dlq-{uuid.uuid4().hex}")["QueueUrl"]
    with pytest.raises(ClientError, match="Dead Letter Queue"):
        client.start_message_move_task(SourceArn=arn_of(client, letters))
    policy = json.dumps({"deadLetterTargetArn": arn_of(client, letters), "maxReceiveCount": 1})
    client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
    client.send_message(QueueUrl=letters, MessageBody="sent to it directly")
    client.start_message_move_task(SourceArn=arn_of(client, letters))
    until(lambda: tasks(client, letters)[0]["Status"] == "FAILED")
    assert tasks(client, letters)[0]["FailureReason"] == "CouldNotDetermineMessageSource"
    assert count(client, letters) == 1
    for n in range(5):
        client.send_message(QueueUrl=letters, MessageBody=str(n))
    other = client.create_queue(QueueName=f"o-{uuid.uuid4().hex}")["QueueUrl"]
    client.start_message_move_task(
        SourceArn=arn_of(client, letters), DestinationArn=arn_of(client, other), MaxNumberOfMessagesPerSecond=1
    )
    with pytest.raises(client.exceptions.UnsupportedOperation):
        client.start_message_move_task(SourceArn=arn_of(client, letters))
    until(lambda: count(client, other) >= 1)
    cancelled = client.cancel_message_move_task(TaskHandle=tasks(client, letters)[0]["TaskHandle"])
    assert 1 <= cancelled["ApproximateNumberOfMessagesMoved"] < 6
    assert count(client, letters) + count(client, other) == 6


def test_a_long_poll_wakes_when_a_message_comes_by_whichever_way(client: Any, url: str, server: Server) -> None:
    for way in ("api", "database"):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(received, client, url, WaitTimeSeconds=20)
            time.sleep(2)
            assert not waiting.done()
            if way == "api":
                client.send_message(QueueUrl=url, MessageBody=way)
            else:  # as the stream's workers do, in another process
                project, name = url.split("/")[-2:]
                server.query(
                    "insert into queue_messages (pile, body, sender, visible_at)"
                    " select pile, 'database', 'stream', clock_timestamp() from queues where project = %s and name = %s"
                    " returning 1",
                    *(project, name),
                )
            (found,) = waiting.result(60)
            assert found["Body"] == way


def test_a_long_poll_ends_empty_after_its_time_and_holds_no_connection(client: Any, url: str) -> None:
    client.set_queue_attributes(QueueUrl=url, Attributes={"ReceiveMessageWaitTimeSeconds": "3"})
    began = time.monotonic()
    with ThreadPoolExecutor(24) as pool:
        waiting = [pool.submit(received, client, url) for _ in range(24)]
        time.sleep(1)
        assert client.get_queue_url(QueueName=url.rpartition("/")[2])  # the pools of two workers have 16 each; all would wait
        assert [each.result(60) for each in waiting] == [[]] * 24
    assert time.monotonic() - began >= 3


def test_nothing_is_received_for_a_client_that_has_gone(client: Any, url: str, server: Server) -> None:
    impatient = sqs(server, read_timeout=1)
    with pytest.raises(Exception, match="timeout"):
        received(impatient, url, WaitTimeSeconds=20)
    time.sleep(1)
    client.send_message(QueueUrl=url, MessageBody="for somebody who is there")
    time.sleep(1)
    assert (count(client, url), count(client, url, "NotVisible")) == (1, 0)


def test_eight_receivers_get_each_message_once(client: Any, url: str) -> None:
    for n in range(20):
        client.send_message_batch(QueueUrl=url, Entries=[{"Id": f"{m}", "MessageBody": f"{n * 10 + m}"} for m in range(10)])
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def consume() -> None:
        while found := received(client, url, MaxNumberOfMessages=5, VisibilityTimeout=300):
            with lock:
                seen.update(each["Body"] for each in found)

    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(consume) for _ in range(8)]:
            each.result(120)
    assert seen == Counter({str(n): 1 for n in range(200)})


def test_a_purge_empties_a_queue_and_not_twice_in_a_minute(client: Any, url: str, server: Server) -> None:
    client.send_message(QueueUrl=url, MessageBody="gone")
    (found,) = received(client, url)
    client.purge_queue(QueueUrl=url)
    client.send_message(QueueUrl=url, MessageBody="new")
    client.delete_message(QueueUrl=url, ReceiptHandle=found["ReceiptHandle"])
    assert [each["Body"] for each in received(client, url, MaxNumberOfMessages=10)] == ["new"]
    with pytest.raises(client.exceptions.PurgeQueueInProgress):
        client.purge_queue(QueueUrl=url)
    until(lambda: not server.query("select from queue_messages where body = 'gone'"))  # swept


def test_what_is_older_than_the_retention_is_neither_received_nor_kept(client: Any, url: str, server: Server) -> None:
    client.set_queue_attributes(QueueUrl=url, Attributes={"MessageRetentionPeriod": "60"})
    for body in ("old", "new"):
        client.send_message(QueueUrl=url, MessageBody=f"{body} {url}")
    server.query("update queue_messages set id = uuidv7('-61 s') where body = %s returning 1", f"old {url}")
    assert [each["Body"] for each in received(client, url, MaxNumberOfMessages=10)] == [f"new {url}"]
    until(lambda: not server.query("select from queue_messages where body = %s", f"old {url}"))
    assert server.query("select count(*) from queue_messages where body = %s", f"new {url}") == [(1,)]


def test_another_project_s_queue_is_denied_unless_granted(client: Any, url: str, server: Server) -> None:
    project, stranger = another_project(server, f"p-{uuid.uuid4().hex}")
    missing = url + "-none"

    def attempts(queue_url: str) -> list[Callable[[], Any]]:
        return [
            lambda: stranger.send_message(QueueUrl=queue_url, MessageBody="m"),
            lambda: stranger.receive_message(QueueUrl=queue_url),
            lambda: stranger.get_queue_attributes(QueueUrl=queue_url),
            lambda: stranger.get_queue_url(QueueName=queue_url.rpartition("/")[2], QueueOwnerAWSAccountId=server.project),
            lambda: stranger.delete_queue(QueueUrl=queue_url),
            lambda: stranger.purge_queue(QueueUrl=queue_url),
            lambda: stranger.add_permission(QueueUrl=queue_url, Label="l", AWSAccountIds=[project], Actions=["*"]),
            lambda: stranger.start_message_move_task(SourceArn=arn_of(client, url)),
        ]

    for queue_url in (url, missing):
        for attempt in attempts(queue_url):
            with pytest.raises(ClientError) as error:
                attempt()
            assert code_of(error) == "AccessDenied"
    assert stranger.list_queues().get("QueueUrls", []) == []
    client.add_permission(QueueUrl=url, Label="senders", AWSAccountIds=[project], Actions=["SendMessage"])
    sent = stranger.send_message(QueueUrl=url, MessageBody="from next door")
    assert stranger.get_queue_url(QueueName=url.rpartition("/")[2], QueueOwnerAWSAccountId=server.project)["QueueUrl"] == url
    with pytest.raises(ClientError) as error:
        received(stranger, url)
    assert code_of(error) == "AccessDenied"
    client.add_permission(QueueUrl=url, Label="readers", AWSAccountIds=[project], Actions=["ReceiveMessage"])
    (found,) = received(stranger, url, AttributeNames=["SenderId"])
    assert (found["MessageId"], found["Attributes"]["SenderId"]) == (sent["MessageId"], project)
    stranger.delete_message(QueueUrl=url, ReceiptHandle=found["ReceiptHandle"])
    policy = json.loads(client.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"])
    assert [each["Sid"] for each in policy["Statement"]] == ["readers", "senders"]
    client.remove_permission(QueueUrl=url, Label="senders")
    with pytest.raises(ClientError) as error:
        stranger.send_message(QueueUrl=url, MessageBody="m")
    assert code_of(error) == "AccessDenied"
    with pytest.raises(ClientError):
        stranger.delete_queue(QueueUrl=url)


def test_a_key_does_what_it_was_made_for_and_no_more(client: Any, url: str, server: Server) -> None:
    client.send_message(QueueUrl=url, MessageBody="m")
    everything: dict[str, Callable[[Any], Any]] = {
        "ManageQueues": lambda who: who.tag_queue(QueueUrl=url, Tags={"a": "b"}),
        "SendMessage": lambda who: who.send_message(QueueUrl=url, MessageBody="m"),
        "ReceiveMessage": lambda who: who.receive_message(QueueUrl=url, VisibilityTimeout=0),
    }
    for allowed in everything:
        who = with_key(server, allowed)
        assert who.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        for action, attempt in everything.items():
            if action == allowed:
                attempt(who)
            else:
                with pytest.raises(ClientError) as error:
                    attempt(who)
                assert code_of(error) == "AccessDenied"
    for who in (with_key(server, "read", "write"), with_key(server, limit=Caveat(buckets=frozenset({"photos"})))):
        for attempt in (*everything.values(), lambda who: who.list_queues(), lambda who: who.create_queue(QueueName="mine")):
            with pytest.raises(ClientError) as error:
                attempt(who)
            assert code_of(error) == "AccessDenied"


def test_a_key_that_is_older_than_the_actions_does_not_have_them(url: str, server: Server) -> None:
    key, secret = "AKIAOLDERTHANAPIKEYS", "an old secret"
    with psycopg.connect(server.database_url) as connection:
        sealed = keyring.of_process().seal(connection, SECRET, key, secret.encode())
        connection.execute(
            "insert into access_keys (access_key_id, sealed_secret, project_id)"
            " select %s, %s, id from projects where public_id = %s",
            [key, sealed, server.project],
        )
    with pytest.raises(ClientError) as error:
        sqs(server, key, secret).send_message(QueueUrl=url, MessageBody="m")
    assert code_of(error) == "AccessDenied"


def test_limits_are_held_and_said(client: Any, url: str, server: Server) -> None:
    largest = "é" * 131_072
    assert client.send_message(QueueUrl=url, MessageBody=largest)["MessageId"]
    (found,) = received(client, url)
    assert found["Body"] == largest
    attributes = {f"a{n}": {"DataType": "String", "StringValue": "v"} for n in range(11)}
    two = [{"Id": "1", "MessageBody": "x" * 200_000}, {"Id": "2", "MessageBody": "x" * 200_000}]
    same = [{"Id": "1", "MessageBody": "x"}] * 2
    for attempt, code in [
        (lambda: client.send_message(QueueUrl=url, MessageBody=largest + "x"), "InvalidParameterValue"),
        (lambda: client.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attributes), "InvalidParameterValue"),
        (lambda: client.send_message(QueueUrl=url, MessageBody="\x00"), "InvalidMessageContents"),
        (lambda: client.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g"), f"{OLD}UnsupportedOperation"),
        (lambda: client.send_message_batch(QueueUrl=url, Entries=two), f"{OLD}BatchRequestTooLong"),
        (lambda: client.send_message_batch(QueueUrl=url, Entries=same), f"{OLD}BatchEntryIdsNotDistinct"),
        (lambda: client.send_message_batch(QueueUrl=url, Entries=[]), f"{OLD}EmptyBatchRequest"),
        (lambda: client.send_message_batch(QueueUrl=url, Entries=same * 6), f"{OLD}TooManyEntriesInBatchRequest"),
        (lambda: client.receive_message(QueueUrl=url, MaxNumberOfMessages=11), "InvalidParameterValue"),
        (lambda: client.receive_message(QueueUrl=url, WaitTimeSeconds=21), "InvalidParameterValue"),
        (lambda: client.delete_message(QueueUrl=url, ReceiptHandle="x"), "ReceiptHandleIsInvalid"),
        (lambda: client.delete_message(QueueUrl="http://x/y", ReceiptHandle="x"), "InvalidAddress"),
        (lambda: client.create_queue(QueueName="a.fifo"), f"{OLD}UnsupportedOperation"),
        (lambda: client.create_queue(QueueName="a b"), "InvalidParameterValue"),
        (lambda: client.create_queue(QueueName="a" * 81), "InvalidParameterValue"),
    ]:
        with pytest.raises(ClientError) as error:
            attempt()
        assert code_of(error) == code
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    project, other = another_project(server, f"p-{uuid.uuid4().hex}")
    for n in range(60):
        other.create_queue(QueueName=f"many-{n:02}")
    with pytest.raises(other.exceptions.OverLimit):
        other.create_queue(QueueName="one-too-many")
    page = other.list_queues(QueueNamePrefix="many-", MaxResults=50)
    assert len(page["QueueUrls"]) == 50
    rest = other.list_queues(QueueNamePrefix="many-", MaxResults=50, NextToken=page["NextToken"])
    assert (len(rest["QueueUrls"]), "NextToken" in rest) == (10, False)
    assert project in rest["QueueUrls"][-1]


def test_the_commands_of_the_guide_do_what_it_says(server: Server) -> None:
    guide = (Path(__file__).parent.parent.parent / "docs" / "queues.md").read_text()
    shown = "".join(re.findall(r"```console\n(.*?)```", guide, re.DOTALL))
    script = "set -eux\n" + re.sub(r"^\$ ", "", shown, flags=re.MULTILINE)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**server.environment(), "ENDPOINT": server.endpoint, "PATH": path}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().count("s3:TestEvent") == 2  # in the queue, and in that of the dead letters
    assert (
        server.query("select q.name from queue_messages m join queues q using (pile) where q.name in ('work', 'letters')") == []
    )


def test_the_operator_sees_what_is_in_each_queue(client: Any, url: str, server: Server) -> None:
    for delay in (0, 0, 900):
        client.send_message(QueueUrl=url, MessageBody="m", DelaySeconds=delay)
    received(client, url)
    environment = {**os.environ, "TIDINGS_DATABASE__URL": server.database_url}

    def listed(*more: str) -> str:
        command = [sys.executable, "-m", "tidings", "queues", "list", "--project", "tests", *more]
        said = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60).stdout.decode()
        canary.seen(said)
        return said

    (row,) = [each for each in json.loads(listed("--json")) if each["name"] == url.rpartition("/")[2]]
    assert (row["visible"], row["in_flight"], row["delayed"], row["dead_letter"]) == (1, 1, 1, None)
    assert row["oldest_seconds"] < 600
    (line,) = [line for line in listed().splitlines() if row["name"] in line]
    assert line.split()[:6] == [server.project, row["name"], "waiting", "1", "1", "1"]


def test_who_sends_may_name_its_own_project_and_no_other(client: Any, url: str, server: Server) -> None:
    def named(project: str) -> dict[str, Any]:
        return {"MessageBody": "m", "MessageAttributes": {"tidings-project": {"DataType": "String", "StringValue": project}}}

    client.send_message(QueueUrl=url, **named(server.project))
    with pytest.raises(ClientError, match="names the sender's project") as error:
        client.send_message(QueueUrl=url, **named(str(uuid.uuid4())))
    assert code_of(error) == "InvalidParameterValue"
    [failed] = client.send_message_batch(QueueUrl=url, Entries=[{"Id": "1", **named(str(uuid.uuid4()))}])["Failed"]
    assert failed["Code"] == "InvalidParameterValue"
    assert count(client, url) == 1
