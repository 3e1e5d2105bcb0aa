"""Seed 002 over HTTP: every scenario and every status, with signed messages to `tidings consume files`."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from conftest import fresh_database
from files_registry import (
    BUCKET,
    INTEGRATED,
    KEY,
    OTHER_TOPIC,
    SHA256,
    TEST_EVENT,
    Topic,
    Webhook,
    add_atlas,
    event,
    everything,
    files_webhook,
    record,
    rows,
    trusted_topic,
)
from sns_messages import stamp
from tidings.local.postgres import Postgres


@pytest.fixture(scope="module")
def database_url(postgres: Postgres) -> str:
    return fresh_database(postgres, "files_webhook")


@pytest.fixture(scope="module")
def topic() -> Iterator[Topic]:
    with trusted_topic() as found:
        yield found


@pytest.fixture(scope="module")
def webhook(database_url: str, topic: Topic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    with files_webhook(database_url, tmp_path_factory.mktemp("files"), topic.url) as running:
        yield running


@pytest.fixture(autouse=True)
def database(database_url: str, topic: Topic) -> Iterator[psycopg.Connection]:
    """The registry, empty."""
    topic.asked.clear()
    topic.status = 200
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("truncate hat.files, hat.removals, hat.messages, hat.atlases, hat.source_studies cascade")
        yield connection


def test_a_new_file_is_one_row(webhook: Webhook, topic: Topic, database: psycopg.Connection) -> None:
    answer = webhook.post(topic.message(event(record("gut/gut-v1/source-datasets/two words ä.h5ad", 0x10, version="v1"))))
    assert (answer.status, answer.body["inserted"]) == (200, 1)
    columns = ("bucket", "key", "version_id", "etag", "size_bytes", "sequencer", "file_type", "sha256_client", "is_latest")
    assert rows(database, *columns) == [
        (
            BUCKET,
            "gut/gut-v1/source-datasets/two words ä.h5ad",
            "v1",
            "0" * 32,
            1000,
            "10".zfill(32),
            "source_dataset",
            SHA256,
            True,
        )
    ]
    assert rows(database, "atlas_id", "source_study_id", "integrity_status", "sha256_server", "integrity_checked_at") == [
        (None, None, "pending", None, None)
    ]


def test_scenario_1_a_true_duplicate_changes_nothing(webhook: Webhook, topic: Topic, database: psycopg.Connection) -> None:
    webhook.post(topic.message(event(record(version="v1"))))
    before = everything(database), rows(database, "id", "updated_at")
    answer = webhook.post(topic.message(event(record(version="v1"))))
    assert (answer.status, answer.body) == (200, {"status": "processed", "updated": 1})
    assert (everything(database), rows(database, "id", "updated_at")) == before


def test_scenario_2_another_etag_of_the_same_version_is_refused_and_logged(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    webhook.post(topic.message(event(record(version="v1"))))
    before = everything(database)
    beside = record("gut/gut-v1/source-datasets/good.h5ad", version="v1")
    message = topic.message(event(beside, record(version="v1", sequencer=2, etag="1" * 32)))
    answer = webhook.post(message)
    assert answer.status == 500
    assert answer.error.startswith("ETag mismatch detected")
    assert everything(database) == before, "the record beside it is rolled back"
    assert "0" * 32 in answer.error
    assert "ETag mismatch detected" in webhook.log
    assert webhook.post(message).status == 500, "a message that failed is not remembered"


def test_two_etags_for_one_version_in_one_request_are_refused(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    answer = webhook.post(topic.message(event(record(version="v1"), record(version="v1", etag="1" * 32))))
    assert (answer.status, everything(database)) == (500, [])


def test_scenario_3_a_new_version_becomes_the_latest(webhook: Webhook, topic: Topic, database: psycopg.Connection) -> None:
    for number, version in enumerate(("v1", "v2", "v3"), 1):
        answer = webhook.post(topic.message(event(record(sequencer=number, version=version))))
        assert (answer.status, answer.body["inserted"]) == (200, 1)
    assert rows(database, "version_id", "is_latest") == [("v1", False), ("v2", False), ("v3", True)]


def test_the_sequencer_decides_which_version_is_latest_not_the_order_of_arrival(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    for number in (0x20, 0x9, 0x100):  # as text, without its zeros, 9 would be the highest
        of_object = record(sequencer=number, version=f"v{number}")
        of_object["s3"]["object"]["sequencer"] = f"{number:X}"
        webhook.post(topic.message(event(of_object)))
    assert rows(database, "version_id", "is_latest") == [("v9", False), ("v32", False), ("v256", True)]


def test_null_versions_are_one_row_that_the_highest_sequencer_writes(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    webhook.post(topic.message(event(record(sequencer=5))))
    database.execute("update hat.files set integrity_status = 'valid', sha256_server = sha256_client")
    newer = webhook.post(topic.message(event(record(sequencer=6, etag="1" * 32, version="null", sha256="cd" * 32))))
    assert (newer.status, newer.body["updated"]) == (200, 1)
    said = ("version_id", "etag", "is_latest", "sha256_client", "sha256_server", "integrity_status")
    assert rows(database, *said) == [(None, "1" * 32, True, "cd" * 32, None, "pending")]
    before = everything(database)
    stale = webhook.post(topic.message(event(record(sequencer=4, etag="2" * 32))))
    assert (stale.status, stale.body) == (200, {"status": "processed", "stale": 1})
    assert everything(database) == before


def test_deleting_the_latest_version_promotes_the_one_before_and_nothing_comes_back_late(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    third = record(sequencer=3, version="v3")
    webhook.post(topic.message(event(record(sequencer=1, version="v1"), record(sequencer=2, version="v2"), third)))
    gone = webhook.post(topic.message(event(record(sequencer=4, event="ObjectRemoved:Delete", version="v3"))))
    assert (gone.status, gone.body["removed"]) == (200, 1)
    assert rows(database, "version_id", "is_latest") == [("v1", False), ("v2", True)]
    late = webhook.post(topic.message(event(third)))
    assert (late.status, late.body["stale"]) == (200, 1)
    assert rows(database, "version_id", "is_latest") == [("v1", False), ("v2", True)]


def test_under_a_delete_marker_no_file_is_the_latest_until_the_marker_goes(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    marked = record(sequencer=2, event="ObjectRemoved:DeleteMarkerCreated", version="m1")
    webhook.post(topic.message(event(marked)))
    webhook.post(topic.message(event(record(sequencer=1, version="v1"))))
    assert rows(database, "version_id", "is_latest") == [("v1", False)]
    webhook.post(topic.message(event(record(sequencer=3, event="ObjectRemoved:Delete", version="m1"))))
    assert rows(database, "version_id", "is_latest") == [("v1", True)]


def test_folders_say_what_a_file_is_and_to_whom_it_belongs(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    gut, retina = add_atlas(database, "gut", "Gut", "1"), add_atlas(database, "eye", "retina", "1.1")
    keys = {
        "gut/gut-v1/source-datasets/a.h5ad": ("source_dataset", None),
        "gut/gut-v1/integrated-objects/b.h5ad": ("integrated_object", gut),
        "gut/gut-v1/manifests/c.json": ("ingest_manifest", gut),
        "eye/retina-v1-1/integrated-objects/d.h5ad": ("integrated_object", retina),
    }
    answer = webhook.post(topic.message(event(*(record(key) for key in keys))))
    assert (answer.status, answer.body["inserted"]) == (200, 4)
    assert {key: (kind, atlas) for key, kind, atlas in rows(database, "key", "file_type", "atlas_id")} == keys
    assert rows(database, "source_study_id") == [(None,)] * 4


def test_an_atlas_that_is_not_known_is_told_with_all_that_was_looked_for(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    add_atlas(database, "gut", "Gut", "2.0")
    answer = webhook.post(topic.message(event(record(INTEGRATED))))
    assert (answer.status, everything(database)) == (500, [])
    assert all(part in answer.error for part in ("Atlas not found", "'gut'", "'1.0'", "'1'"))
    add_atlas(database, "gut", "Gut", "1.0")
    assert webhook.post(topic.message(event(record(INTEGRATED)))).status == 200


@pytest.mark.parametrize(
    "key",
    [
        "cells.h5ad",
        "gut/gut-v1/cells.h5ad",
        "gut/gut-v1/source-datasets/",
        "gut/gut-v1/source-datasets/deeper/cells.h5ad",
        "/gut-v1/source-datasets/cells.h5ad",
        "gut/gut-v1/other/cells.h5ad",
        "gut/gut-v1/Source-Datasets/cells.h5ad",
        "gut/gut/source-datasets/cells.h5ad",
        "gut/gut-v/source-datasets/cells.h5ad",
        "gut/gut-v1-2-3/source-datasets/cells.h5ad",
        "gut/-v1/source-datasets/cells.h5ad",
        "gut/gut-v01/source-datasets/cells.h5ad",
    ],
)
def test_a_key_that_is_no_path_of_a_file_is_refused(
    webhook: Webhook, topic: Topic, database: psycopg.Connection, key: str
) -> None:
    answer = webhook.post(topic.message(event(record(key))))
    assert (answer.status, everything(database)) == (400, [])
    assert answer.error.startswith(("Invalid S3 key format", "Unknown folder type"))


@pytest.mark.parametrize("sha256", [None, "", "ab", "ab" * 31, "ab" * 33, "xy" * 32, f"{SHA256}\n", 7])
def test_a_missing_or_wrong_sha256_is_refused(
    webhook: Webhook, topic: Topic, database: psycopg.Connection, sha256: Any
) -> None:
    answer = webhook.post(topic.message(event(record(sha256=sha256))))
    assert (answer.status, everything(database)) == (400, [])
    assert answer.error.startswith("SHA256 metadata is required" if sha256 is None else "SHA256 metadata is invalid")


def broken(path: str, value: Any) -> dict[str, Any]:
    """A record of which one field is something else; it is left out where the value is `...`."""
    found = record()
    *parents, name = path.split(".")
    inner: Any = found
    for parent in parents:
        inner = inner[parent]
    if value is ...:
        del inner[name]
    else:
        inner[name] = value
    return found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((name, ...) for name in ("eventVersion", "eventSource", "eventTime", "eventName", "s3")),
        *((f"s3.{name}", ...) for name in ("bucket", "object", "bucket.name", "object.key", "object.size", "object.eTag")),
        *(("s3.object.sequencer", value) for value in (..., "", "xyz", 7, "F" * 33)),
        *(("s3.object.size", value) for value in (-1, "1000", 1.5, True, None, 1 << 63)),
        *(("s3.object.key", value) for value in ("", 7, "a" * 1025, "gut/%FF", "gut/%00", None)),
        *(("s3.object.eTag", value) for value in ("", 7, '"quoted"', "a b")),
        *(("s3.object.versionId", value) for value in ("", 7, "v 1")),
        *(("eventVersion", value) for value in ("3.0", "1.0", "2", 2.1)),
        *(("eventTime", value) for value in ("yesterday", "2026-02-31T00:00:00Z", "2026-01-01", 7)),
        *(("eventName", value) for value in ("", "objectcreated:put", "ObjectCreated:", 7, "s3:*")),
        *(("eventSource", value) for value in ("aws:sqs", "", None)),
        *(("s3.bucket.name", value) for value in ("", "a/b", 7)),
        *(("s3", value) for value in (None, [], "text", 7)),
        *(("s3.object", value) for value in (None, [], "text")),
        ("s3.object.userMetadata", "text"),
    ],
)
def test_an_event_of_the_wrong_form_is_refused(
    webhook: Webhook, topic: Topic, database: psycopg.Connection, path: str, value: Any
) -> None:
    answer = webhook.post(topic.message(event(record(), broken(path, value))))
    assert (answer.status, everything(database)) == (400, [])
    assert answer.error.startswith("Records[1]: ")


@pytest.mark.parametrize(
    "text", ['{"Records": []}', '{"Records": {}}', '{"Records": null}', '{"Records": [', '{"Records": [7]}', '{"a": 1, "a": 2}']
)
def test_a_message_that_is_not_an_event_as_we_take_it_is_refused(webhook: Webhook, topic: Topic, text: str) -> None:
    assert webhook.post(topic.message(text)).status == 400


def test_a_topic_that_is_not_named_is_refused_before_anything_is_fetched(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    answer = webhook.post(topic.message(event(), TopicArn=OTHER_TOPIC))
    assert (answer.status, topic.asked, everything(database)) == (403, [], [])
    assert "refused with 403" in webhook.log
    assert OTHER_TOPIC in webhook.log


def test_one_bucket_that_is_not_named_refuses_the_whole_request(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    answer = webhook.post(topic.message(event(record(), record(bucket="strange-bucket"))))
    assert (answer.status, everything(database)) == (403, [])
    assert "strange-bucket" in answer.error
    assert "strange-bucket" in webhook.log


def test_a_wrong_signature_is_refused_without_a_word_about_why(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    answer = webhook.post({**topic.message(event()), "Message": event(record("gut/gut-v1/manifests/x"))})
    assert (answer.status, answer.error, everything(database)) == (401, "Invalid SNS signature", [])


def test_a_message_that_comes_again_is_acknowledged_and_changes_nothing(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    message = topic.message(event(record(sequencer=1)))
    assert webhook.post(message).status == 200
    webhook.post(topic.message(event(record(sequencer=2, event="ObjectRemoved:Delete"))))
    again = webhook.post(message)
    assert (again.status, again.body, rows(database, "key")) == (200, {"status": "duplicate"}, [])


def test_a_message_that_is_replayed_after_its_time_is_refused_though_it_was_taken_before(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    message = topic.message(event())
    assert webhook.post(message).status == 200
    before = everything(database)
    for hours in (-2, 2):
        replayed = topic.message(event(), MessageId=message["MessageId"], Timestamp=stamp(timedelta(hours=hours)))
        assert webhook.post(replayed).status == 401
    assert everything(database) == before


def test_a_subscription_is_confirmed_at_the_host_that_signed(webhook: Webhook, topic: Topic) -> None:
    answer = webhook.post(topic.confirmation(), **{"x-amz-sns-message-type": "SubscriptionConfirmation"})
    assert (answer.status, answer.body) == (200, {"status": "confirmed"})
    assert [path for path in topic.asked if path.startswith("/?Action=ConfirmSubscription&")]
    topic.asked.clear()
    elsewhere = topic.confirmation(SubscribeURL="http://127.0.0.1:1/?Action=ConfirmSubscription")
    assert (webhook.post(elsewhere).status, topic.asked) == (401, [])
    topic.status = 503
    assert webhook.post(topic.confirmation()).status == 500, "SNS sends it again"


def test_an_end_of_the_subscription_is_noted_and_never_undone(webhook: Webhook, topic: Topic) -> None:
    webhook.post(topic.message(TEST_EVENT))  # the certificate is known
    topic.asked.clear()
    answer = webhook.post(topic.confirmation(Type="UnsubscribeConfirmation"))
    assert (answer.status, answer.body, topic.asked) == (200, {"status": "unsubscribed"}, [])
    assert "was ended" in webhook.log


@pytest.mark.parametrize(
    ("text", "status"),
    [(TEST_EVENT, "test event"), ("disk is full", "ignored"), ('{"AlarmName": "x"}', "ignored"), ("[1]", "ignored")],
)
def test_test_events_and_other_notifications_are_acknowledged_and_nothing_is_stored(
    webhook: Webhook, topic: Topic, database: psycopg.Connection, text: str, status: str
) -> None:
    answer = webhook.post(topic.message(text))
    assert (answer.status, answer.body) == (200, {"status": status})
    assert everything(database) == []
    assert database.execute("select from hat.messages").rowcount == 0


def test_events_that_make_no_difference_to_files_are_acknowledged(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    answer = webhook.post(topic.message(event(record(event="ObjectTagging:Put"), record(event="ObjectRestore:Completed"))))
    assert (answer.status, everything(database)) == (200, [])
    strange = webhook.post(topic.message(event(record(event="ObjectTagging:Put", bucket="strange-bucket"))))
    assert strange.status == 403


def test_sixteen_deliveries_of_the_same_message_make_one_row(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    message = topic.message(event(record(version="v1")))
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: webhook.post(message), range(16)))
    assert [answer.status for answer in answers] == [200] * 16
    assert sorted(answer.body["status"] for answer in answers) == ["duplicate"] * 15 + ["processed"]
    assert rows(database, "version_id", "is_latest") == [("v1", True)]


def test_sixteen_deliveries_that_conflict_do_not_wait_in_a_circle(
    webhook: Webhook, topic: Topic, database: psycopg.Connection
) -> None:
    """Each writes the same four keys, in an order of its own; half of them say another ETag for one version."""
    keys = [f"gut/gut-v1/source-datasets/{name}.h5ad" for name in "abcd"]

    def message(number: int) -> dict[str, Any]:
        order = keys[number % 4 :] + keys[: number % 4]
        news = [record(key, 100 + number, version=f"v{number}") for key in order[:: 1 if number % 2 else -1]]
        shared = record("gut/gut-v1/source-datasets/shared.h5ad", 1, version="v0", etag=str(number % 2) * 32)
        return topic.message(event(*news, shared))

    messages = [message(number) for number in range(16)]
    with ThreadPoolExecutor(16) as threads:
        statuses = list(threads.map(lambda each: webhook.post(each).status, messages))
    taken = [number for number, status in enumerate(statuses) if status == 200]
    assert taken in ([*range(0, 16, 2)], [*range(1, 16, 2)]), "all with one ETag, and none with the other"
    assert set(statuses) == {200, 500}
    assert database.execute("select count(*) from hat.files").fetchone() == (4 * 8 + 1,)
    latest = database.execute("select key, version_id from hat.files where is_latest order by key").fetchall()
    assert latest == [*((key, f"v{taken[-1]}") for key in keys), ("gut/gut-v1/source-datasets/shared.h5ad", "v0")]
    assert "deadlock" not in webhook.log


def test_sixteen_versions_at_once_have_one_latest(webhook: Webhook, topic: Topic, database: psycopg.Connection) -> None:
    messages = [topic.message(event(record(sequencer=number, version=f"v{number}"))) for number in range(16)]
    with ThreadPoolExecutor(16) as threads:
        assert {answer.status for answer in threads.map(webhook.post, messages)} == {200}
    assert [row for row in rows(database, "version_id", "is_latest") if row[1]] == [("v15", True)]
    assert len(rows(database, "id")) == 16


def test_the_certificate_being_away_is_no_refusal(
    database_url: str, topic: Topic, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SNS gives up a message that was refused with 4xx."""
    with files_webhook(database_url, tmp_path_factory.mktemp("away"), topic.url) as fresh:
        topic.status = 503
        assert fresh.post(topic.message(event())).status == 500
        topic.status = 200
        assert fresh.post(topic.message(event())).status == 200


def test_it_says_how_it_is(webhook: Webhook, topic: Topic) -> None:
    webhook.post(topic.message(TEST_EVENT))
    with urllib.request.urlopen(f"{webhook.url}/-/healthy", timeout=60) as answer:
        assert answer.read() == b"healthy\n"
    with urllib.request.urlopen(f"{webhook.url}/-/metrics", timeout=60) as answer:
        assert b'operation="files:Notify",status_class="2xx"' in answer.read()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", json.dumps({"Type": "Notification"}).encode(), b"x" * 2_000_000])
def test_what_is_no_message_at_all_is_refused(webhook: Webhook, topic: Topic, body: bytes) -> None:
    assert (webhook.post(body).status, topic.asked) == (400, [])


def test_the_latest_of_a_key_is_one_by_the_database_s_own_rule(database: psycopg.Connection) -> None:
    insert = (
        "insert into hat.files (bucket, key, version_id, etag, size_bytes, sequencer, event_name, event_time, file_type, "
        "is_latest, atlas_id) values ('b', %s, %s, 'e', 1, '1', 'x', now(), %s, %s, %s)"
    )
    atlas = add_atlas(database)
    database.execute(insert, [KEY, None, "source_dataset", True, None])
    for wrong in (
        [KEY, "v1", "source_dataset", True, None],  # a second latest
        [KEY, None, "source_dataset", False, None],  # a second null version
        ["x", None, "source_dataset", True, atlas],
        ["x", None, "integrated_object", True, None],
        ["x", None, "unknown", True, None],
    ):
        with pytest.raises(psycopg.errors.IntegrityError):
            database.execute(insert, wrong)
