"""What an operator does: pause, resume and skip a lane, look at dead letters and send them again, replay, explain."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from arrivals import PROJECT, Collector
from conftest import Running, Say
from tidings.changestream.retention import partitions
from tidings.local.pubsub import set_fault
from traffic import Writers, all_arrived, collecting, seeded, send_events, tidings, verdict
from waiting import until


@pytest.fixture(scope="module")
def collector(stack: Running) -> Iterator[Collector]:
    with collecting(stack) as collector:
        yield collector


def run(stack: Running, *arguments: str, status: int = 0) -> Any:
    """A command, and its JSON."""
    done = tidings(*arguments, "--json", TIDINGS_DATABASE__URL=stack.ready["database"], **pubsub(stack))
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def pubsub(stack: Running) -> dict[str, str]:
    return {"TIDINGS_PUBSUB__EMULATOR_HOST": stack.ready["pubsub"]}


def topic(bucket: str) -> str:
    return f"projects/{PROJECT}/topics/{bucket}"


def lane_of(stack: Running, bucket: str) -> dict[str, Any]:
    arn = f"arn:gcp:pubsub::{PROJECT}:{bucket}"
    return next(lane for lane in run(stack, "lanes", "list") if lane["destination"] == arn and not lane["replay"])


def put(stack: Running, bucket: str, *keys: str) -> None:
    s3 = stack.s3()
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())


def arrived(collector: Collector, bucket: str, *keys: str) -> None:
    until(lambda: set(keys) <= {a.key for a in collector.of(bucket)}, f"{keys} arrive from {bucket}")


def settled(stack: Running, bucket: str) -> None:
    """The lane is live, and the round that sent its last message has ended: before that a pause would repeat the message."""

    def state() -> tuple[str, int]:
        lane = lane_of(stack, bucket)
        return lane["state"], lane["owed"]

    until(lambda: state() == ("live", 0), "nothing is owed")


def words(stack: Running, bucket: str, key: str) -> str:
    done = tidings("explain", f"s3://{bucket}/{key}", TIDINGS_DATABASE__URL=stack.ready["database"])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_paused_lane_keeps_everything_and_gives_it_in_order_when_it_is_resumed(stack: Running, collector: Collector) -> None:
    bucket = "paused"
    send_events(stack, collector, bucket)
    put(stack, bucket, "before")
    arrived(collector, bucket, "before")
    settled(stack, bucket)
    lane = lane_of(stack, bucket)["id"]
    run(stack, "lanes", "pause", str(lane))
    put(stack, bucket, "a", "b", "a")
    until(lambda: lane_of(stack, bucket)["owed"] == 3, "they are in windows")
    time.sleep(2)
    assert [arrival.key for arrival in collector.of(bucket)] == ["before"]
    assert "the lane is paused" in words(stack, bucket, "a")
    run(stack, "lanes", "resume", str(lane))
    until(lambda: len(collector.of(bucket)) >= 4, "what was kept arrives")
    of_a = [arrival.sequencer for arrival in collector.of(bucket) if arrival.key == "a"]
    assert of_a == sorted(of_a)
    until(lambda: lane_of(stack, bucket)["state"] == "live", "the lane runs with the stream again")


def test_a_lane_that_skips_sends_nothing_of_it_and_says_so_for_ever(stack: Running, collector: Collector) -> None:
    bucket = "skipping"
    send_events(stack, collector, bucket)
    put(stack, bucket, "first")
    arrived(collector, bucket, "first")
    settled(stack, bucket)
    lane = lane_of(stack, bucket)["id"]
    run(stack, "lanes", "pause", str(lane))
    put(stack, bucket, "not-wanted")
    until(lambda: lane_of(stack, bucket)["owed"] == 1, "it is in a window")
    with psycopg.connect(stack.ready["database"], autocommit=True) as database:
        read = "select (s.win, s.seq) >= (select id, hi from windows order by id desc limit 1) from stream s"
        until(lambda: database.execute(read).fetchone() == (True,), "the stream has passed it")
    run(stack, "lanes", "skip", str(lane), "--note", "broken upload")
    run(stack, "lanes", "resume", str(lane))
    put(stack, bucket, "wanted")
    arrived(collector, bucket, "wanted")
    assert "not-wanted" not in {arrival.key for arrival in collector.of(bucket)}
    assert "told to skip it: broken upload" in words(stack, bucket, "not-wanted")
    assert "delivered" in words(stack, bucket, "wanted")


def test_a_refused_message_is_a_dead_letter_that_can_be_seen_sent_and_discarded(stack: Running, collector: Collector) -> None:
    bucket = "refused"
    send_events(stack, collector, bucket)
    put(stack, bucket, "good")
    arrived(collector, bucket, "good")
    set_fault(stack.ready["pubsub"], topic(bucket), "invalid_argument")
    try:
        put(stack, bucket, "bad/1", "bad/2")
        lane = lane_of(stack, bucket)["id"]
        until(lambda: run(stack, "dead-letters", "list", "--lane", str(lane))["dead"] == 2, "two dead letters")
        one, other = run(stack, "dead-letters", "list", "--lane", str(lane))["letters"]
        assert {one["key"], other["key"]} == {"bad/1", "bad/2"}
        assert "INVALID_ARGUMENT" in one["reason"]
        assert "a dead letter: " in words(stack, bucket, one["key"])
        refused = run(stack, "dead-letters", "redrive", str(one["id"]), status=1)
        assert (refused["sent"], refused["left"]) == (0, 1)
    finally:
        set_fault(stack.ready["pubsub"], topic(bucket), None)
    put(stack, bucket, "good/2")
    arrived(collector, bucket, "good/2")
    settled(stack, bucket)
    whole = run(stack, "dead-letters", "show", str(one["id"]))
    assert json.loads(whole["body"])["Records"][0]["s3"]["object"]["key"] == one["key"]
    assert run(stack, "dead-letters", "redrive", str(one["id"]))["sent"] == 1
    arrived(collector, bucket, one["key"])
    assert one["message"] in collector.ids(), "with the id of the first time"
    assert run(stack, "dead-letters", "discard", str(other["id"]))["discarded"] == 1
    assert run(stack, "dead-letters", "list", "--lane", str(lane))["dead"] == 0
    assert "was sent again" in words(stack, bucket, one["key"])
    assert "discarded" in words(stack, bucket, other["key"])


def test_a_replay_under_live_traffic_loses_and_reorders_nothing(stack: Running, collector: Collector, say: Say) -> None:
    bucket, seed = "replayed", seeded()
    send_events(stack, collector, bucket)
    put(stack, bucket, *(f"old/{i % 20}" for i in range(100)))
    until(lambda: len({arrival.id for arrival in collector.of(bucket)}) == 100, "the past is past")
    first = {arrival.id for arrival in collector.of(bucket)}
    planned = ("replay", "--rule", bucket, "--prefix", "old/", "--dry-run")
    until(lambda: run(stack, *planned)["wanted"] == 100, "the round in which the last one arrived is over")
    assert not [arrival for arrival in collector.of(bucket) if "replay" in arrival.attributes], "it was only planned"
    with Writers(stack.ready, [bucket], seed, threads=1, keys=16).writing() as writers:
        time.sleep(0.5)
        done = run(stack, "replay", "--rule", f"{bucket}/{bucket}", "--prefix", "old/", "--rate", "50")
        time.sleep(0.5)
    assert (done["sent"], done["ended"], done["dead_letters"]) == (100, True, 0)
    all_arrived(stack.ready["database"], collector, [bucket])
    again = [arrival for arrival in collector.of(bucket) if arrival.attributes.get("replay") == "true"]
    assert {arrival.id for arrival in again} == first
    for key in {arrival.key for arrival in again}:
        order = list(dict.fromkeys(arrival.sequencer for arrival in again if arrival.key == key))
        assert order == sorted(order), "a replay keeps the order as well"
    live = [arrival for arrival in collector.of(bucket) if "replay" not in arrival.attributes]
    found = verdict(stack.ready["database"], collector, writers, [bucket], seed)
    say(f"{len(live)} live and {len(again)} replayed messages: {found}")
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])


OLD = 200
_LIKE = """
    insert into changes (seq, at, project, bucket, bucket_id, key, event, size, etag, principal, source_ip, request_id, config,
                         rules)
    select nextval('change_seq'), %(at)s, project, bucket, bucket_id, %(key)s, event, size, etag, principal, source_ip, %(key)s,
           config, rules
    from changes where bucket = %(bucket)s and key = 'before' returning id || '.' || rules
"""


def written_long_ago(database: psycopg.Connection, bucket: str) -> set[str]:
    """Changes like that of the key `before`, of some hour two weeks ago, with a partition for it; returns the ids of their
    messages.
    """
    hour = (datetime.now(UTC) - timedelta(days=14)).replace(minute=0, second=0, microsecond=0)
    end = hour + timedelta(hours=1)
    name = f"changes_{hour:%Y%m%dT%H%M}_{end:%Y%m%dT%H%M}"
    database.execute(f"""create table "{name}" partition of changes for values from ('{hour}') to ('{end}')""".encode())
    made = set()
    for i in range(OLD):
        values = {"at": hour + timedelta(seconds=i), "key": f"old/{i % 30}", "bucket": bucket}
        row = database.execute(_LIKE.encode(), values).fetchone()
        assert row is not None
        made.add(row[0])
        if i % 50 == 0:
            time.sleep(0.3)  # more than one window
    return made


def partitions_of_long_ago(database: psycopg.Connection) -> list[str]:
    limit = f"changes_{datetime.now(UTC) - timedelta(days=10):%Y%m%dT%H%M}"
    return [name for name in partitions(database) if name.startswith("changes_2") and name < limit]


@pytest.mark.chaos
def test_what_a_lane_needs_beyond_the_retention_is_archived_and_can_still_be_sent_completely(
    stack: Running, collector: Collector, say: Say
) -> None:
    bucket = "archived"
    send_events(stack, collector, bucket)
    put(stack, bucket, "before")
    arrived(collector, bucket, "before")
    settled(stack, bucket)
    lane = lane_of(stack, bucket)["id"]
    run(stack, "lanes", "pause", str(lane))
    with psycopg.connect(stack.ready["database"], autocommit=True) as database:
        old = written_long_ago(database, bucket)
        until(lambda: lane_of(stack, bucket)["owed"] == OLD, "they are in windows of their own")
        put(stack, bucket, "after")
        until(lambda: lane_of(stack, bucket)["owed"] == OLD + 1, "the stream has passed them")
        assert partitions_of_long_ago(database)
        # A stream looks after partitions when it begins, and once a minute.
        database.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tidings stream'")
        until(lambda: not partitions_of_long_ago(database), "the old partition is dropped")
    [range_] = run(stack, "dead-letters", "list", "--lane", str(lane))["ranges"]
    assert (range_["n"], range_["state"]) == (OLD, "kept")
    assert lane_of(stack, bucket)["owed"] == 1
    run(stack, "lanes", "resume", str(lane))
    arrived(collector, bucket, "after")
    assert not old & collector.ids()

    done = run(stack, "dead-letters", "redrive", "--range", str(range_["id"]))
    assert done == {"range": range_["id"], "sent": OLD}
    until(lambda: old <= collector.ids(), "all of it arrives")
    again = [arrival for arrival in collector.of(bucket) if arrival.id in old]
    say(f"{len(again)} messages of {OLD} archived changes arrived")
    assert len(again) == OLD
    for key in {arrival.key for arrival in again}:
        order = list(dict.fromkeys(arrival.sequencer for arrival in again if arrival.key == key))
        assert order == sorted(order)
    assert run(stack, "dead-letters", "list", "--lane", str(lane))["ranges"] == []
    [ended] = run(stack, "dead-letters", "list", "--lane", str(lane), "--ended")["ranges"]
    assert ended["state"] == "sent"


def test_explain_says_why_a_rule_does_not_want_a_change(stack: Running, collector: Collector) -> None:
    bucket, arn = "explained", collector.listen("explained")
    s3 = stack.s3()
    s3.create_bucket(Bucket=bucket)
    put(stack, bucket, "logs/early.txt")
    rule = {
        "Id": "text",
        "TopicArn": arn,
        "Events": ["s3:ObjectCreated:*"],
        "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "logs/"}, {"Name": "suffix", "Value": ".txt"}]}},
    }
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [rule]})
    put(stack, bucket, "logs/a.txt", "logs/a.bin", "other/a.txt")
    s3.delete_object(Bucket=bucket, Key="logs/a.txt")
    arrived(collector, bucket, "logs/a.txt")
    assert "rule text: not wanted: the key does not end with '.txt'" in words(stack, bucket, "logs/a.bin")
    assert "not wanted: the key does not begin with 'logs/'" in words(stack, bucket, "other/a.txt")
    assert "not wanted: the rule was set after the change" in words(stack, bucket, "logs/early.txt")
    both = words(stack, bucket, "logs/a.txt")
    assert "not wanted: it does not ask for ObjectRemoved:Delete" in both
    assert "delivered, in the round that passed" in both
    assert "no change of s3://explained/never" in words(stack, bucket, "never")
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={})
    assert "the rule was deleted since" in words(stack, bucket, "logs/a.txt")
