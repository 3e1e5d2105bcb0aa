"""Notification configuration over gRPC, against the real server and Pub/Sub: what it does and refuses, and in which order."""

from __future__ import annotations

import hmac
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest
from metainfo_server import CREATED, OTHER_TOPIC, REMOVED, TOPIC, Front, metainfo_server

import canary
from conftest import fresh_database
from tidings.access.macaroons import Caveat, Macaroon
from tidings.access.permissions import ACTIONS
from tidings.api import metainfo_pb2 as pb
from tidings.client import (
    Configuration,
    InvalidConfiguration,
    Metainfo,
    MetainfoError,
    NoSuchBucket,
    NotAccepted,
    NotEnabled,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from tidings.local.postgres import Postgres
from waiting import until

ROOT = Path(__file__).parent.parent.parent
INVALID = Configuration("not a topic", ("s3:Nothing",), "\0")
METHODS = ("PutBucketNotificationConfiguration", "GetBucketNotificationConfiguration")
PUT, GET = METHODS


@pytest.fixture(scope="module")
def front(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with metainfo_server(fresh_database(postgres, "metainfo"), tmp_path_factory.mktemp("metainfo")) as running:
        yield running


@pytest.fixture(scope="module")
def storj(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    database, folder = fresh_database(postgres, "metainfo_storj"), tmp_path_factory.mktemp("storj")
    with metainfo_server(database, folder, TIDINGS_BUCKET_EVENTING__PROFILE="storj") as running:
        yield running


@pytest.fixture(scope="module")
def closed(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """Where no project has eventing."""
    database, folder = fresh_database(postgres, "metainfo_closed"), tmp_path_factory.mktemp("closed")
    with metainfo_server(database, folder, TIDINGS_BUCKET_EVENTING__PROJECTS="") as running:
        yield running


@pytest.fixture(scope="module")
def client(front: Front) -> Iterator[Metainfo]:
    with front.client() as made:
        yield made


@pytest.fixture
def bucket(front: Front) -> str:
    return front.bucket()


def put(client: Metainfo, bucket: str, configuration: Configuration | None) -> Callable[[], None]:
    return lambda: client.put_bucket_notification_configuration(bucket, configuration)


def raw(front: Front, method: str, request: bytes, **metadata: str) -> bytes:
    """One call with exactly these bytes."""
    with grpc.insecure_channel(front.target) as channel:
        answer: bytes = channel.unary_unary(f"/tidings.metainfo.Metainfo/{method}")(
            request, timeout=60, metadata=tuple(metadata.items())
        )
        return answer


def status(call: Callable[[], Any]) -> str:
    try:
        canary.seen(repr(call()))
    except MetainfoError as error:
        canary.seen(error.message)
        return str(error.status.name)
    except grpc.RpcError as error:
        canary.seen(str(error))
        return str(error.code().name)
    return "OK"


def test_what_was_put_is_what_is_got_and_a_test_event_told_the_topic(front: Front, client: Metainfo, bucket: str) -> None:
    before = front.published(TOPIC)
    client.put_bucket_notification_configuration(bucket, CREATED)
    assert client.get_bucket_notification_configuration(bucket) == CREATED
    assert front.published(TOPIC) == before + 1


def test_a_put_replaces_everything(client: Metainfo, bucket: str) -> None:
    for configuration in (CREATED, REMOVED, replace(REMOVED, id=CREATED.id), replace(CREATED, prefix="", suffix="é/ß")):
        client.put_bucket_notification_configuration(bucket, configuration)
        assert client.get_bucket_notification_configuration(bucket) == configuration


def test_a_configuration_without_an_id_gets_one_that_stays(client: Metainfo, bucket: str) -> None:
    wanted, found = replace(CREATED, id=""), []
    for _ in range(2):
        client.put_bucket_notification_configuration(bucket, wanted)
        found.append(client.get_bucket_notification_configuration(bucket))
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].id
    assert replace(found[0], id="") == wanted


@pytest.mark.parametrize(
    "configuration",
    [
        None,
        pb.NotificationConfiguration(),
        pb.NotificationConfiguration(filter=pb.FilterRule()),
        pb.NotificationConfiguration(id="", topic_name="", events=[], filter=pb.FilterRule(prefix="", suffix="")),
    ],
    ids=["omitted", "empty", "with an empty filter", "with empty fields"],
)
def test_an_empty_configuration_deletes(front: Front, client: Metainfo, bucket: str, configuration: Any) -> None:
    client.put_bucket_notification_configuration(bucket, CREATED)
    header = pb.RequestHeader(api_key=front.key().api_key.encode())
    request = pb.PutBucketNotificationConfigurationRequest(header=header, name=bucket.encode(), configuration=configuration)
    assert raw(front, PUT, request.SerializeToString()) == b""
    assert client.get_bucket_notification_configuration(bucket) is None
    got = raw(front, GET, pb.GetBucketNotificationConfigurationRequest(header=header, name=bucket.encode()).SerializeToString())
    assert got == b"", "an answer without a configuration is empty"
    assert not front.server.query("select from bucket_eventing_configs where bucket_name = %s", bucket)


def test_deleting_what_is_not_there_is_no_error(client: Metainfo, bucket: str) -> None:
    client.put_bucket_notification_configuration(bucket, None)
    assert client.get_bucket_notification_configuration(bucket) is None


def test_what_s3_put_is_what_grpc_gets_and_the_other_way_round(front: Front, client: Metainfo, bucket: str) -> None:
    rule = {
        "Id": "by s3 / ü",
        "TopicArn": "arn:gcp:pubsub::tidings-test:other",
        "Events": ["s3:ObjectRemoved:*", "s3:ObjectCreated:Copy"],
        "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "a b/"}, {"Name": "suffix", "Value": ".jpg"}]}},
    }
    s3 = front.s3()
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [rule]})
    found = client.get_bucket_notification_configuration(bucket)
    events = ("s3:ObjectRemoved:*", "s3:ObjectCreated:Copy")
    assert found == Configuration(OTHER_TOPIC, events, "a b/", ".jpg", "by s3 / ü")
    client.put_bucket_notification_configuration(bucket, None)
    assert "TopicConfigurations" not in s3.get_bucket_notification_configuration(Bucket=bucket)
    client.put_bucket_notification_configuration(bucket, found)
    (again,) = s3.get_bucket_notification_configuration(Bucket=bucket)["TopicConfigurations"]
    assert sorted(map(str, rule["Filter"]["Key"]["FilterRules"])) == sorted(  # type: ignore[index]
        str({"Name": each["Name"].lower(), "Value": each["Value"]}) for each in again.pop("Filter")["Key"]["FilterRules"]
    )
    assert again == {name: value for name, value in rule.items() if name != "Filter"}
    derived = replace(CREATED, id="")
    client.put_bucket_notification_configuration(bucket, derived)
    by_grpc = s3.get_bucket_notification_configuration(Bucket=bucket)["TopicConfigurations"]
    s3.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [{**by_grpc[0], "Id": ""}]}
    )
    assert s3.get_bucket_notification_configuration(Bucket=bucket)["TopicConfigurations"] == by_grpc, "one id by both fronts"


def test_more_than_one_rule_is_for_the_s3_api_to_show(front: Front, client: Metainfo, bucket: str) -> None:
    arn = "arn:gcp:pubsub::tidings-test:one"
    two = [{"Id": event, "TopicArn": arn, "Events": [f"s3:{event}:*"]} for event in ("ObjectCreated", "ObjectRemoved")]
    front.s3().put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={"TopicConfigurations": two})
    with pytest.raises(NotAccepted, match=r"2 configurations.*use the S3 API"):
        client.get_bucket_notification_configuration(bucket)
    client.put_bucket_notification_configuration(bucket, CREATED)
    assert client.get_bucket_notification_configuration(bucket) == CREATED, "a put replaces them all"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topic_name": ""}, r"topic_name '' .*projects/PROJECT_ID/topics/TOPIC_ID"),
        ({"topic_name": "arn:gcp:pubsub::tidings-test:one"}, "topic_name 'arn:gcp"),
        ({"topic_name": "projects/tidings-test/topics/one\n"}, "topic_name"),
        ({"topic_name": "projects/tidings-test/topics/" + "x" * 50_000}, "topic_name"),
        ({"events": ()}, "No event is named"),
        ({"events": ("s3:ObjectCreated:Nothing",)}, "'s3:ObjectCreated:Nothing' is not supported"),
        ({"events": ("s3:ObjectCreated:*", "")}, "'' is not supported"),
        ({"events": ("s3:ObjectCreated:*\0",)}, "is not supported"),
        ({"prefix": "x" * 1025}, "prefix filter has 1025 characters"),
        ({"suffix": "ü" * 30_000}, "suffix filter has 30000 characters"),
        ({"suffix": "a\0b"}, "suffix filter has the character"),
        ({"id": "x" * 256}, "The Id has 256 characters"),
        ({"id": "\0"}, "control character"),
        ({"events": tuple(f"{'ü' * 190}{number}" for number in range(100))}, "100 problems"),
    ],
)
def test_what_cannot_be_a_rule_is_refused_and_changes_nothing(
    front: Front, client: Metainfo, bucket: str, change: dict[str, Any], words: str
) -> None:
    client.put_bucket_notification_configuration(bucket, REMOVED)
    before, published = front.table(), front.published(TOPIC)
    with pytest.raises(InvalidConfiguration, match=words):
        client.put_bucket_notification_configuration(bucket, replace(CREATED, **change))
    assert front.table() == before
    assert front.published(TOPIC) == published, "no test event for what is not valid"


def test_everything_that_is_wrong_is_said_at_once(client: Metainfo, bucket: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        client.put_bucket_notification_configuration(bucket, replace(INVALID, id="x" * 300))
    for words in ("4 problems", "topic_name", "s3:Nothing", "prefix filter", "The Id"):
        assert words in caught.value.message


def test_text_that_is_not_utf_8_and_what_is_no_message_are_the_callers_mistake(front: Front, bucket: str) -> None:
    header = pb.RequestHeader(api_key=front.key().api_key.encode())
    good = pb.PutBucketNotificationConfigurationRequest(header=header, name=bucket.encode()).SerializeToString()
    surrogate = b"\x1a\x05\x0a\x03\xed\xa0\x80"  # configuration { id } with half of a pair, as UTF-8 must not have it
    for request in (good + surrogate, b"\xff", good[:-1]):
        with pytest.raises(grpc.RpcError) as caught:
            raw(front, PUT, request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
        assert "not UTF-8" in caught.value.details()  # type: ignore[attr-defined]


def test_a_field_of_the_future_is_refused_where_it_could_limit_and_passed_over_where_it_cannot(
    front: Front, client: Metainfo, bucket: str
) -> None:
    """Without that, a configuration of nothing but new fields would be an empty one, and delete."""
    client.put_bucket_notification_configuration(bucket, CREATED)
    unknown = b"\x2a\x01x"  # field 5
    key = front.key().api_key.encode()
    header = pb.RequestHeader.FromString(pb.RequestHeader(api_key=key).SerializeToString() + b"\x12\x05agent")  # field 2
    for configuration in (
        pb.NotificationConfiguration.FromString(unknown),
        pb.NotificationConfiguration(filter=pb.FilterRule.FromString(unknown)),
    ):
        request = pb.PutBucketNotificationConfigurationRequest(header=header, name=bucket.encode(), configuration=configuration)
        with pytest.raises(grpc.RpcError, match=r"Field 5 of configuration.* is not known here"):
            raw(front, PUT, request.SerializeToString())
    assert client.get_bucket_notification_configuration(bucket) == CREATED
    get = pb.GetBucketNotificationConfigurationRequest(header=header, name=bucket.encode())
    assert pb.GetBucketNotificationConfigurationResponse.FromString(raw(front, GET, get.SerializeToString())).configuration.id


@pytest.mark.parametrize("name", ["", "No-Bucket", "a\0b", "x" * 64, "192.168.0.1", "ü", "x" * 50_000])
def test_what_is_no_name_of_a_bucket_is_an_invalid_argument(client: Metainfo, name: str) -> None:
    for call in (
        lambda: client.get_bucket_notification_configuration(name),
        put(client, name, CREATED),
        put(client, name, None),
    ):
        with pytest.raises(InvalidConfiguration, match="is not a bucket's name"):
            call()


def test_a_name_that_is_not_utf_8_is_an_invalid_argument(front: Front) -> None:
    header = pb.RequestHeader(api_key=front.key().api_key.encode())
    request = pb.GetBucketNotificationConfigurationRequest(header=header, name=b"bucket\xff")
    with pytest.raises(grpc.RpcError, match=r"bucket\\xff.*it is not UTF-8"):
        raw(front, GET, request.SerializeToString())


def test_a_bucket_that_is_not_there_is_not_found_before_anything_about_the_configuration(
    front: Front, client: Metainfo
) -> None:
    published = front.published(TOPIC)
    for configuration in (CREATED, INVALID, None):
        with pytest.raises(NoSuchBucket, match="does not exist"):
            client.put_bucket_notification_configuration("no-such-bucket", configuration)
    with pytest.raises(NoSuchBucket):
        client.get_bucket_notification_configuration("no-such-bucket")
    assert front.published(TOPIC) == published


@pytest.mark.parametrize(
    ("fault", "words"),
    [("not_found", "NOT_FOUND"), ("permission_denied", "PERMISSION_DENIED"), ("unavailable", "UNAVAILABLE")],
)
def test_a_topic_that_refuses_the_test_event_is_told_in_its_own_words(
    front: Front, client: Metainfo, bucket: str, fault: str, words: str
) -> None:
    client.put_bucket_notification_configuration(bucket, REMOVED)
    before = front.table()
    front.pubsub.set_fault(TOPIC, fault)
    try:
        with pytest.raises(NotAccepted, match=f"Unable to validate.*{words}.*was not changed"):
            client.put_bucket_notification_configuration(bucket, CREATED)
        assert front.table() == before
        client.put_bucket_notification_configuration(bucket, None)  # nobody is asked for a deletion
    finally:
        front.pubsub.set_fault(TOPIC, None)


def test_a_topic_that_does_not_exist_is_a_failed_precondition(client: Metainfo, bucket: str) -> None:
    with pytest.raises(NotAccepted, match=r"arn:gcp:pubsub::tidings-test:missing .*NOT_FOUND"):
        client.put_bucket_notification_configuration(
            bucket, replace(CREATED, topic_name="projects/tidings-test/topics/missing")
        )


def test_a_deadline_ends_a_call_and_leaves_what_was_there(front: Front, client: Metainfo, bucket: str) -> None:
    client.put_bucket_notification_configuration(bucket, REMOVED)
    before = front.table()
    front.pubsub.set_fault(TOPIC, "hang")
    try:
        with front.client(timeout=1.0) as hasty, pytest.raises(Unavailable) as caught:
            hasty.put_bucket_notification_configuration(bucket, CREATED)
        assert caught.value.status is grpc.StatusCode.DEADLINE_EXCEEDED
    finally:
        front.pubsub.set_fault(TOPIC, None)
    time.sleep(0.5)  # a call that had gone on would be through by now
    assert front.table() == before


def test_calls_that_are_given_up_at_any_moment_leave_a_whole_configuration_and_no_connection(front: Front, bucket: str) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    header = pb.RequestHeader(api_key=front.key().api_key.encode())
    wanted = [
        pb.NotificationConfiguration(id="same", topic_name=topic, events=[event], filter=pb.FilterRule(prefix=event))
        for topic, event in ((TOPIC, "s3:ObjectCreated:*"), (OTHER_TOPIC, "s3:ObjectRemoved:*"))
    ]
    with grpc.insecure_channel(front.target) as channel:
        method = channel.unary_unary(f"/tidings.metainfo.Metainfo/{PUT}")
        for number in range(60):
            request = pb.PutBucketNotificationConfigurationRequest(
                header=header, name=bucket.encode(), configuration=wanted[number % 2]
            )
            call = method.future(request.SerializeToString(), timeout=60)
            time.sleep(chance.random() * 0.06)
            call.cancel()
        assert method(request.SerializeToString(), timeout=60) == b""
    get = pb.GetBucketNotificationConfigurationRequest(header=header, name=bucket.encode()).SerializeToString()
    assert pb.GetBucketNotificationConfigurationResponse.FromString(raw(front, GET, get)).configuration == wanted[1], seed
    open_ = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%%'"
    until(lambda: front.server.query(open_) == [(0,)], "no transaction is left open")
    with front.client() as client:
        for _ in range(30):  # more than there are connections in the pool
            client.get_bucket_notification_configuration(bucket)
    assert "Traceback" not in front.server.log


def test_more_calls_than_a_worker_takes_are_told_so(front: Front, client: Metainfo, bucket: str) -> None:
    header = pb.RequestHeader(api_key=front.key().api_key.encode())
    configuration = pb.NotificationConfiguration(topic_name=TOPIC, events=["s3:ObjectCreated:*"])
    request = pb.PutBucketNotificationConfigurationRequest(header=header, name=bucket.encode(), configuration=configuration)
    front.pubsub.set_fault(TOPIC, "hang")
    try:
        with ExitStack() as open_:
            methods = [channel.unary_unary(f"/tidings.metainfo.Metainfo/{PUT}") for channel in connections(front, open_, 6)]
            calls = [method.future(request.SerializeToString(), timeout=60) for method in methods for _ in range(90)]
            told = until(lambda: [call for call in calls if call.done()], "those beyond the limit are told")
            assert {call.code() for call in told} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            for call in calls:
                call.cancel()
    finally:
        front.pubsub.set_fault(TOPIC, None)
    until(lambda: status(lambda: client.get_bucket_notification_configuration(bucket)) == "OK", "there is room again")


def connections(front: Front, open_: ExitStack, number: int) -> list[Any]:
    """Each of its own: a connection has room for a hundred calls."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    return [open_.enter_context(grpc.insecure_channel(front.target, options=options)) for _ in range(number)]


def test_calls_that_send_nothing_take_nobody_s_place(front: Front, client: Metainfo, bucket: str) -> None:
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    with ExitStack() as open_:
        methods = [channel.stream_unary(f"/tidings.metainfo.Metainfo/{PUT}") for channel in connections(front, open_, 3)]
        calls = [method.future(nothing()) for method in methods for _ in range(90)]
        try:
            time.sleep(0.5)
            assert client.get_bucket_notification_configuration(bucket) is None
            assert not any(call.done() for call in calls)
        finally:
            over.set()
            for call in calls:
                call.cancel()


def test_a_request_beyond_64_kib_is_refused(client: Metainfo, bucket: str) -> None:
    with pytest.raises(Unavailable, match="larger than max"):
        client.put_bucket_notification_configuration(bucket, replace(CREATED, prefix="x" * 70_000))


# Who may.


def both(front: Front, api_key: str, bucket: str) -> tuple[str, str, str]:
    """The statuses of a put, a deletion and a get with this key."""
    with front.client(api_key) as client:
        get = status(lambda: client.get_bucket_notification_configuration(bucket))
        return status(put(client, bucket, CREATED)), status(put(client, bucket, None)), get


DENIED = "PERMISSION_DENIED"


def test_each_method_takes_its_own_action(front: Front, bucket: str) -> None:
    assert both(front, front.key((PUT,)).api_key, bucket) == ("OK", "OK", DENIED)
    assert both(front, front.key((GET,)).api_key, bucket) == (DENIED, DENIED, "OK")
    assert both(front, front.key(ACTIONS[:4]).api_key, bucket) == (DENIED, DENIED, DENIED)


def test_a_key_is_held_to_its_limits(front: Front, bucket: str) -> None:
    other, now = front.bucket(), int(time.time())
    for limit, here, there in [
        ({"buckets": frozenset({bucket})}, "OK", DENIED),
        ({"prefixes": frozenset({(bucket, "logs/")})}, DENIED, DENIED),
        ({"prefixes": frozenset({(bucket, "")})}, "OK", DENIED),
        ({"actions": frozenset({"read"})}, DENIED, DENIED),
        ({"not_after": now - 10}, DENIED, DENIED),
        ({"not_before": now + 1000}, DENIED, DENIED),
        ({"not_before": now - 1000, "not_after": now + 1000}, "OK", "OK"),
    ]:
        key = front.key(**limit).api_key
        assert both(front, key, bucket) == (here,) * 3, limit
        assert both(front, key, other) == (there,) * 3, limit


def test_a_key_that_its_holder_narrowed_without_asking_anybody_is_held_to_that(front: Front, bucket: str) -> None:
    narrow = Macaroon.parse(front.key().api_key).restricted(Caveat(buckets=frozenset({bucket})))
    assert both(front, str(narrow), bucket) == ("OK",) * 3
    assert both(front, str(narrow), front.bucket()) == (DENIED,) * 3


def _restricted(api_key: str, caveat: bytes) -> Macaroon:
    """By somebody who knows of a caveat that this version does not."""
    key = Macaroon.parse(api_key)
    return Macaroon(key.head, (*key.caveats, caveat), hmac.digest(key.tail, caveat, "sha256"))


def test_keys_that_are_none_are_all_told_the_same(front: Front, bucket: str) -> None:
    good = Macaroon.parse(front.key(buckets=frozenset({"another"})).api_key)
    revoked = front.key().api_key
    assert both(front, revoked, bucket)[2] == "OK"
    front.revoke(revoked)
    parent = Macaroon.parse(front.key().api_key)
    child = str(parent.restricted(Caveat(buckets=frozenset({bucket}))))
    front.revoke(str(parent))
    keys = {
        "missing": b"",
        "no key at all": b"x",
        "not text": b"\xff\xfe",
        "an access key id": front.key().access_key_id.encode(),
        "unknown": str(Macaroon.new(bytes(32))).encode(),
        "without its caveat": str(Macaroon(good.head, (), good.tail)).encode(),
        "with another tail": str(Macaroon(good.head, good.caveats, bytes(32))).encode(),
        "with a caveat that is not signed": str(Macaroon(good.head, (*good.caveats, b"{}"), good.tail)).encode(),
        "with a caveat that is not understood": str(_restricted(front.key().api_key, b'{"colour":"blue"}')).encode(),
        "cut off": str(good)[:-1].encode(),
        "revoked": revoked.encode(),
        "made of a revoked one": child.encode(),
        "very long": b"tdk1-" + b"A" * 40_000,
    }
    told = set()
    for key in keys.values():
        request = pb.GetBucketNotificationConfigurationRequest(header=pb.RequestHeader(api_key=key), name=bucket.encode())
        for method in METHODS:
            with pytest.raises(grpc.RpcError) as caught:
                raw(front, method, request.SerializeToString())
            told.add((caught.value.code(), caught.value.details()))  # type: ignore[attr-defined]
    ((code, details),) = told
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "authorization: Bearer" in details


def test_the_key_may_come_in_the_metadata_and_the_one_in_the_request_counts_first(front: Front, bucket: str) -> None:
    good, bad = front.key().api_key, front.key((), buckets=frozenset()).api_key
    bare = pb.GetBucketNotificationConfigurationRequest(name=bucket.encode())
    for value in (f"Bearer {good}", f"bearer {good}"):
        assert raw(front, GET, bare.SerializeToString(), authorization=value) == b""
    for value in (good, f"Basic {good}", "Bearer", "Bearer x"):
        assert status(lambda value=value: raw(front, GET, bare.SerializeToString(), authorization=value)) == "UNAUTHENTICATED"  # type: ignore[misc]
    with_key = pb.GetBucketNotificationConfigurationRequest(name=bucket.encode(), header=pb.RequestHeader(api_key=bad.encode()))
    assert status(lambda: raw(front, GET, with_key.SerializeToString(), authorization=f"Bearer {good}")) == DENIED
    long = Macaroon.parse(good)
    for number in range(8):
        long = long.restricted(Caveat(buckets=frozenset({bucket, str(number) * 1900})))
    assert len(str(long)) > 20_000
    assert raw(front, GET, bare.SerializeToString(), authorization=f"Bearer {long}") == b"", "also a long one"


def test_another_projects_bucket_is_not_there(front: Front, bucket: str) -> None:
    theirs = front.key(project=front.encrypted_project()).api_key
    assert both(front, theirs, bucket) == ("FAILED_PRECONDITION", "FAILED_PRECONDITION", "NOT_FOUND")


# In which order.


def test_without_eventing_a_project_learns_nothing_else(closed: Front) -> None:
    bucket = closed.bucket()
    for project in (closed.server.project, closed.encrypted_project()):
        for access in (closed.key(project=project), closed.key((), project=project)):
            with closed.client(access.api_key) as client:
                for name in (bucket, "no-such-bucket", "No Name", ""):
                    for configuration in (CREATED, INVALID, None):
                        with pytest.raises(NotEnabled, match="not enabled for this project"):
                            client.put_bucket_notification_configuration(name, configuration)
                    with pytest.raises(NotEnabled):
                        client.get_bucket_notification_configuration(name)
    with closed.client("tdk1-nobody") as client, pytest.raises(Unauthenticated):
        client.get_bucket_notification_configuration(bucket)


def test_encrypted_paths_are_told_before_permission_and_do_not_matter_for_a_get(front: Front) -> None:
    project = front.encrypted_project()
    full, none = front.key(project=project), front.key(("read",), project=project)
    bucket = front.bucket(full)
    for access in (full, none):
        with front.client(access.api_key) as client:
            for name in (bucket, "no-such-bucket", "No Name"):
                for configuration in (CREATED, INVALID, None):
                    with pytest.raises(NotAccepted) as caught:
                        client.put_bucket_notification_configuration(name, configuration)
                    assert caught.value.message == (
                        "Bucket eventing requires satellite-managed encryption (path encryption must be disabled)"
                    )
    assert both(front, full.api_key, bucket)[2] == "OK"
    assert both(front, none.api_key, bucket)[2] == DENIED


def test_permission_is_asked_before_anything_about_what_was_sent(front: Front, bucket: str) -> None:
    with front.client(front.key((GET,)).api_key) as client:
        for name in (bucket, "no-such-bucket", "No Name", ""):
            for configuration in (CREATED, INVALID, None):
                with pytest.raises(PermissionDenied, match=f"does not allow {PUT}"):
                    client.put_bucket_notification_configuration(name, configuration)
    with front.client(front.key((PUT,)).api_key) as client:
        for name in (bucket, "no-such-bucket", "No Name", ""):
            with pytest.raises(PermissionDenied, match=f"does not allow {GET}"):
                client.get_bucket_notification_configuration(name)


# What else can be.


def test_the_profiles_differ_in_the_events_that_may_be_named(front: Front, storj: Front, bucket: str) -> None:
    by_storj = storj.bucket()
    of_both = ("Created:Put", "Created:Copy", "Created:*", "Removed:Delete", "Removed:DeleteMarkerCreated", "Removed:*")
    of_aws = ("Created:Post", "Created:CompleteMultipartUpload")
    with front.client() as aws_client, storj.client() as storj_client:
        for kind in (*of_both, *of_aws):
            configuration = replace(CREATED, events=(f"s3:Object{kind}",))
            aws_client.put_bucket_notification_configuration(bucket, configuration)
            expected = "OK" if kind in of_both else "INVALID_ARGUMENT"
            assert status(put(storj_client, by_storj, configuration)) == expected, kind
        storj_client.put_bucket_notification_configuration(by_storj, CREATED)
        assert storj_client.get_bucket_notification_configuration(by_storj) == CREATED


def test_what_is_unexpected_is_internal_and_says_only_the_request_s_id(postgres: Postgres, tmp_path: Path) -> None:
    with metainfo_server(fresh_database(postgres, "metainfo_broken"), tmp_path) as front:
        bucket = front.bucket()
        with front.client() as client:
            _rename(front, "bucket_eventing_configs", "elsewhere")
            for call in (put(client, bucket, CREATED), lambda: client.get_bucket_notification_configuration(bucket)):
                with pytest.raises(MetainfoError) as caught:
                    call()
                assert caught.value.status is grpc.StatusCode.INTERNAL
                told = re.fullmatch(r"We encountered an internal error\. .*Request ([0-9A-F]{16})\.", caught.value.message)
                assert told, caught.value.message
                assert f"request {told[1]}" in front.server.log
            _rename(front, "elsewhere", "bucket_eventing_configs")
            client.put_bucket_notification_configuration(bucket, CREATED)


def _rename(front: Front, old: str, new: str) -> None:
    with psycopg.connect(front.server.database_url, autocommit=True) as connection:
        connection.execute(f"alter table {old} rename to {new}".encode())


def test_no_secret_and_no_private_id_is_in_the_log(front: Front, client: Metainfo, bucket: str) -> None:
    client.put_bucket_notification_configuration(bucket, CREATED)
    ((private,),) = front.server.query("select id::text from projects where public_id = %s", front.server.project)
    assert private not in front.server.log
    assert "tdk1-" not in front.server.log


def test_the_example_in_the_guide_runs(front: Front, bucket: str) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "grpc.md").read_text(), re.DOTALL)
    environment = {"METAINFO": front.target, "API_KEY": front.key().api_key}
    code = example.replace("my-bucket", bucket).replace("projects/my-project/topics/my-events", TOPIC)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["('s3:ObjectCreated:*',) under photos/", "INVALID_ARGUMENT"]
