"""The test plan of seed 000, line by line: each test bears its line as its name, and says it in full.

Over a running stack, once for each profile, and through both fronts where both apply.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import psycopg
import pytest
from fronts import Front, Grpc, Http, Key, Refused, Wish

from arrivals import PROJECT, Arrival, Collector
from conftest import Running, running_stack
from tidings.access import api_keys
from tidings.access.api_keys import Access
from tidings.access.macaroons import Caveat
from tidings.access.permissions import ACTIONS, GET_NOTIFICATION, PUT_NOTIFICATION
from tidings.access.projects import create_project
from tidings.events.arn import PubSubTopic
from tidings.events.profiles import PROFILES, Profile
from tidings.local.processes import free_port
from tidings.local.pubsub import set_fault
from traffic import collecting, tidings
from waiting import until

SETTLE_SECONDS = 0.3
"""After the last event that was waited for: others of its round may still be on their way."""
ENCRYPTED = "Bucket eventing requires satellite-managed encryption (path encryption must be disabled)"
_numbers = count(1)


@dataclass
class Stack:
    running: Running
    profile: Profile
    collector: Collector

    @property
    def ready(self) -> dict[str, Any]:
        return self.running.ready

    def front(self, name: str, key: Key | None = None) -> Front:
        key = key or self.key()
        return Http(self.ready["s3"], self.ready["region"], key) if name == "http" else Grpc(self.ready["grpc"], key)

    def key(self, project: str | None = None, actions: tuple[str, ...] = ACTIONS, **limit: Any) -> Key:
        with psycopg.connect(self.ready["database"], autocommit=True) as connection:
            made: Access = api_keys.create(connection, project or self.ready["project"], actions, Caveat(**limit))
        return Key(made.access_key_id, made.secret, made.api_key)

    def bucket(self, key: Key | None = None) -> str:
        name = f"plan-{next(_numbers)}"
        self.s3(key).create_bucket(Bucket=name)
        return name

    def s3(self, key: Key | None = None) -> Any:
        return self.running.s3() if key is None else Http(self.ready["s3"], self.ready["region"], key).s3

    def topic(self) -> PubSubTopic:
        """A topic that is listened to."""
        return PubSubTopic.from_arn(self.collector.listen(f"topic-{next(_numbers)}"))

    def events(self, topic: PubSubTopic, last: str) -> list[Arrival]:
        """Everything that the topic has got when the event of the last request has come; what came twice has one id."""
        self.collector.event(last)
        time.sleep(SETTLE_SECONDS)
        first: dict[str, Arrival] = {}
        for arrival in self.collector.of(topic.topic):
            first.setdefault(arrival.id, arrival)
        return list(first.values())

    def tests(self, bucket: str) -> list[dict[str, Any]]:
        return [test for test in list(self.collector.tests) if test["Bucket"] == bucket]


@pytest.fixture(scope="module", params=["aws", "storj"])
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp(f"plan-{request.param}")
    with (
        running_stack(folder, TIDINGS_BUCKET_EVENTING__PROFILE=request.param) as running,
        collecting(running) as collector,
    ):
        yield Stack(running, PROFILES[request.param], collector)


FRONTS = ("http", "grpc")


@pytest.fixture(params=FRONTS)
def name(request: pytest.FixtureRequest) -> str:
    """Of a front."""
    front: str = request.param
    return front


@pytest.fixture
def front(stack: Stack, name: str) -> Front:
    return stack.front(name)


def refused(call: Callable[[], object], front: Front, http: tuple[str, int], grpc: str) -> str:
    """The message of a refusal that has the code of its front."""
    with pytest.raises(Refused) as caught:
        call()
    expected = http if front.name == "http" else (grpc, 0)
    assert (caught.value.code, caught.value.status) == expected, caught.value.message
    return caught.value.message


INVALID = ("InvalidArgument", 400)
Request = Callable[[str], str]


def writing(stack: Stack, bucket: str) -> tuple[Request, Request]:
    """Functions that put and delete a key and return the id of the request."""
    s3 = stack.s3()

    def put(key: str) -> str:
        return str(s3.put_object(Bucket=bucket, Key=key, Body=b"x")["ResponseMetadata"]["RequestId"])

    def delete(key: str) -> str:
        return str(s3.delete_object(Bucket=bucket, Key=key)["ResponseMetadata"]["RequestId"])

    return put, delete


# Configuration API


def test_PutBucketNotificationConfiguration_with_valid_configuration_succeeds(stack: Stack, front: Front) -> None:
    """Test `PutBucketNotificationConfiguration` with valid configuration succeeds."""
    bucket, topic = stack.bucket(), stack.topic()
    wish = Wish(topic, ("s3:ObjectCreated:*", "s3:ObjectRemoved:Delete"), "logs/", ".txt", "MyNotificationConfig")
    front.put(bucket, wish)
    for other in ("http", "grpc"):
        assert stack.front(other).get(bucket) == wish


def test_PutBucketNotificationConfiguration_with_invalid_topic_name_fails(stack: Stack, front: Front) -> None:
    """Test `PutBucketNotificationConfiguration` with invalid topic name fails."""
    bucket, topic = stack.bucket(), stack.topic()
    front.put(bucket, Wish(topic))
    for wrong in ("nowhere", "", "projects/my-project", "arn:aws:sns:us-east-1:1234:topic", f"{topic.name}/more"):
        refused(lambda wrong=wrong: front.put(bucket, Wish(wrong)), front, INVALID, "INVALID_ARGUMENT")
    assert front.get(bucket) == Wish(topic)


def test_PutBucketNotificationConfiguration_with_unreachable_topic_fails_test_event_fails(stack: Stack, front: Front) -> None:
    """Test `PutBucketNotificationConfiguration` with unreachable topic fails (test event fails)."""
    bucket, topic = stack.bucket(), stack.topic()
    front.put(bucket, Wish(topic))
    unreachable = stack.topic()
    set_fault(stack.ready["pubsub"], unreachable.name, "unavailable")
    said = refused(lambda: front.put(bucket, Wish(unreachable)), front, INVALID, "FAILED_PRECONDITION")
    assert "UNAVAILABLE" in said
    assert unreachable.arn in said
    assert front.get(bucket) == Wish(topic)


def test_PutBucketNotificationConfiguration_for_project_without_satellite_managed_encryption_fails(
    stack: Stack, name: str
) -> None:
    """Test `PutBucketNotificationConfiguration` for project without satellite-managed encryption fails."""
    with psycopg.connect(stack.ready["database"], autocommit=True) as connection:
        project = create_project(connection, f"encrypted-{next(_numbers)}", path_encryption=True)
    key = stack.key(project)
    front, bucket = stack.front(name, key), stack.bucket(key)
    for wish in (Wish(stack.topic()), None):  # deleting takes the same steps
        said = refused(lambda wish=wish: front.put(bucket, wish), front, ("InvalidRequest", 400), "FAILED_PRECONDITION")
        assert said == ENCRYPTED
    assert stack.tests(bucket) == []


def test_PutBucketNotificationConfiguration_for_project_not_in_bucket_eventing_projects_fails(stack: Stack, name: str) -> None:
    """Test `PutBucketNotificationConfiguration` for project not in `bucket-eventing.projects` fails."""
    with psycopg.connect(stack.ready["database"], autocommit=True) as connection:
        project = create_project(connection, f"outside-{next(_numbers)}")
    key, topic = stack.key(project), stack.topic()
    bucket = stack.bucket(key)
    with another_server(stack, projects=stack.ready["project"]) as ready:
        mine = Http(ready["s3"], ready["region"], key) if name == "http" else Grpc(ready["grpc"], key)
        calls: list[Callable[[], object]] = [
            lambda: mine.put(bucket, Wish(topic)),
            lambda: mine.put(bucket, Wish("nonsense")),
            lambda: mine.put(bucket, None),
            lambda: mine.get(bucket),
        ]
        for call in calls:
            refused(call, mine, ("NotImplemented", 501), "UNIMPLEMENTED")
        Http(ready["s3"], ready["region"], key).s3.put_object(Bucket=bucket, Key="key", Body=b"x")
        listed = Http(ready["s3"], ready["region"], stack.key()) if name == "http" else Grpc(ready["grpc"], stack.key())
        listed.put(stack.bucket(), Wish(topic))
    assert stack.tests(bucket) == []
    with psycopg.connect(stack.ready["database"]) as connection:
        assert not connection.execute("select from changes where project = %s", [project]).fetchall()


@contextmanager
def another_server(stack: Stack, projects: str) -> Iterator[dict[str, Any]]:
    """A second server over the same database, with a list of projects of its own."""
    port, grpc = free_port(), free_port()
    settings = {
        "TIDINGS_DATABASE__URL": stack.ready["database"],
        "TIDINGS_STORE__BLOBS": (stack.running.data / "blobs").as_uri(),
        "TIDINGS_API__PORT": str(port),
        "TIDINGS_API__GRPC_PORT": str(grpc),
        "TIDINGS_API__WORKERS": "1",
        "TIDINGS_PUBSUB__EMULATOR_HOST": stack.ready["pubsub"],
        "TIDINGS_BUCKET_EVENTING__PROJECTS": projects,
        "TIDINGS_BUCKET_EVENTING__PROFILE": stack.profile.name,
    }
    with (stack.running.data / "logs" / "second.log").open("ab") as log:
        command = [sys.executable, "-m", "tidings", "serve"]
        process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
    ready = {**stack.ready, "s3": f"http://127.0.0.1:{port}", "grpc": f"127.0.0.1:{grpc}"}
    try:
        until(lambda: _answers(port) and _answers(grpc), "the second server")
        yield ready
    finally:
        process.terminate()
        process.wait(120)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_PutBucketNotificationConfiguration_with_empty_configuration_deletes_the_config(stack: Stack, front: Front) -> None:
    """Test `PutBucketNotificationConfiguration` with empty configuration deletes the config."""
    bucket, topic = stack.bucket(), stack.topic()
    put, _ = writing(stack, bucket)
    front.put(bucket, Wish(topic))
    first = put("while it was there")
    stack.collector.event(first)
    front.put(bucket, None)
    assert front.get(bucket) is None
    put("afterwards")
    front.put(bucket, Wish(topic))
    last = put("again")
    assert [arrival.request_id for arrival in stack.events(topic, last)] == [first, last]


def test_GetBucketNotificationConfiguration_returns_correct_configuration(stack: Stack, front: Front) -> None:
    """Test `GetBucketNotificationConfiguration` returns correct configuration."""
    bucket = stack.bucket()
    for wish in (
        Wish(stack.topic(), ("s3:ObjectRemoved:DeleteMarkerCreated", "s3:ObjectCreated:*"), suffix="ž 🦊"),
        Wish(stack.topic(), ("s3:ObjectCreated:Copy",), prefix="a&<b>/", id='an "id"'),
    ):
        front.put(bucket, wish)
        assert front.get(bucket) == wish
    without = replace(wish, id="")
    front.put(bucket, without)
    made = front.get(bucket)
    assert made is not None
    assert made.id
    assert made == replace(without, id=made.id)
    front.put(bucket, without)
    assert front.get(bucket) == made, "the same configuration keeps its id"


def test_GetBucketNotificationConfiguration_for_bucket_with_no_config_returns_empty_not_error(
    stack: Stack, front: Front
) -> None:
    """Test `GetBucketNotificationConfiguration` for bucket with no config returns empty (not error)."""
    assert front.get(stack.bucket()) is None
    refused(lambda: front.get("no-such-bucket"), front, ("NoSuchBucket", 404), "NOT_FOUND")


def test_API_key_without_ActionPutBucketNotificationConfiguration_permission_is_rejected(stack: Stack, name: str) -> None:
    """Test API key without `ActionPutBucketNotificationConfiguration` permission is rejected."""
    bucket, topic = stack.bucket(), stack.topic()
    mine = stack.front(name, stack.key(actions=("read", "write", "list", "delete", GET_NOTIFICATION)))
    for wish in (Wish(topic), Wish("nonsense"), None):  # what was sent is not looked at
        refused(lambda wish=wish: mine.put(bucket, wish), mine, ("AccessDenied", 403), "PERMISSION_DENIED")
    assert mine.get(bucket) is None
    other = stack.front(name, stack.key(actions=(PUT_NOTIFICATION,)))
    other.put(bucket, Wish(topic))
    refused(lambda: other.get(bucket), other, ("AccessDenied", 403), "PERMISSION_DENIED")
    assert len(until(lambda: stack.tests(bucket), "the test event")) == 1


def test_API_key_with_bucket_specific_caveat_can_only_configure_that_bucket_other_buckets_rejected(
    stack: Stack, name: str
) -> None:
    """Test API key with bucket-specific caveat can only configure that bucket (other buckets rejected)."""
    bucket, other, topic = stack.bucket(), stack.bucket(), stack.topic()
    mine = stack.front(name, stack.key(buckets=(bucket,)))
    mine.put(bucket, Wish(topic))
    assert mine.get(bucket) == Wish(topic)
    denied = ("AccessDenied", 403), "PERMISSION_DENIED"
    refused(lambda: mine.put(other, Wish(topic)), mine, *denied)
    refused(lambda: mine.get(other), mine, *denied)
    narrow = stack.front(name, stack.key(prefixes=((bucket, "logs/"),)))
    refused(lambda: narrow.put(bucket, Wish(topic)), narrow, *denied)
    refused(lambda: narrow.get(bucket), narrow, *denied)


# Filtering


def matching(stack: Stack, wish: Wish, yes: list[str], no: list[str]) -> None:
    """Of all keys, exactly those of `yes` get an event, through whichever front the filter was set."""
    expected: dict[PubSubTopic, list[str]] = {}
    for front in map(stack.front, FRONTS):
        bucket, topic = stack.bucket(), stack.topic()
        put, _ = writing(stack, bucket)
        front.put(bucket, replace(wish, topic=topic))
        for key in no:
            put(key)
        expected[topic] = [put(key) for key in yes]
    for topic, requests in expected.items():
        found = stack.events(topic, requests[-1])
        assert sorted(arrival.key for arrival in found) == sorted(yes)
        assert {arrival.request_id for arrival in found} == set(requests)


PREFIXED = ["logs/2025.txt", "logs/archive/old.log"], ["Logs/file.txt", "archive/logs/file.txt", "mylogs.txt"]
SUFFIXED = ["photo.jpg", "dir/image.jpg"], ["photo.JPG", "photo.jpeg", "image.jpg.bak"]
BOTH = ["logs/file.txt", "logs/dir/doc.txt"], ["logs/file.TXT", "logs/file.log", "data/file.txt"]


def test_events_with_prefix_filter_matching_objects_trigger_events_non_matching_don_t(stack: Stack) -> None:
    """Test events with prefix filter - matching objects trigger events, non-matching don't."""
    matching(stack, Wish("", prefix="logs/"), *PREFIXED)


def test_events_with_suffix_filter_matching_objects_trigger_events_non_matching_don_t(stack: Stack) -> None:
    """Test events with suffix filter - matching objects trigger events, non-matching don't."""
    matching(stack, Wish("", suffix=".jpg"), *SUFFIXED)


def test_events_with_both_prefix_and_suffix_only_objects_matching_both_trigger_events(stack: Stack) -> None:
    """Test events with both prefix and suffix - only objects matching both trigger events."""
    matching(stack, Wish("", prefix="logs/", suffix=".txt"), *BOTH)


def test_events_with_no_filter_all_objects_trigger_events(stack: Stack) -> None:
    """Test events with no filter - all objects trigger events."""
    matching(stack, Wish(""), [*PREFIXED[0], *PREFIXED[1], "a b+c%.txt", "žluť/🦊"], [])


def test_edge_cases_empty_prefix_empty_suffix_Unicode_characters(stack: Stack) -> None:
    """Test edge cases: empty prefix, empty suffix, Unicode characters."""
    matching(stack, Wish("", prefix="", suffix=".txt"), ["a.txt", "ž/ü.txt"], ["a.log"])
    matching(stack, Wish("", prefix="a*?/", suffix=""), ["a*?/x"], ["ab/x", "a*/x"])
    encoded = ["my file.txt"] if not stack.profile.literal_filters else []
    apart = ["my file.txt"] if stack.profile.literal_filters else []
    matching(stack, Wish("", prefix="my+file"), [*encoded, "my+file.txt"], ["my-file.txt", *apart])
    matching(stack, Wish("", prefix="žluť/", suffix="🦊"), ["žluť/kůň 🦊"], ["Žluť/🦊", "žluť/🐺", "zlut/🦊"])


# Event Type Selection


def kinds(stack: Stack, events: tuple[str, ...]) -> list[str]:
    """The names of the events that come of a put, a copy, a multipart upload, a delete and a delete marker: through both fronts
    the same."""
    asked = [(front, stack.bucket(), stack.topic()) for front in map(stack.front, FRONTS)]
    for front, bucket, topic in asked:
        front.put(bucket, Wish(topic, events))
        _happens(stack, bucket)
    last = {topic: _last(stack, front, bucket) for front, bucket, topic in asked}
    found = [
        sorted(arrival.event for arrival in stack.events(topic, request_id) if arrival.key != "last")
        for topic, request_id in last.items()
    ]
    assert found[0] == found[1]
    return found[0]


def _happens(stack: Stack, bucket: str) -> None:
    s3 = stack.s3()
    put, delete = writing(stack, bucket)
    put("a")
    s3.copy_object(Bucket=bucket, Key="b", CopySource=f"{bucket}/a")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="large")["UploadId"]
    etag = s3.upload_part(Bucket=bucket, Key="large", UploadId=upload, PartNumber=1, Body=b"part")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    s3.complete_multipart_upload(Bucket=bucket, Key="large", UploadId=upload, MultipartUpload=parts)
    delete("a")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    delete("b")


def _last(stack: Stack, front: Front, bucket: str) -> str:
    """Ask for everything and put once more: when that has come, nothing else of before is still on its way."""
    wish = front.get(bucket)
    assert wish is not None
    front.put(bucket, replace(wish, events=(*wish.events, "s3:ObjectCreated:*")))
    put, _ = writing(stack, bucket)
    return put("last")


PUT, COPY = "ObjectCreated:Put", "ObjectCreated:Copy"
DELETE, MARKER = "ObjectRemoved:Delete", "ObjectRemoved:DeleteMarkerCreated"


def multipart(stack: Stack) -> str:
    """In the seed a multipart upload counts as a put."""
    return PUT if stack.profile.name == "storj" else "ObjectCreated:CompleteMultipartUpload"


def test_configuration_with_only_s3_ObjectCreated_wildcard_only_create_events_sent(stack: Stack) -> None:
    """Test configuration with only `s3:ObjectCreated:*` - only create events sent."""
    assert kinds(stack, ("s3:ObjectCreated:*",)) == sorted([PUT, COPY, multipart(stack)])


def test_configuration_with_only_s3_ObjectRemoved_wildcard_only_delete_events_sent(stack: Stack) -> None:
    """Test configuration with only `s3:ObjectRemoved:*` - only delete events sent."""
    assert kinds(stack, ("s3:ObjectRemoved:*",)) == [DELETE, MARKER]


@pytest.mark.parametrize("event", [PUT, COPY, DELETE, MARKER])
def test_configuration_with_single_specific_event_type_only_that_event_sent(stack: Stack, event: str) -> None:
    """Test configuration with single specific event type - only that event sent."""
    expected = [PUT, PUT] if event == PUT and stack.profile.name == "storj" else [event]
    assert kinds(stack, (f"s3:{event}",)) == expected


def test_configuration_with_multiple_event_types_all_specified_events_sent(stack: Stack) -> None:
    """Test configuration with multiple event types - all specified events sent."""
    found = kinds(stack, (f"s3:{COPY}", f"s3:{DELETE}", f"s3:{MARKER}"))
    assert found == [COPY, DELETE, MARKER]


# Integration


def test_S3_gateway_ObjectLayer_methods_GetBucketNotificationConfig_SetBucketNotificationConfig_work_correctly(
    stack: Stack,
) -> None:
    """Test S3 gateway ObjectLayer methods (`GetBucketNotificationConfig`/`SetBucketNotificationConfig`) work correctly.

    Here the S3 front and the gRPC front are one process: what the one sets the other gives, in its own words.
    """
    bucket, topic = stack.bucket(), stack.topic()
    http, grpc = stack.front("http"), stack.front("grpc")
    for setter, getter in ((http, grpc), (grpc, http)):
        wish = Wish(topic, ("s3:ObjectCreated:Put",), prefix=setter.name)
        setter.put(bucket, wish)
        assert getter.get(bucket) == wish
        setter.put(bucket, None)
        assert getter.get(bucket) is None
    assert isinstance(http, Http)
    second = {"Id": "second", "TopicArn": topic.arn, "Events": ["s3:ObjectRemoved:*"]}
    first = {"Id": "first", "TopicArn": topic.arn, "Events": ["s3:ObjectCreated:*"]}
    several = {"TopicConfigurations": [first, second]}
    unserved = {"QueueConfigurations": [{"QueueArn": "arn:aws:sqs:us-east-1:123456789012:q", "Events": ["s3:ObjectCreated:*"]}]}
    with pytest.raises(Refused, match=r"InvalidArgument|AccessDenied"):  # not served at all, or an account that nobody named
        http._call("put_bucket_notification_configuration", bucket, NotificationConfiguration=unserved)
    if stack.profile.most_rules == 1:
        with pytest.raises(Refused, match="A bucket has 1 at most"):
            http._call("put_bucket_notification_configuration", bucket, NotificationConfiguration=several)
        assert grpc.get(bucket) is None
    else:
        http._call("put_bucket_notification_configuration", bucket, NotificationConfiguration=several)
        refused(lambda: grpc.get(bucket), grpc, INVALID, "FAILED_PRECONDITION")
        grpc.put(bucket, Wish(topic))
        assert http.get(bucket) == Wish(topic), "a put replaces everything"


def test_multiple_buckets_with_different_configurations(stack: Stack, front: Front) -> None:
    """Test multiple buckets with different configurations."""
    first, second = stack.bucket(), stack.bucket()
    one, other = stack.topic(), stack.topic()
    front.put(first, Wish(one, prefix="a/"))
    front.put(second, Wish(other, prefix="b/"))
    expected = {}
    for bucket, topic in ((first, one), (second, other)):
        put, _ = writing(stack, bucket)
        ids = {key: put(key) for key in ("a/x", "b/x")}
        expected[topic.topic] = ids["a/x" if bucket == first else "b/x"]
    for topic, last in ((one, expected[one.topic]), (other, expected[other.topic])):
        assert [arrival.request_id for arrival in stack.events(topic, last)] == [last]


def test_configuration_changes_take_effect_for_new_operations(stack: Stack, front: Front) -> None:
    """Test configuration changes take effect for new operations."""
    bucket, one, other = stack.bucket(), stack.topic(), stack.topic()
    put, _ = writing(stack, bucket)
    put("before any rule")
    front.put(bucket, Wish(one))
    first = put("first")
    stack.collector.event(first)
    front.put(bucket, Wish(other))
    second = put("second")
    stack.collector.event(second)
    front.put(bucket, Wish(one, prefix="third"))
    put("not this")
    third = put("third")
    assert [arrival.request_id for arrival in stack.events(one, third)] == [first, third]
    assert [arrival.request_id for arrival in stack.events(other, second)] == [second]


def test_TransmitEvent_correctly_set_based_on_configuration_and_filters(stack: Stack, front: Front) -> None:
    """Test TransmitEvent correctly set based on configuration and filters."""
    bucket, topic = stack.bucket(), stack.topic()
    put, delete = writing(stack, bucket)
    no_rule = put("logs/a.txt")
    front.put(bucket, Wish(topic, ("s3:ObjectCreated:Put",), "logs/", ".txt"))
    wanted = put("logs/a.txt")
    others = [put("data/a.txt"), put("logs/a.jpg"), delete("logs/a.txt")]
    front.put(bucket, None)
    deleted_rule = put("logs/a.txt")
    with psycopg.connect(stack.ready["database"]) as connection:
        transmitted = dict(
            connection.execute("select request_id, rules is not null from changes where bucket = %s", [bucket]).fetchall()
        )
    assert transmitted == {no_rule: False, wanted: True, **dict.fromkeys(others, False), deleted_rule: False}


# Test Event


def test_event_published_successfully_to_valid_topic(stack: Stack, front: Front) -> None:
    """Test event published successfully to valid topic."""
    bucket, topic = stack.bucket(), stack.topic()
    front.put(bucket, Wish(topic))
    [test] = until(lambda: stack.tests(bucket), "the test event")
    said = {"Service": stack.profile.service, "Event": "s3:TestEvent", "Bucket": bucket}
    assert {name: test[name] for name in said} == said
    assert set(test) - set(said) == ({"Time"} if stack.profile.name == "storj" else {"Time", "RequestId", "HostId"})
    put, _ = writing(stack, bucket)
    [arrival] = stack.events(topic, put("key"))
    assert arrival.record["eventSource"] == stack.profile.event_source
    assert arrival.record["s3"]["bucket"]["arn"] == f"{stack.profile.bucket_arn}{bucket}"


def test_event_fails_for_invalid_topic(stack: Stack, front: Front) -> None:
    """Test event fails for invalid topic."""
    bucket, missing = stack.bucket(), PubSubTopic(PROJECT, "not-there")
    said = refused(lambda: front.put(bucket, Wish(missing)), front, INVALID, "FAILED_PRECONDITION")
    assert "NOT_FOUND" in said
    assert front.get(bucket) is None


def test_event_fails_for_topic_without_permissions(stack: Stack, front: Front) -> None:
    """Test event fails for topic without permissions."""
    bucket, topic = stack.bucket(), stack.topic()
    set_fault(stack.ready["pubsub"], topic.name, "permission_denied")
    said = refused(lambda: front.put(bucket, Wish(topic)), front, INVALID, "FAILED_PRECONDITION")
    assert "PERMISSION_DENIED" in said
    assert front.get(bucket) is None


def test_event_timeout_after_10_seconds(stack: Stack) -> None:
    """Test event timeout after 10 seconds."""
    topic, took, said = stack.topic(), {}, {}
    set_fault(stack.ready["pubsub"], topic.name, "hang")
    buckets = {name: stack.bucket() for name in ("http", "grpc")}

    def attempt(name: str) -> None:
        front, began = stack.front(name), time.monotonic()
        said[name] = refused(lambda: front.put(buckets[name], Wish(topic)), front, INVALID, "FAILED_PRECONDITION")
        took[name] = time.monotonic() - began

    threads = [threading.Thread(target=attempt, args=(name,)) for name in buckets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("no answer from Pub/Sub within 10 s" in words for words in said.values())
    assert len(took) == 2
    assert all(seconds >= 10 for seconds in took.values()), took
    assert all(stack.front(name).get(bucket) is None for name, bucket in buckets.items())


# What stands beside the plan


def test_the_old_setting_is_refused_at_start_with_its_replacement() -> None:
    done = tidings("serve", TIDINGS_BUCKET_EVENTING__BUCKETS="my-bucket", TIDINGS_DATABASE__URL="postgresql://localhost/x")
    assert done.returncode == 2
    assert "bucket-eventing.buckets is no longer there" in done.stderr
    assert "bucket-eventing.projects" in done.stderr
