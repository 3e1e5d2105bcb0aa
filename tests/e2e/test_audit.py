"""The audit log: acts through every front and by commands, done or refused, are rows; what handles objects is not."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import boto3
import psycopg
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from metainfo_server import CREATED, Front, metainfo_server
from s3_server import REGION

import canary
from conftest import fresh_database
from tidings import audit
from tidings.access import api_keys
from tidings.client import NoSuchBucket
from tidings.local.postgres import Postgres
from traffic import PROGRAMS, tidings
from waiting import until

TOKEN = secrets.token_urlsafe(24)
WEBHOOK_SECRET = "whsec_" + "c2VjcmV0IG9mIHRoZSB3ZWJob29rIGluIGEgdGVzdA=="
ENDPOINT = f"http://127.0.0.1:9/hook?token={TOKEN}"
HERE = "127.0.0.1"
Row = tuple[str, str, str, str, str]
_WAITS = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


@pytest.fixture(scope="module")
def front(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    allowed = {"TIDINGS_OUTGOING__ALLOW": '["127.0.0.0/8"]', "TIDINGS_OUTGOING__ALLOW_HTTP": "true"}
    folder = tmp_path_factory.mktemp("audit")
    with metainfo_server(fresh_database(postgres, "audit"), folder, **allowed) as made:
        yield made


def client(front: Front, service: str, **key: str) -> Any:
    own = {"aws_access_key_id": front.server.access_key_id, "aws_secret_access_key": front.server.secret}
    config = Config(retries={"total_max_attempts": 1})
    return boto3.client(service, endpoint_url=front.server.endpoint, region_name=REGION, config=config, **{**own, **key})


def last_id(front: Front) -> int:
    return int(front.server.query("select coalesce(max(id), 0) from audit_log")[0][0])


def since(front: Front, last: int, project: str | None = "") -> list[Row]:
    """(action, target, outcome, actor, source) of the acts after that one, all of this project, by default the server's own."""
    rows = front.server.query(
        "select action, target, outcome, actor, source, project from audit_log where id > %s order by id", last
    )
    assert {row[5] for row in rows} <= {front.server.project if project == "" else project}
    return [(action, target, outcome, actor, source) for action, target, outcome, actor, source, _ in rows]


def catalog(front: Front, method: str, name: str, api_key: str, destination: str = "arn:gcp:pubsub::tidings-test:one") -> int:
    connection = http.client.HTTPConnection(HERE, front.server.port, timeout=30)
    body = json.dumps({"destination": destination}) if method == "PUT" else None
    connection.request(method, f"/-/catalog/subscriptions/{name}", body, {"authorization": f"Bearer {api_key}"})
    answer = connection.getresponse()
    canary.seen(answer.read())
    return answer.status


def test_every_change_of_a_configuration_is_a_row_and_nothing_else_is(front: Front) -> None:
    s3, sns, sqs = (client(front, service) for service in ("s3", "sns", "sqs"))
    own, last = front.server.access_key_id, last_id(front)
    s3.create_bucket(Bucket="acts")
    s3.put_bucket_versioning(Bucket="acts", VersioningConfiguration={"Status": "Enabled"})
    queue = sqs.create_queue(QueueName="acts")["QueueUrl"]
    arn = f"arn:aws:sqs:{REGION}:{front.server.project}:acts"
    rule = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
    s3.put_bucket_notification_configuration(Bucket="acts", NotificationConfiguration=rule)
    topic = sns.create_topic(Name="acts")["TopicArn"]
    sns.set_topic_attributes(TopicArn=topic, AttributeName="DisplayName", AttributeValue="name")
    given = {"WebhookSecrets": WEBHOOK_SECRET, "RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=ENDPOINT, Attributes=given)
    subscription = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)["SubscriptionArn"]
    sns.set_subscription_attributes(SubscriptionArn=subscription, AttributeName="RawMessageDelivery", AttributeValue="true")
    sns.unsubscribe(SubscriptionArn=subscription)
    sns.delete_topic(TopicArn=topic)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": "1"})
    sqs.purge_queue(QueueUrl=queue)

    s3.put_object(Bucket="acts", Key="k", Body=b"x")
    s3.get_object(Bucket="acts", Key="k")
    s3.list_objects_v2(Bucket="acts")
    s3.get_bucket_notification_configuration(Bucket="acts")
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    sqs.receive_message(QueueUrl=queue)
    sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])
    sns.list_topics()

    sqs.delete_queue(QueueUrl=queue)
    short = subscription[: -len(subscription.rpartition(":")[2]) + 8]
    place = f"{front.server.project}/acts"
    assert since(front, last) == [
        (action, target, "ok", own, HERE)
        for action, target in (
            ("s3:CreateBucket", "acts"),
            ("s3:PutBucketVersioning", "acts"),
            ("sqs:CreateQueue", "acts"),
            ("s3:PutBucketNotificationConfiguration", "acts"),
            ("sns:CreateTopic", "acts"),
            ("sns:SetTopicAttributes", topic),
            ("sns:Subscribe", topic),
            ("sns:Subscribe", topic),
            ("sns:SetSubscriptionAttributes", short),
            ("sns:Unsubscribe", short),
            ("sns:DeleteTopic", topic),
            ("sqs:SetQueueAttributes", place),
            ("sqs:PurgeQueue", place),
            ("sqs:DeleteQueue", place),
        )
    ]


def test_the_catalog_and_grpc_have_their_rows_too(front: Front) -> None:
    access, last = front.key(), last_id(front)
    bucket = front.bucket()
    front.client(access.api_key).put_bucket_notification_configuration(bucket, CREATED)
    with pytest.raises(NoSuchBucket):
        front.client(access.api_key).put_bucket_notification_configuration("no-such-bucket", CREATED)
    assert catalog(front, "PUT", "mine", access.api_key) == 200
    assert catalog(front, "DELETE", "mine", access.api_key) == 204
    assert catalog(front, "DELETE", "mine", access.api_key) == 404
    assert catalog(front, "PUT", "mine", front.key(["read"]).api_key) == 403
    rows = since(front, last)
    assert [row[:3] for row in rows] == [
        ("s3:CreateBucket", bucket, "ok"),
        ("grpc:PutBucketNotificationConfiguration", bucket, "ok"),
        ("grpc:PutBucketNotificationConfiguration", "no-such-bucket", "NoSuchBucket"),
        ("catalog:subscribe", "mine", "ok"),
        ("catalog:unsubscribe", "mine", "ok"),
        ("catalog:unsubscribe", "mine", "NOT_FOUND"),
        ("catalog:subscribe", "mine", "FORBIDDEN"),
    ]
    assert all(HERE in source for *_, source in rows)
    assert {actor for _, _, _, actor, _ in rows[1:6]} == {access.access_key_id}


def test_what_is_refused_is_a_row_with_its_code_and_a_stranger_leaves_none(front: Front) -> None:
    front.bucket()
    bucket = front.bucket()
    narrow = front.key(["read", "list"])
    keys = {"aws_access_key_id": narrow.access_key_id, "aws_secret_access_key": narrow.secret}
    last = last_id(front)
    tries: list[tuple[Any, str, dict[str, Any]]] = [
        (client(front, "s3"), "create_bucket", {"Bucket": bucket}),
        (client(front, "s3", **keys), "create_bucket", {"Bucket": "other"}),
        (client(front, "s3", **keys), "delete_bucket", {"Bucket": bucket}),
        (client(front, "s3"), "delete_bucket", {"Bucket": "no-such-bucket"}),
        (client(front, "sns", **keys), "create_topic", {"Name": "other"}),
        (client(front, "sqs", **keys), "create_queue", {"QueueName": "other"}),
        (client(front, "sqs"), "delete_queue", {"QueueUrl": f"{front.server.endpoint}/{front.server.project}/none"}),
    ]
    for caller, name, given in tries:
        with pytest.raises(ClientError):
            getattr(caller, name)(**given)
    rows = since(front, last)
    assert [row[:3] for row in rows] == [
        ("s3:CreateBucket", bucket, "BucketAlreadyOwnedByYou"),
        ("s3:CreateBucket", "other", "AccessDenied"),
        ("s3:DeleteBucket", bucket, "AccessDenied"),
        ("s3:DeleteBucket", "no-such-bucket", "NoSuchBucket"),
        ("sns:CreateTopic", "other", "AuthorizationError"),
        ("sqs:CreateQueue", "other", "AccessDeniedException"),
        ("sqs:DeleteQueue", f"{front.server.project}/none", "QueueDoesNotExist"),
    ]
    assert [row[3] == narrow.access_key_id for row in rows] == [False, True, True, False, True, True, False]
    wrong = {"aws_secret_access_key": "x" * 40}
    for service, name, given in (
        ("s3", "create_bucket", {"Bucket": "strange"}),
        ("sns", "create_topic", {"Name": "strange"}),
        ("sqs", "create_queue", {"QueueName": "strange"}),
    ):
        with pytest.raises(ClientError):
            getattr(client(front, service, **wrong), name)(**given)
    assert len(since(front, last)) == len(rows)


def test_an_act_that_cannot_be_written_down_is_not_done(front: Front) -> None:
    """The row is part of the act's transaction: here every row is refused, and nothing changes."""
    s3, sns, sqs = (client(front, service) for service in ("s3", "sns", "sqs"))
    bucket, topic = front.bucket(), sns.create_topic(Name="kept")["TopicArn"]
    queue = sqs.create_queue(QueueName="kept")["QueueUrl"]
    arn = f"arn:aws:sqs:{REGION}:{front.server.project}:kept"
    rule = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
    state = """select (select json_agg(b order by id) from bucket_metainfos b)::text,
        (select json_agg(t order by arn) from topics t)::text,
        (select json_agg(s order by arn) from subscriptions s)::text, (select json_agg(q order by id) from queues q)::text,
        (select json_agg(c order by rule) from bucket_eventing_configs c)::text,
        (select json_agg(c order by name) from catalog_subscriptions c)::text"""
    with psycopg.connect(front.server.database_url, autocommit=True) as connection:
        connection.execute("alter table audit_log add constraint planted check (false) not valid")
        try:
            before = connection.execute(state).fetchall()
            acts: list[tuple[Any, dict[str, Any]]] = [
                (s3.create_bucket, {"Bucket": "not-made"}),
                (s3.delete_bucket, {"Bucket": bucket}),
                (s3.put_bucket_versioning, {"Bucket": bucket, "VersioningConfiguration": {"Status": "Enabled"}}),
                (s3.put_bucket_notification_configuration, {"Bucket": bucket, "NotificationConfiguration": rule}),
                (sns.create_topic, {"Name": "not-made"}),
                (sns.delete_topic, {"TopicArn": topic}),
                (sns.subscribe, {"TopicArn": topic, "Protocol": "sqs", "Endpoint": arn}),
                (sqs.create_queue, {"QueueName": "not-made"}),
                (sqs.delete_queue, {"QueueUrl": queue}),
                (sqs.set_queue_attributes, {"QueueUrl": queue, "Attributes": {"DelaySeconds": "7"}}),
            ]
            for act, given in acts:
                with pytest.raises(ClientError) as failed:
                    act(**given)
                assert failed.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500, act
            assert catalog(front, "PUT", "not-made", front.key().api_key) == 500
            for words in (("secrets", "rotate"), ("sweep",), ("bucket", "empty", bucket, "--project", "tests")):
                url = front.server.database_url
                done = tidings(*words, TIDINGS_DATABASE__URL=url, **_store(front))
                assert done.returncode == 2, done.stderr
                assert "The audit log cannot be written, so nothing was done: " in done.stderr
            assert connection.execute(state).fetchall() == before
            s3.put_object(Bucket=bucket, Key="k", Body=b"objects go on")
        finally:
            connection.execute("alter table audit_log drop constraint planted")


def test_what_a_tenant_writes_commands_no_terminal_and_a_subscription_is_never_named_whole(front: Front) -> None:
    sns, last = client(front, "sns"), last_id(front)
    with pytest.raises(ClientError):
        sns.create_topic(Name="x\x1b[2K\u202ey\nz")
    topic = sns.create_topic(Name="shy")["TopicArn"]
    name = f"{topic}:00000000-0000-4000-8000-000000000000"
    for call in (lambda: sns.tag_resource(ResourceArn=name, Tags=[]), lambda: sns.delete_topic(TopicArn=f"{name}.")):
        with pytest.raises(ClientError):
            call()
    targets = [row[1] for row in since(front, last)]
    assert targets == [r"x\x1b[2K\u202ey\nz", "shy", f"{topic}:00000000", f"{topic}:00000000"]
    assert "\x1b" not in tidings("audit", "list", TIDINGS_DATABASE__URL=front.server.database_url).stdout


def test_who_has_a_key_fills_no_log_with_refusals(front: Front) -> None:
    sns, last = client(front, "sns"), last_id(front)
    for number in range(3 * audit._MOST_REFUSALS):
        with pytest.raises(ClientError):
            sns.create_topic(Name=f"no/name/{number}")
    assert 0 < len(since(front, last)) <= 2 * audit._MOST_REFUSALS, "a minute may have ended in between"
    sns.create_topic(Name="counted")
    assert since(front, last)[-1][1:3] == ("counted", "ok"), "what is done is always written down"


@pytest.mark.parametrize("before_it", ["", "set local session_replication_role = replica;"])
@pytest.mark.parametrize("change", ["update audit_log set outcome = 'ok'", "delete from audit_log", "truncate audit_log"])
def test_rows_are_only_ever_added(front: Front, change: str, before_it: str) -> None:
    front.bucket()
    before = last_id(front)
    with (
        psycopg.connect(front.server.database_url) as connection,
        pytest.raises(psycopg.errors.RaiseException, match="append-only"),
    ):
        connection.execute(f"{before_it}{change}".encode())
    assert last_id(front) == before
    assert front.server.query("select count(*) from audit_log where id <= %s", before)[0][0] > 0


def _command(front: Front, *words: str) -> Any:
    forged = {"LOGNAME": "forged", "USER": "forged"}
    done = tidings(*words, "--json", TIDINGS_DATABASE__URL=front.server.database_url, **forged, **_store(front))
    return json.loads(done.stdout) if done.returncode == 0 else None


def _store(front: Front) -> dict[str, str]:
    return {
        "TIDINGS_STORE__BLOBS": f"file://{front.server.folder}/blobs",
        "TIDINGS_BUCKET_EVENTING__PROJECTS": "*",
        "TIDINGS_PUBSUB__EMULATOR_HOST": front.pubsub.address,
    }


def test_commands_are_rows_and_no_secret_is_in_any(front: Front) -> None:
    last, bucket = last_id(front), front.bucket()
    made = _command(front, "project", "create", "audited")
    project = made["project"]
    key = _command(front, "access", "create", "--project", "audited")
    narrow = _command(front, "access", "restrict", key["api_key"], "--action", "read")
    assert _command(front, "access", "revoke", key["api_key"])
    assert _command(front, "access", "revoke", "AKIA" + "A" * 16) is None
    assert _command(front, "access", "restrict", key["api_key"], "--action", "read") is None
    assert _command(front, "project", "create", "audited") is None
    arn = "arn:gcp:pubsub::tidings-test:one"
    of = ("--bucket", bucket, "--project", "tests", "--id", "r")
    assert _command(front, "rules", "add", *of, "--topic", arn, "--event", "s3:ObjectCreated:*")
    assert _command(front, "rules", "add", *of, "--topic", arn, "--event", "s3:ObjectCreated:*") is None
    assert _command(front, "rules", "backfill", bucket, "none", "--project", "tests") is None
    assert _command(front, "rules", "remove", *of)
    assert _command(front, "lanes", "pause", "999999") is None
    assert _command(front, "bucket", "delete", bucket, "--project", "tests")
    assert _command(front, "rules", "list") is not None
    assert _command(front, "access", "list", "--project", "audited")
    rows = front.server.query(
        "select action, target, outcome, project, actor, source from audit_log where id > %s order by id", last
    )
    assert [row[:4] for row in rows[1:]] == [
        ("project create", "audited", "ok", project),
        ("access create", key["access_key_id"], "ok", project),
        ("access restrict", narrow["access_key_id"], "ok", project),
        ("access revoke", key["access_key_id"], "ok", project),
        ("access revoke", "", "OperatorError", None),
        ("access restrict", "", "OperatorError", None),
        ("project create", "audited", "OperatorError", None),
        ("rules add", f"{bucket}/r", "ok", front.server.project),
        ("rules add", f"{bucket}/r", "OperatorError", front.server.project),
        ("rules backfill", f"{bucket}/none", "OperatorError", front.server.project),
        ("rules remove", f"{bucket}/r", "ok", front.server.project),
        ("lanes pause", "999999", "OperatorError", None),
        ("bucket delete", bucket, "ok", front.server.project),
    ]
    assert {row[4].partition(",")[0] for row in rows[1:]} == {pwd.getpwuid(os.getuid()).pw_name}, (
        "not what the environment says"
    )
    assert all(source.endswith(f": tidings {action}") for action, _, _, _, _, source in rows[1:])
    _no_secret_in_the_log(front)


def test_an_act_that_takes_its_time_is_a_row_when_it_begins_and_one_however_it_ends(front: Front) -> None:
    key, last = front.key(), last_id(front)
    with psycopg.connect(front.server.database_url) as holding:  # so that it stands still
        holding.execute("select from access_keys where access_key_id = %s for update", [key.access_key_id])
        for how, outcomes in ((signal.SIGKILL, ["begun"]), (signal.SIGINT, ["begun", "begun", "KeyboardInterrupt"])):
            rotating = subprocess.Popen(
                [PROGRAMS / "tidings", "secrets", "rotate"],
                env={**os.environ, "TIDINGS_DATABASE__URL": front.server.database_url},
                stderr=subprocess.DEVNULL,
                preexec_fn=_obey_interrupts,
            )
            [(session,)] = until(lambda: front.server.query(_WAITS), "the rotation waits for the row")
            rotating.send_signal(how)
            rotating.wait()
            front.server.query("select pg_terminate_backend(%s)", session)
            until(lambda: not front.server.query(_WAITS), "its session has ended")
            assert _rotations(front, last) == outcomes
    assert _command(front, "secrets", "rotate")
    assert _rotations(front, last) == [*outcomes, "begun", "ok"]
    assert _command(front, "secrets", "rotate-signing-key")
    assert since(front, last, None)[-1][:3] == ("secrets rotate-signing-key", "", "ok")
    assert _command(front, "sweep")
    assert [row[:3] for row in since(front, last, None)[-2:]] == [("sweep", "", "begun"), ("sweep", "", "ok")]


def _obey_interrupts() -> None:
    """A shell starts what it runs in the background with SIGINT ignored, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _rotations(front: Front, last: int) -> list[str]:
    return [row[2] for row in since(front, last, None) if row[0] == "secrets rotate"]


def _no_secret_in_the_log(front: Front) -> None:
    log = "\n".join(row[0] for row in front.server.query("select a::text from audit_log a")).encode()
    with psycopg.connect(front.server.database_url) as connection:
        known = [
            secret
            for column in (api_keys.SECRET, api_keys.TAIL, api_keys.ROOT)
            for secret in canary.unsealed(connection, column)
        ]
    texts = [*known, *(text.encode() for text in (TOKEN, WEBHOOK_SECRET, WEBHOOK_SECRET.removeprefix("whsec_")))]
    assert len(texts) > 10
    found = [text for text in texts for form in canary.forms(text, False) if form in log]
    assert found == []
    for (private,) in front.server.query("select id::text from projects"):
        assert private.encode() not in log
    canary.seen(log)


def test_the_command_shows_acts_by_project_action_and_time(front: Front) -> None:
    with suppress(ClientError):
        client(front, "s3").create_bucket(Bucket="shown")
    client(front, "sns").create_topic(Name="shown")
    [newest] = _command(front, "audit", "list", "--limit", "1")
    assert (newest["action"], newest["target"], newest["outcome"]) == ("sns:CreateTopic", "shown", "ok")
    assert newest["actor"] == front.server.access_key_id
    assert newest["request"]
    of_s3 = _command(front, "audit", "list", "--action", "s3:", "--project", "tests", "--limit", "1000")
    assert of_s3[0]["target"] == "shown"
    assert {row["action"].partition(":")[0] for row in of_s3} == {"s3"}
    assert {row["project"] for row in of_s3} == {front.server.project}
    assert _command(front, "audit", "list", "--project", "nobody") == []
    assert _command(front, "audit", "list", "--since", "2100-01-01") == []
    assert len(_command(front, "audit", "list", "--since", "2020-01-01", "--limit", "3")) == 3
    text = tidings("audit", "list", TIDINGS_DATABASE__URL=front.server.database_url)
    assert "sns:CreateTopic" in text.stdout


def test_a_link_that_is_followed_is_a_row_and_one_that_is_wrong_is_none(front: Front) -> None:
    sns, sqs = client(front, "sns"), client(front, "sqs")
    topic = sns.create_topic(Name="linked")["TopicArn"]
    sqs.create_queue(QueueName="linked")
    arn = f"arn:aws:sqs:{REGION}:{front.server.project}:linked"
    subscription = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)["SubscriptionArn"]
    last = last_id(front)
    for wanted, name in ((404, f"{topic}:00000000-0000-4000-8000-000000000000"), (200, subscription)):
        connection = http.client.HTTPConnection(HERE, front.server.port, timeout=30)
        connection.request("GET", f"/?Action=Unsubscribe&SubscriptionArn={name}")
        assert connection.getresponse().status == wanted
    [(action, target, outcome, actor, source)] = since(front, last)
    assert (action, outcome, actor, source) == ("sns:Unsubscribe", "ok", "link", HERE)
    assert target.startswith(topic)
    assert subscription not in target
