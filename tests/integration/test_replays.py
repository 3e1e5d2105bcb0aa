"""A replay begins where the log can still be read, or not at all: upkeep may be at work beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import writers
from tidings.changestream import retention, windows
from tidings.changestream.settings import ChangestreamSettings
from tidings.delivery import replays
from tidings.errors import OperatorError
from tidings.events.positions import START, Position
from waiting import PATIENCE_SECONDS

DAILY = ChangestreamSettings(partition_hours=24)
LATER = datetime.now(UTC) + timedelta(days=30)
REFUSED = "nothing was begun"


@pytest.fixture
def writer(database_url: str) -> Iterator[writers.Writer]:
    with writers.writer_to(database_url) as made:
        yield made


@pytest.fixture
def log(database: psycopg.Connection, writer: writers.Writer) -> psycopg.Connection:
    """Five windows of one change each, all of them delivered."""
    database.execute("set statement_timeout = '20s'")
    retention.make_ahead(database, DAILY, datetime.now(UTC))
    for key in "abcde":
        writer.put(key)
        windows.latest(database)
    database.execute("update stream set win = %s, seq = %s", windows.last(database).end)
    return database


def planned(log: psycopg.Connection, writer: writers.Writer) -> tuple[replays.Rule, list[replays.Part]]:
    rule = replays.find_rule(log, writer.project, "all")
    parts = replays.plan(log, rule, None, None, "")
    assert [(part.start, part.wanted) for part in parts] == [(START, 5)]
    return rule, parts


def opened(log: psycopg.Connection) -> int:
    row = log.execute("select count(*) from lanes where side > 0").fetchone()
    assert row is not None
    return int(row[0])


def test_what_the_retention_has_passed_since_it_was_planned_is_refused_and_planned_anew(
    log: psycopg.Connection, writer: writers.Writer
) -> None:
    rule, parts = planned(log, writer)
    assert retention.drop_expired(log, DAILY, LATER)
    with pytest.raises(OperatorError, match=REFUSED):
        replays.begin(log, rule, parts, "", None)
    assert opened(log) == 0
    [part] = replays.plan(log, rule, None, None, "")
    assert windows.readable(log, part.start)
    with pytest.raises(OperatorError, match=REFUSED):  # a place that never was, in the oldest window that is kept
        replays.begin(log, rule, [replace(part, start=Position(part.start.window, 99), wanted=1)], "", None)


def waits(log: psycopg.Connection) -> bool:
    query = (
        "select exists (select from pg_locks where locktype = 'advisory' and not granted"
        " and database = (select oid from pg_database where datname = current_database()))"
    )
    return log.execute(query).fetchone() == (True,)


def test_a_replay_waits_for_the_upkeep_that_is_under_way_and_sees_what_it_has_left(
    log: psycopg.Connection, writer: writers.Writer
) -> None:
    rule, parts = planned(log, writer)
    with psycopg.connect(writer.url, autocommit=True) as other, ThreadPoolExecutor() as threads:
        with log.transaction():
            retention.hold(log)
            begun = threads.submit(replays.begin, other, rule, parts, "", None)
            end = time.monotonic() + PATIENCE_SECONDS
            while not waits(log) and not begun.done() and time.monotonic() < end:
                time.sleep(0.01)
            assert retention.drop_expired(log, DAILY, LATER)
        with pytest.raises(OperatorError, match=REFUSED):
            begun.result()
    assert opened(log) == 0


def test_upkeep_leaves_the_log_alone_while_a_replay_begins_and_keeps_what_it_needs_then(
    log: psycopg.Connection, writer: writers.Writer
) -> None:
    rule, parts = planned(log, writer)
    with psycopg.connect(writer.url, autocommit=True) as upkeep:
        with log.transaction():
            replays.begin(log, rule, parts, "", None)
            retention.keep_up(upkeep, DAILY, LATER)
        retention.keep_up(upkeep, DAILY, LATER)
    assert opened(log) == 1
    assert windows.readable(log, START)
    assert log.execute("select count(*) from changes").fetchone() == (5,)
