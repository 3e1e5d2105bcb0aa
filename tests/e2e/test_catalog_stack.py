"""From a commit to its message: what a catalog says goes through the same Spark pipeline, by subscriptions with filters."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import psycopg
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat

import hostile_cel
import kafka_reader
from conftest import Running, running_stack
from tidings.access import api_keys
from tidings.local import topics
from traffic import tidings
from waiting import until

TOPIC = "projects/tidings-test/topics/catalog"
IN_COLUMNS = "type == 'CONTENT_STORED' && contentKey[0] == 'sales'"
OVER_BATCHES = "contentKey.exists_one(part, part == 'sales') && type == 'CONTENT_REMOVED'"


class Client:
    """A plain client of the REST API."""

    def __init__(self, stack: Running) -> None:
        self._url = f"{stack.ready['s3']}/-/catalog"
        with psycopg.connect(stack.ready["database"]) as connection:
            self._key = api_keys.create(connection, stack.ready["project"]).api_key

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or "null")

    def subscribe(self, name: str, destination: str, **wanted: Any) -> Any:
        return self("PUT", f"subscriptions/{name}", {"destination": destination, **wanted})

    def commit(self, *operations: dict[str, Any]) -> str:
        head = self("GET", "api/v1/trees/tree/main")["hash"]
        body = {"commitMeta": {"message": "a commit"}, "operations": list(operations)}
        return str(self("POST", f"api/v1/trees/branch/main/commit?expectedHash={head}", body)["hash"])


def put(*key: str) -> dict[str, Any]:
    content = {"type": "ICEBERG_TABLE", "metadataLocation": "s3://elsewhere/x", "snapshotId": 1, "schemaId": 1, "specId": 1}
    return {"type": "PUT", "key": {"elements": list(key)}, "content": {**content, "sortOrderId": 1}}


def delete(*key: str) -> dict[str, Any]:
    return {"type": "DELETE", "key": {"elements": list(key)}}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    kinds = '["pubsub", "kafka", "sns", "queue"]'
    with running_stack(tmp_path_factory.mktemp("catalog"), TIDINGS_BUCKET_EVENTING__DESTINATIONS=kinds) as running:
        yield running


def test_every_event_reaches_who_wants_it_in_the_format_and_by_the_filter_that_were_asked_for(
    stack: Running,
) -> None:
    client = Client(stack)
    os.environ["PUBSUB_EMULATOR_HOST"] = stack.ready["pubsub"]
    topics.create(TOPIC)
    sqs = of_aws(stack, "sqs")
    plain = queue(sqs, "plain")
    removed = queue(sqs, "removed")
    cloud = queue(sqs, "cloud")
    fanned = queue(sqs, "fanned")
    sns = of_aws(stack, "sns")
    topic = sns.create_topic(Name="catalog")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn(sqs, fanned))
    client.subscribe("all", "arn:gcp:pubsub::tidings-test:catalog")
    client.subscribe("stored", "arn:tidings:kafka::local:catalog", filter=IN_COLUMNS)
    assert client.subscribe("removed", arn(sqs, removed), filter=OVER_BATCHES)["evaluated"] == "batches"
    client.subscribe("commits", arn(sqs, plain), types=["COMMIT"])
    client.subscribe("fanned", topic, types=["CONTENT_REMOVED"])
    client.subscribe("cloud", arn(sqs, cloud), types=["COMMIT"], format="cloudevents")
    shown = {each["name"]: each for each in client("GET", "subscriptions")["subscriptions"]}
    assert shown["stored"]["evaluated"] == "columns"

    client.commit(put("sales", "orders"), put("other", "orders"))
    last = client.commit(delete("sales", "orders"))

    said = until(lambda: read_at_least(TOPIC, 6), "all events at Pub/Sub")
    types = [each["type"] for each in said]
    assert types == ["REFERENCE_CREATED", "COMMIT", "CONTENT_STORED", "CONTENT_STORED", "COMMIT", "CONTENT_REMOVED"]
    assert said[-1]["contentKey"] == {"elements": ["sales", "orders"]}
    assert said[-1]["hash"] == last

    records = until(lambda: of_kafka(stack), "the table that was stored")
    [(key, headers, body)] = records
    assert key == f"{stack.ready['project']}:main"
    assert body["contentKey"]["elements"] == ["sales", "orders"]
    expected = {"event-id": body["id"], "repository-id": stack.ready["project"], "event-type": "CONTENT_STORED"}
    assert headers | expected == headers
    assert headers["event-creation-time"] == body["eventCreationTimestamp"]
    assert headers["commit-creation-time"] == body["commitCreationTimestamp"]

    [(gone, _)] = received(sqs, removed, 1)
    assert (gone["type"], gone["contentType"]) == ("CONTENT_REMOVED", "ICEBERG_TABLE")
    assert [each["type"] for each, _ in received(sqs, plain, 2)] == ["COMMIT", "COMMIT"]
    [(envelope, _)] = received(sqs, fanned, 1)
    assert envelope["TopicArn"] == topic
    assert json.loads(envelope["Message"]) == gone
    for structured, _ in received(sqs, cloud, 2):
        headers = {"content-type": "application/cloudevents+json"}
        event = from_http(HTTPMessage(headers, json.dumps(structured).encode()), JSONFormat())
        assert (event.get_type(), event.get_subject()) == ("org.projectnessie.COMMIT", "/refs/heads/main")
        assert event.get_data()["type"] == "COMMIT"


def test_a_broken_filter_is_refused_with_its_place_and_nothing_is_stored(stack: Running) -> None:
    client = Client(stack)
    with pytest.raises(urllib.error.HTTPError) as refused:
        client.subscribe("broken", "arn:tidings:kafka::local:catalog", filter="type == 'COMMIT' &&\n  referense == 'main'")
    problem = json.loads(refused.value.read())
    assert (problem["status"], problem["errorCode"]) == (400, "BAD_REQUEST")
    assert "line 2, column 3" in problem["message"]
    assert "did you mean reference?" in problem["message"]
    assert "broken" not in [each["name"] for each in client("GET", "subscriptions")["subscriptions"]]


def test_explain_shows_which_commit_names_an_object_and_which_object_a_commit_names(stack: Running) -> None:
    client, s3 = Client(stack), stack.s3()
    s3.create_bucket(Bucket="warehouse")
    for _ in range(2):
        s3.put_object(Bucket="warehouse", Key="sales/v1.json", Body=b"{}")
    client.subscribe("explained", "arn:tidings:kafka::local:explained", types=["COMMIT"])
    table = put("sales", "joined")
    table["content"]["metadataLocation"] = "s3://warehouse/sales/v1.json"
    commit = client.commit(table)

    of_object = json.loads(explain(stack, "s3://warehouse/sales/v1.json", "--json"))
    named = [[each["commit_hash"] for each in change["commits"]] for change in of_object["changes"]]
    assert named == [[commit], []], "the newer of its two changes"
    words = explain(stack, "s3://warehouse/sales/v1.json")
    assert f"catalog: the table sales.joined names it since commit {commit}" in words

    of_commit = json.loads(explain(stack, f"catalog://{commit[:12]}", "--json"))
    [link] = of_commit["objects"]
    assert (link["object_key"], link["change"]) == ("sales/v1.json", of_object["changes"][0]["id"])
    assert [each["type"] for each in of_commit["events"]] == ["COMMIT", "CONTENT_STORED"]

    def delivered() -> bool:
        return "(live): delivered" in explain(stack, f"catalog://{commit}")

    until(delivered, "the commit's event is delivered", every=1)
    words = explain(stack, f"catalog://{commit}")
    assert "names s3://warehouse/sales/v1.json: its change" in words
    assert "subscription explained: not wanted: it does not ask for CONTENT_STORED, only for COMMIT" in words


def test_the_owner_sees_that_a_filter_has_no_answer_and_a_hostile_one_is_refused_or_never_evaluated(stack: Running) -> None:
    client, sqs = Client(stack), of_aws(stack, "sqs")
    places = {name: arn(sqs, queue(sqs, name)) for name in ("answers", "fails", "planted")}
    hostile = hostile_cel.FOUND[292]
    with pytest.raises(urllib.error.HTTPError) as refused:
        client.subscribe("planted", places["planted"], filter=hostile)
    problem = json.loads(refused.value.read())
    assert problem["status"] == 400
    assert "for the largest event this builds 7" in problem["message"]
    assert "MiB, and 8 are the most" in problem["message"]

    commits = {"types": ["COMMIT"]}
    client.subscribe("answers", places["answers"], filter="roles.map(r, r).size() == 0", **commits)
    client.subscribe("fails", places["fails"], filter="contentKey.map(part, part)[3] == 'x'", **commits)
    client.subscribe("planted", places["planted"], filter="roles.map(r, r).size() == 1", **commits)
    with psycopg.connect(stack.ready["database"]) as connection:  # by a version that had no prices
        connection.execute("update catalog_subscriptions set filter = %s where name = 'planted'", [hostile])
    commit = client.commit(put("priced"))

    def shown() -> dict[str, Any]:
        found = {each["name"]: each for each in client("GET", "subscriptions")["subscriptions"]}
        return found if "unanswered" in found["fails"] and "unanswered" in found["planted"] else {}

    received(sqs, queue(sqs, "answers"), 1)
    found = until(shown, "what had no answer is counted")
    assert found["fails"]["unanswered"]["times"] == found["planted"]["unanswered"]["times"] == 1
    assert "ndex" in found["fails"]["unanswered"]["reason"]
    assert "MiB, and 8 are the most" in found["planted"]["unanswered"]["reason"]
    assert (found["fails"]["evaluated"], found["planted"]["evaluated"]) == ("batches", "refused")
    assert "unanswered" not in found["answers"]

    listed = {each["name"]: each for each in json.loads(catalog(stack, "subscriptions", "--json"))}
    assert (listed["fails"]["unanswered"], listed["answers"]["unanswered"]) == (1, 0)
    assert listed["planted"]["unanswered_reason"] == found["planted"]["unanswered"]["reason"]
    words = explain(stack, f"catalog://{commit}")
    assert "subscription planted: not wanted: its filter is refused now" in words
    assert "subscription fails: not wanted: its filter has no answer" in words
    client.subscribe("fails", places["fails"], filter="roles.size() == 0", **commits)
    assert "unanswered" not in client("GET", "subscriptions/fails")


def explain(stack: Running, *arguments: str) -> str:
    done = tidings("explain", *arguments, TIDINGS_DATABASE__URL=stack.ready["database"])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_subscribes_lists_and_unsubscribes(stack: Running) -> None:
    done = catalog(stack, "subscribe", "by-hand", "--to", "arn:tidings:kafka::local:catalog", "--filter", "type == 'MERGE'")
    assert "by-hand gets the events of the catalog of default" in done

    def listed() -> list[tuple[str, str]]:
        shown = json.loads(catalog(stack, "subscriptions", "--json"))
        return [(each["filter"], each["state"]) for each in shown if each["name"] == "by-hand"]

    until(lambda: listed() == [("type == 'MERGE'", "live")], "its lane runs with the stream")
    catalog(stack, "unsubscribe", "by-hand")
    assert "by-hand" not in catalog(stack, "subscriptions")


def catalog(stack: Running, *arguments: str) -> str:
    done = tidings(
        "catalog",
        *arguments,
        TIDINGS_DATABASE__URL=stack.ready["database"],
        TIDINGS_BUCKET_EVENTING__DESTINATIONS='["kafka"]',
        TIDINGS_KAFKA__CLUSTERS=json.dumps({"local": {"bootstrap": stack.ready["kafka"], "projects": "*"}}),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_at_least(topic: str, number: int) -> list[dict[str, Any]]:
    """All events but the test event, or nothing yet: what is read is gone. One that came twice counts once."""
    for each in map(json.loads, topics.read(topic, 1.0)):
        if each["type"] != "TEST":
            _read.setdefault(each["id"], each)
    return list(_read.values()) if len(_read) >= number else []


_read: dict[str, dict[str, Any]] = {}


def of_kafka(stack: Running) -> list[tuple[str, dict[str, str], dict[str, Any]]]:
    found = kafka_reader.read(stack.ready["kafka"], "catalog")
    records = [(each.key(), kafka_reader.headers(each), json.loads(each.value())) for each in found]
    events = {body["id"]: (key.decode(), headers, body) for key, headers, body in records if body["type"] != "TEST"}
    return list(events.values())


def of_aws(stack: Running, service: str) -> Any:
    keys = {"aws_access_key_id": stack.ready["access_key_id"], "aws_secret_access_key": stack.ready["secret_access_key"]}
    return boto3.client(service, endpoint_url=stack.ready["s3"], region_name=stack.ready["region"], **keys)


def queue(sqs: Any, name: str) -> str:
    return str(sqs.create_queue(QueueName=name)["QueueUrl"])


def arn(sqs: Any, url: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def received(sqs: Any, url: str, number: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """So many messages besides the test event: bodies and attributes, in the order of their sequencers, one that came twice
    once."""
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    def there() -> bool:
        asked = {"MaxNumberOfMessages": 10, "WaitTimeSeconds": 2, "MessageAttributeNames": ["All"]}
        for each in sqs.receive_message(QueueUrl=url, **asked).get("Messages", []):
            body = json.loads(each["Body"])
            if body.get("type") != "TEST" and '"TEST"' not in body.get("Message", ""):
                found[body.get("id") or body["MessageId"]] = (body, each.get("MessageAttributes", {}))
        return len(found) >= number

    until(there, f"{number} messages")
    assert len(found) == number
    return sorted(found.values(), key=lambda each: each[1].get("sequencer", {}).get("StringValue", ""))
