"""Archived ranges without Spark: what may be archived, and when a range counts as sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from pyspark.sql import SparkSession

import writers
from tidings.changestream import retention, windows
from tidings.delivery import archive, dead_letters, replays
from tidings.delivery.reports import Report
from tidings.errors import OperatorError
from tidings.events.positions import Position
from tidings.settings import Settings

SETTINGS = Settings(changestream={"partition_hours": 24}, delivery={"archive": "/nowhere"})
LATER = datetime.now(UTC) + timedelta(days=30)
NO_SPARK = cast(SparkSession, None)
"""Where it must not come to reading or writing files."""


@pytest.fixture
def writer(database_url: str) -> Iterator[writers.Writer]:
    with writers.writer_to(database_url) as made:
        yield made


@pytest.fixture
def passed(database: psycopg.Connection, writer: writers.Writer) -> psycopg.Connection:
    """Three changes in a partition of their own, and a stream that has passed them; lane 1 is live."""
    retention.make_ahead(database, SETTINGS.changestream, datetime.now(UTC))
    writer.put("a", "b", "c")
    database.execute("update stream set win = %s, seq = %s", windows.latest(database))
    return database


def archived(database: psycopg.Connection, n: int, place: str = "/nowhere") -> int:
    """A range of lane 1, as `archive_expired` notes it."""
    row = database.execute(
        "insert into lane_log (lane, what, from_win, from_seq, to_win, to_seq, n, place, state)"
        " values (1, 'archived', 0, 0, 1, 3, %s, %s, 'kept') returning id",
        [n, place],
    ).fetchone()
    assert row is not None
    return int(row[0])


def state(database: psycopg.Connection, range_: int) -> str:
    return str(archive.find(database, range_)["state"])


def test_a_range_that_no_rule_leads_to_is_refused_and_kept(passed: psycopg.Connection) -> None:
    range_ = archived(passed, 3)
    passed.execute("delete from bucket_eventing_configs")
    with pytest.raises(OperatorError, match=f"No rule leads to lane 1 .*discard --range {range_}"):
        archive.send(passed, NO_SPARK, SETTINGS, range_)
    assert state(passed, range_) == "kept"


def letter(message: str) -> dict[str, Any]:
    return {"win": 1, "seq": 2, "message": message, "body": "{}", "attributes": {}, "label": None, "reason": "no"}


@pytest.mark.parametrize(
    ("report", "becomes"),
    [
        (Report(1, 3), "sent"),
        (Report(1, 2, dead=(letter("c.1"),)), "sent"),
        (Report(1, 6), "sent"),
        (Report(1, 0), "kept"),
        (Report(1, 2), "kept"),
        (Report(1, 1, dead=(letter("c.1"),)), "kept"),
        (Report(1, 3, Position(1, 2), error="down"), "kept"),
    ],
)
def test_a_range_is_sent_only_if_each_of_its_changes_was_sent_or_is_a_dead_letter(
    passed: psycopg.Connection, report: Report, becomes: str
) -> None:
    range_ = archived(passed, 3)
    archive.note(passed, archive.sendable(passed, range_), report)
    assert state(passed, range_) == becomes
    assert dead_letters.count(passed) == len(report.dead)


def test_what_a_replay_still_needs_is_not_archived_but_stays_in_the_log(
    passed: psycopg.Connection, writer: writers.Writer
) -> None:
    rule = replays.find_rule(passed, writer.project, "all")
    [part] = replays.plan(passed, rule, None, None, "")
    assert part.wanted == 3
    replays.begin(passed, rule, [part], "", None)
    before = passed.execute("select win, seq from lanes where side > 0").fetchall()
    assert archive.archive_expired(passed, NO_SPARK, SETTINGS, 0, LATER) == []
    retention.drop_expired(passed, SETTINGS.changestream, LATER)
    assert passed.execute("select win, seq from lanes where side > 0").fetchall() == before
    assert passed.execute("select count(*) from changes").fetchone() == (3,)
    assert archive.listed(passed, ended=True) == []


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_range_that_is_discarded_leaves_no_files_and_cannot_be_sent(
    passed: psycopg.Connection, tmp_path: Path, scheme: str
) -> None:
    folder, other = tmp_path / "an archive%20" / "lane-1" / "first", tmp_path / "an archive%20" / "lane-1" / "second"
    for each in (folder, other):
        each.mkdir(parents=True)
        (each / "part-0.parquet").write_bytes(b"x")
    range_ = archived(passed, 3, f"{scheme}{folder}")
    assert archive.discard(passed, range_) is None
    assert (folder.exists(), other.exists()) == (False, True)
    with pytest.raises(OperatorError, match=f"Range {range_} was discarded"):
        archive.send(passed, NO_SPARK, SETTINGS, range_)


@pytest.mark.parametrize("place", ["s3a://bucket/archive/lane-1/x", "hdfs:/archive/lane-1/x", "/nowhere/lane-1/x"])
def test_the_place_of_files_that_are_not_on_this_machine_is_told(
    passed: psycopg.Connection, database_url: str, place: str
) -> None:
    range_ = archived(passed, 3, place)
    environment = {**os.environ, "TIDINGS_DATABASE__URL": database_url}
    command = [sys.executable, "-m", "tidings", "dead-letters", "discard", "--range", str(range_), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"discarded": 1, "files_left": place}
    [ended] = archive.listed(passed, ended=True)
    assert ended["state"] == "discarded"
