"""What `tidings explain` says of a message, from the tables alone: also to those who came later, and of replays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import writers
from tidings.changestream import windows
from tidings.delivery import explain, lanes, replays, steering
from tidings.delivery.lanes import Step
from tidings.delivery.reports import Report
from tidings.events import arn
from tidings.events.positions import Position
from tidings.rules import table
from tidings.rules.model import Rule
from tidings.topics import statements

EPOCH = 7


@pytest.fixture
def writer(database_url: str) -> Iterator[writers.Writer]:
    with writers.writer_to(database_url) as made:
        yield made


@pytest.fixture
def stream(database: psycopg.Connection, writer: writers.Writer) -> psycopg.Connection:
    assert writer.bucket
    database.execute("update stream set epoch = %s", [EPOCH])
    return database


def passed(database: psycopg.Connection) -> Position:
    """The stream has delivered everything to everybody."""
    end = windows.latest(database)
    database.execute("update stream set win = %s, seq = %s", end)
    database.execute("update lanes set state = 'live', win = null, seq = null where side = 0")
    return end


def told(database: psycopg.Connection, writer: writers.Writer, key: str) -> list[dict[str, Any]]:
    """The lanes of the only rule, for the only change of a key."""
    [change] = explain.explain(database, writer.project, explain.Place(writer.bucket, key, None), False)["changes"]
    [rule] = [rule for rule in change["rules"] if rule["matched"]]
    found: list[dict[str, Any]] = rule["lanes"]
    return found


def test_who_subscribed_after_a_change_is_not_said_to_have_got_it(stream: psycopg.Connection, writer: writers.Writer) -> None:
    topic = f"arn:aws:sns:us-east-1:{writer.project}:t"
    stream.execute("insert into topics (arn, project) values (%s, %s)", [topic, writer.project])

    async def put_rule() -> None:
        async with await psycopg.AsyncConnection.connect(writer.url, autocommit=True) as connection:
            await table.replace(connection, writer.project, writer.bucket, [Rule("fan", arn.parse(topic), writers.EVERYTHING)])

    writer.run(put_rule())
    writer.put("early")
    passed(stream)
    made: dict[str, Any] = {"owner": writer.project, "arn": f"{topic}:one", "endpoint": "https://example.com/"}
    row = stream.execute(statements.NEW_LANE, made).fetchone()
    assert row is not None
    made |= {
        "topic": topic,
        "project": writer.project,
        "protocol": "https",
        "raw": False,
        "secrets": None,
        "secret_count": 0,
        "token": b"",
    }
    stream.execute(statements.SUBSCRIBE, made | {"seconds": 1, "lane": row[0]})
    writer.put("late")
    [lane] = told(stream, writer, "early")
    assert (lane["fate"], lane["words"]) == ("before its time", "the subscription was made after the change")
    assert [lane["fate"] for lane in told(stream, writer, "late")] == ["waiting"]
    passed(stream)
    assert [lane["fate"] for lane in told(stream, writer, "early")] == ["before its time"]
    assert [lane["fate"] for lane in told(stream, writer, "late")] == ["delivered"]


def test_a_replay_is_told_while_it_goes_on_and_when_it_has_ended_for_what_it_sends_again(
    stream: psycopg.Connection, writer: writers.Writer
) -> None:
    writer.put("before/a")
    first = passed(stream)
    writer.put("in/a", "out/a")
    until = passed(stream)
    writer.put("in/later")
    passed(stream)
    rule = replays.find_rule(stream, writer.project, "all")
    number = replays.begin(stream, rule, replays.plan(stream, rule, str(first), str(until), "in/"), "in/", None)
    keys = ("before/a", "in/a", "out/a", "in/later")
    assert [len(told(stream, writer, key)) for key in keys] == [1, 2, 1, 1]
    assert told(stream, writer, "in/a")[1]["fate"] == "waiting"
    [lane] = [lane for lane in lanes.standing(stream).lanes if lane.replay]
    assert lanes.end_catch_up(stream, EPOCH, lane, Step(until), Report(lane.id, 1))
    log = stream.execute("select lane, what, from_win, from_seq, to_win, to_seq, n from lane_log").fetchall()
    assert log == [(lane.id, "replayed", *first, *until, 1)]
    assert [told(stream, writer, key)[0]["replays"] for key in keys] == [[], [number], [], []]
    assert told(stream, writer, "in/a")[0]["words"].endswith(f"; sent again by replay {number}")


def test_what_a_replay_was_told_to_skip_was_not_sent_again(stream: psycopg.Connection, writer: writers.Writer) -> None:
    writer.put("a")
    until = passed(stream)
    rule = replays.find_rule(stream, writer.project, "all")
    replays.begin(stream, rule, replays.plan(stream, rule, None, None, ""), "", None)
    [lane] = lanes.standing(stream).lanes
    steering.skip(stream, lane.id, None, "")
    [lane] = lanes.standing(stream).lanes
    assert lanes.end_catch_up(stream, EPOCH, lane, Step(until))
    assert [each["replays"] for each in told(stream, writer, "a")] == [[]]
