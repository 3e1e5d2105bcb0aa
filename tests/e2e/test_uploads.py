"""The consumer of seed 004 against a real store and a real queue: each of its edge cases, and what its queue promises."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from s3_server import Server, s3_server
from upload_place import Place, place

import gate
from conftest import fresh_database
from tidings.consumers.uploads import registry
from tidings.consumers.uploads.consuming import Consumer, Outcome, Tally
from tidings.consumers.uploads.init import RULE, init
from tidings.consumers.uploads.labels import Upload
from tidings.errors import OperatorError
from tidings.local.postgres import Postgres
from tidings.settings import Settings
from waiting import until

RECORDED, GONE, UNLABELLED, IGNORED, FAILED = Outcome


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"TIDINGS_API__WORKERS": "1", "TIDINGS_BUCKET_EVENTING__DESTINATIONS": '["queue"]'}
    with s3_server(fresh_database(postgres, "uploads"), tmp_path_factory.mktemp("uploads"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def made(server: Server) -> Place:
    return place(server, "uploads")


@pytest.fixture
def ready(made: Place) -> Place:
    made.clean()
    return made


def test_init_makes_queues_bucket_and_rule_and_changes_nothing_the_second_time(server: Server) -> None:
    found = Place(server, "uploads-init", {}, "")
    first = init(found.settings())
    queues = (found.queue, found.letters)
    assert first.changed == (f"queue {queues[1]}", f"queue {queues[0]}", "bucket uploads-init", f"rule {RULE}")
    sqs = found.sqs
    letters = sqs.get_queue_attributes(QueueUrl=first.dead_letters_url, AttributeNames=["All"])["Attributes"]
    assert letters["MessageRetentionPeriod"] == str(4 * 24 * 3600)
    queue = sqs.get_queue_attributes(QueueUrl=first.queue_url, AttributeNames=["All"])["Attributes"]
    assert json.loads(queue["RedrivePolicy"]) == {"deadLetterTargetArn": letters["QueueArn"], "maxReceiveCount": 4}
    assert sqs.list_queue_tags(QueueUrl=first.queue_url)["Tags"] == {"event-format": "r2"}
    assert init(found.settings()).changed == ()
    assert found.waiting() == 1, "one test event, for the one time that the rule was set"
    assert init(found.settings(visibility_seconds=33)).changed == (f"attributes of {found.queue}",)


def test_init_leaves_the_other_rules_of_the_bucket_as_they_are(ready: Place) -> None:
    made, s3, sqs = ready, ready.s3, ready.sqs
    other_url = sqs.create_queue(QueueName=f"{made.bucket}-other")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=other_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    removed = {"Id": "other", "QueueArn": arn, "Events": ["s3:ObjectRemoved:*"]}
    s3.put_bucket_notification_configuration(Bucket=made.bucket, NotificationConfiguration={"QueueConfigurations": [removed]})
    assert init(made.settings()).changed == (f"rule {RULE}",)
    found = s3.get_bucket_notification_configuration(Bucket=made.bucket)["QueueConfigurations"]
    assert {each["Id"] for each in found} == {"other", RULE}
    assert removed in found


def test_the_command_prints_a_summary_or_json(made: Place) -> None:
    def run(*options: str) -> str:
        command = [sys.executable, "-m", "tidings", "uploads", "init", *options]
        return subprocess.run(command, env=made.environment, capture_output=True, text=True, check=True).stdout

    assert made.url() in run()
    said = json.loads(run("--json"))
    assert (said["bucket"], said["queue"], said["changed"]) == (made.bucket, made.queue, [])


def test_without_a_key_the_operator_hears_which_setting_to_set() -> None:
    with pytest.raises(OperatorError, match="TIDINGS_UPLOADS__ACCESS_KEY_ID"):
        init(Settings())


def test_the_test_event_is_acknowledged_and_nothing_is_stored_for_it(server: Server) -> None:
    found = place(server, "uploads-test-event")
    assert found.waiting() == 1
    assert found.consume() == {IGNORED: 1}
    assert (found.waiting(), found.rows()) == (0, {})


@pytest.mark.parametrize("golden", ["put", "copy", "multipart", "post"])
def test_every_action_that_creates_an_object_is_recorded_under_what_head_says(ready: Place, golden: str) -> None:
    ready.notify(ready.upload("org_abc", "my-report"), golden=golden)
    assert ready.consume() == {RECORDED: 1}
    assert list(ready.rows()) == [("org_abc", "my-report")]
    assert ready.waiting() == 0


@pytest.mark.parametrize("golden", ["delete", "delete-marker"])
def test_a_delete_is_acknowledged_and_the_store_is_not_asked(ready: Place, golden: str) -> None:
    key = ready.upload("org_abc", "my-report")
    ready.notify(key, golden=golden)
    with gate.running(("127.0.0.1", ready.server.port)) as way:
        assert ready.consume(endpoint=way.endpoint) == {IGNORED: 1}
        assert [each for each in way.seen if each.method == "HEAD"] == []
    assert (ready.waiting(), ready.rows()) == (0, {})


def test_the_metadata_routes_and_not_the_key(ready: Place) -> None:
    ready.put("anything/at/all", Metadata={"organizationId": "org_b", "name": "b"})
    ready.notify("anything/at/all", ready.upload("org_a", "a"))
    assert ready.consume(2) == {RECORDED: 2}
    assert set(ready.rows()) == {("org_a", "a"), ("org_b", "b")}


def test_same_name_concurrent_uploads_are_one_row(ready: Place) -> None:
    """Seed 004, "Same name, concurrent uploads"."""
    with ThreadPoolExecutor(8) as threads:
        keys = list(threads.map(lambda n: ready.upload("org", "same", bytes([n])), range(16)))
    ready.notify(*keys)
    with ThreadPoolExecutor(2) as threads:
        tallies = list(threads.map(lambda _: ready.drain(), range(2)))
    assert sum(tallies, Tally()) == {RECORDED: 16}
    assert list(ready.rows()) == [("org", "same")]
    assert ready.waiting() == 0


def test_a_notification_whose_object_was_deleted_is_acknowledged_and_leaves_no_stale_row(ready: Place) -> None:
    """Seed 004, "Notification arrives but object was deleted"."""
    key = ready.upload("org", "short-lived")
    ready.s3.delete_object(Bucket=ready.bucket, Key=key)
    ready.notify(key)
    assert ready.consume() == {GONE: 1}
    assert (ready.waiting(), ready.rows()) == (0, {})


def test_a_head_that_fails_for_a_while_is_tried_again_and_its_neighbours_are_recorded(ready: Place) -> None:
    """Seed 004, "head() fails transiently"."""
    found = ready
    bad, good = found.upload("org", "bad"), found.upload("org", "good")
    found.notify(bad, good)
    with gate.running(("127.0.0.1", found.server.port)) as way:
        way.choose = lambda request: 503 if request.method == "HEAD" and request.path.endswith("bad") else None
        consumer = found.consumer(endpoint=way.endpoint, visibility_seconds=1)
        assert consumer.batch(0) == {FAILED: 1, RECORDED: 1}
        assert list(found.rows()) == [("org", "good")]
        assert found.waiting() == 1
        way.release()
        until(lambda: consumer.batch(0) == {RECORDED: 1}, "it is tried again")
        consumer.close()
    assert set(found.rows()) == {("org", "bad"), ("org", "good")}
    assert (found.waiting(), found.waiting(found.letters)) == (0, 0)


def test_a_bucket_that_is_not_there_is_not_taken_for_objects_that_are_gone(ready: Place) -> None:
    ready.notify(ready.upload("org", "a"))
    with gate.running(("127.0.0.1", ready.server.port)) as way:
        way.choose = lambda request: 404 if request.method == "HEAD" else None
        assert ready.consume(endpoint=way.endpoint) == {FAILED: 1}
    assert ready.waiting() == 1


@pytest.mark.parametrize("metadata", [{}, {"name": "n"}, {"organizationId": "o"}, {"organizationId": "o", "name": ""}])
def test_an_object_without_its_metadata_is_logged_and_acknowledged(
    ready: Place, metadata: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Seed 004, "Object uploaded without customMetadata"."""
    ready.put("by/hand", Metadata=metadata)
    ready.notify("by/hand")
    assert ready.consume() == {UNLABELLED: 1}
    assert (ready.waiting(), ready.rows()) == (0, {})
    assert "'by/hand' has no organizationId and name" in caplog.text


def test_a_re_upload_updates_the_row_and_so_does_the_same_message_twice(ready: Place) -> None:
    """Seed 004, "Re-upload (same name, different file)"."""
    ready.notify(ready.upload("org", "report", b"one"))
    assert ready.consume() == {RECORDED: 1}
    [(row, first)] = ready.rows().items()
    ready.notify(*[ready.upload("org", "report", b"two")] * 2)
    assert ready.consume(2) == {RECORDED: 2}
    [(again, second)] = ready.rows().items()
    assert again == row == ("org", "report")
    assert second > first


def test_a_message_that_is_no_notification_is_a_dead_letter_after_four_receives_and_harms_nobody(ready: Place) -> None:
    found = ready
    found.send("poison")
    found.send(json.dumps({"action": "PutObject", "bucket": "elsewhere", "object": {"key": "k"}}))
    found.notify(found.upload("org", "good"))
    seen = Tally()
    consumer = found.consumer(visibility_seconds=1)

    def both_are_letters() -> bool:
        seen.update(consumer.batch(0))
        return found.waiting(found.letters) == 2

    until(both_are_letters, "they are dead letters")
    consumer.close()
    assert seen == {RECORDED: 1, FAILED: 8}, "three retries each"
    assert found.waiting() == 0
    letters = found.sqs.receive_message(QueueUrl=found.url(found.letters), MaxNumberOfMessages=10)["Messages"]
    assert "poison" in [each["Body"] for each in letters]


def test_two_consumers_share_the_queue_and_every_name_is_there_once(ready: Place) -> None:
    names = [f"n-{number}" for number in range(20)]
    keys = [ready.upload("org", name) for name in names]
    ready.notify(*keys, *keys[:10], *reversed(keys[5:15]))
    with ThreadPoolExecutor(2) as threads:
        tallies = list(threads.map(lambda _: ready.drain(), range(2)))
    assert sum(tallies, Tally()) == {RECORDED: 40}
    assert set(ready.rows()) == {("org", name) for name in names}
    assert (ready.waiting(), ready.waiting(ready.letters)) == (0, 0)


def test_a_batch_has_ten_messages_at_most_and_is_waited_for_no_longer_than_it_is_told(ready: Place) -> None:
    ready.notify(*[ready.upload("org", "a")] * 11)
    consumer = ready.consumer(batch_seconds=2)
    assert consumer.batch(2) == {RECORDED: 10}
    late = threading.Timer(0.5, lambda: ready.notify("org/a"))
    late.start()
    assert consumer.batch(3) == {RECORDED: 2}, "what comes meanwhile is of the same batch"
    assert ready.waiting() == 0
    consumer.close()


def test_a_database_that_fails_leaves_every_message_in_the_queue(ready: Place) -> None:
    ready.notify(ready.upload("org", "a"), ready.upload("org", "b"))
    with psycopg.connect(ready.server.database_url, autocommit=True) as connection:
        connection.execute("alter table upload_registry add constraint broken check (name <> 'b')")
        try:
            with pytest.raises(psycopg.errors.CheckViolation):
                ready.consume()
        finally:
            connection.execute("alter table upload_registry drop constraint broken")
    assert (ready.waiting(), ready.rows()) == (2, {})


class FailsToAcknowledge(Consumer):
    def acknowledge(self, messages: Any) -> None:
        raise ConnectionError(f"{len(messages)} messages")


def test_a_consumer_that_goes_on_after_a_failure_reconnects_and_loses_nothing(ready: Place) -> None:
    found = ready
    found.notify(found.upload("org", "a"))
    failing = FailsToAcknowledge(found.settings(visibility_seconds=1))
    assert failing.work(1.0) == {}, "what was not acknowledged is not counted"
    failing.close()
    first = found.rows()
    until(lambda: found.consume() == {RECORDED: 1}, "it comes again")
    assert set(found.rows()) == set(first) == {("org", "a")}
    assert found.waiting() == 0


def test_a_hundred_thousand_uploads_are_merged_by_the_same_statement_as_one(database: psycopg.Connection) -> None:
    uploads = [Upload(f"org-{number % 10}", f"n-{number}") for number in range(100_000)]
    for given in (uploads[:1], uploads, uploads[:1] * 3):
        with database.transaction():
            registry.merge(database, given)
    [(rows, times)] = database.execute("select count(*), count(distinct created_at) from upload_registry").fetchall()
    assert (rows, times) == (100_000, 2), "one statement has one time"
