"""What a key may do over S3, and that nothing else gets through."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from botocore.exceptions import ClientError
from s3_server import Server, s3_server

from conftest import fresh_database
from tidings.access import api_keys
from tidings.access.api_keys import Access
from tidings.access.macaroons import Caveat
from tidings.access.permissions import ACTIONS
from tidings.local.postgres import Postgres


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(fresh_database(postgres, "s3_permissions"), tmp_path_factory.mktemp("s3")) as running:
        s3 = running.client()
        for bucket in ("one", "two"):
            s3.create_bucket(Bucket=f"bucket-{bucket}")
            for key in ("a/x", "a/y", "b/x"):
                s3.put_object(Bucket=f"bucket-{bucket}", Key=key, Body=b"x")
        yield running


def made(server: Server, actions: tuple[str, ...] = ACTIONS, **limit: Any) -> Access:
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        return api_keys.create(connection, server.project, actions, Caveat(**limit))


def client(server: Server, access: Access) -> Any:
    return replace(server, access_key_id=access.access_key_id, secret=access.secret).client()


ONE, TWO = {"Bucket": "bucket-one"}, {"Bucket": "bucket-two"}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "read": ("get_object", {**ONE, "Key": "a/x"}),
    "read tags": ("get_object_tagging", {**ONE, "Key": "a/x"}),
    "head": ("head_object", {**ONE, "Key": "a/x"}),
    "write": ("put_object", {**ONE, "Key": "a/new", "Body": b"y"}),
    "write tags": ("put_object_tagging", {**ONE, "Key": "a/y", "Tagging": {"TagSet": []}}),
    "upload": ("create_multipart_upload", {**ONE, "Key": "a/large"}),
    "copy": ("copy_object", {**ONE, "Key": "a/copy", "CopySource": "bucket-one/a/x"}),
    "list": ("list_objects_v2", {**ONE, "Prefix": "a/"}),
    "list versions": ("list_object_versions", {**ONE, "Prefix": "a/"}),
    "delete": ("delete_object", {**ONE, "Key": "a/new"}),
    "delete many": ("delete_objects", {**ONE, "Delete": {"Objects": [{"Key": "a/new"}]}}),
    "see": ("head_bucket", {**ONE}),
    "version": ("put_bucket_versioning", {**ONE, "VersioningConfiguration": {"Status": "Suspended"}}),
    "configure": ("put_bucket_notification_configuration", {**ONE, "NotificationConfiguration": {}}),
    "look": ("get_bucket_notification_configuration", {**ONE}),
}
NEEDS = {
    "read": {"read", "read tags", "head", "see"},
    "write": {"write", "write tags", "upload", "version", "see"},
    "list": {"list", "list versions", "see"},
    "delete": {"delete", "delete many", "see"},
    "PutBucketNotificationConfiguration": {"configure", "see"},
    "GetBucketNotificationConfiguration": {"look", "see"},
}


def allowed(s3: Any) -> set[str]:
    """The calls that get through; every other one must be denied, and by that name."""
    answers = {name: answer(s3, method, arguments) for name, (method, arguments) in CALLS.items()}
    assert set(answers.values()) <= {"", "AccessDenied", "403"}, answers
    return {name for name, code in answers.items() if not code}


def answer(s3: Any, method: str, arguments: dict[str, Any]) -> str:
    """The code of the error; empty for a success."""
    try:
        getattr(s3, method)(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


@pytest.mark.parametrize("action", ACTIONS)
def test_a_key_for_one_action_does_that_and_no_more(server: Server, action: str) -> None:
    of_other_services = {"see"}  # any key of the project sees that the bucket is there
    assert allowed(client(server, made(server, (action,)))) == NEEDS.get(action, of_other_services)


def test_a_copy_takes_reading_and_writing(server: Server) -> None:
    assert "copy" in allowed(client(server, made(server, ("read", "write"))))
    here = made(server, prefixes=frozenset({("bucket-one", "a/")}))
    with pytest.raises(ClientError, match="AccessDenied"):
        client(server, here).copy_object(**ONE, Key="a/copy", CopySource="bucket-one/b/x")


def test_a_key_for_one_bucket_configures_only_that_one(server: Server) -> None:
    s3 = client(server, made(server, buckets=frozenset({"bucket-one"})))
    s3.put_bucket_notification_configuration(**ONE, NotificationConfiguration={})
    for method, arguments in [
        ("put_bucket_notification_configuration", {"NotificationConfiguration": {}}),
        ("get_bucket_notification_configuration", {}),
        ("list_objects_v2", {}),
        ("get_object", {"Key": "a/x"}),
    ]:
        with pytest.raises(ClientError, match="AccessDenied"):
            getattr(s3, method)(**TWO, **arguments)
    assert [each["Name"] for each in s3.list_buckets()["Buckets"]] == ["bucket-one"]


def test_a_key_limited_to_a_prefix_configures_nothing_and_stays_below_it(server: Server) -> None:
    s3 = client(server, made(server, prefixes=frozenset({("bucket-one", "a/")})))
    assert allowed(s3) == set(CALLS) - {"configure", "look", "version"}
    for method, arguments in [
        ("get_object", {"Key": "b/x"}),
        ("list_objects_v2", {}),
        ("delete_objects", {"Delete": {"Objects": [{"Key": "a/none"}, {"Key": "b/x"}]}}),
        ("rename_object", {"Key": "a/moved", "RenameSource": "b/x"}),
    ]:
        with pytest.raises(ClientError, match="AccessDenied"):
            getattr(s3, method)(**ONE, **arguments)
    assert server.client().head_object(**ONE, Key="b/x")["ContentLength"] == 1


def test_time_limits_a_key(server: Server) -> None:
    now = int(time.time())
    assert allowed(client(server, made(server, not_before=now + 60))) == set()
    assert allowed(client(server, made(server, not_after=now - 1))) == set()
    assert "read" in allowed(client(server, made(server, not_before=now - 60, not_after=now + 60)))


def test_a_revoked_key_ends_with_every_key_that_was_made_of_it(server: Server) -> None:
    parent = made(server)
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        child = api_keys.restrict(connection, parent.api_key, Caveat(buckets=frozenset({"bucket-one"})))
        sibling = made(server)
        for access in (parent, child, sibling):
            client(server, access).get_object(**ONE, Key="a/x")
        api_keys.revoke(connection, parent.access_key_id)
        assert api_keys.inspect(connection, child.api_key).revoked
    time.sleep(5.5)  # for so long a process may know a key
    for access in (parent, child):
        with pytest.raises(ClientError, match="InvalidAccessKeyId"):
            client(server, access).get_object(**ONE, Key="a/x")
    client(server, sibling).get_object(**ONE, Key="a/x")


def test_a_key_that_was_tampered_with_in_the_database_is_none(server: Server) -> None:
    access = made(server, buckets=frozenset({"bucket-one"}))
    server.query("update access_keys set caveats = '{}' where access_key_id = %s returning 1", access.access_key_id)
    with pytest.raises(ClientError, match="InvalidAccessKeyId"):
        client(server, access).get_object(**ONE, Key="a/x")
