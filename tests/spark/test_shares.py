"""A project's share of a round: a large project's fan-out leaves a quiet one's events alone, and loses nothing by it."""

from __future__ import annotations

import json

import psycopg
import pytest
from pyspark.sql import SparkSession

from tidings import settings
from tidings.access.projects import create_project
from tidings.changestream import reader, windows
from tidings.changestream.retention import keep_up
from tidings.delivery import lanes, shares
from tidings.delivery.ownership import Owner
from tidings.delivery.pipeline import Pipeline
from tidings.delivery.reports import Report
from tidings.delivery.stream import Stream
from tidings.events.positions import START, Position

EPOCH = 7
SHARE = 10
LARGE, QUIET = 30, 5
# Not those of other tests: a worker keeps where the numbers of lanes and rules lead.
FIRST_LANE, VERSION = 90_001, 900_000


class Tenants:
    """A large project, whose changes of one key go to two queues, and a quiet one with one queue."""

    def __init__(self, database: psycopg.Connection) -> None:
        self.database = database
        keep_up(database, settings.load().changestream)
        self.large, self.quiet = (create_project(database, name) for name in ("large", "quiet"))
        database.execute("update stream set epoch = %s, win = 0, seq = 0", [EPOCH])
        queues = [(self.large, "a"), (self.large, "b"), (self.quiet, "q")]
        for lane, (project, queue) in enumerate(queues, FIRST_LANE):
            database.execute("insert into queues (project, name) values (%s, %s)", [project, queue])
            database.execute(
                "insert into lanes (id, project, destination) overriding system value values (%s, %s, %s)",
                [lane, project, f"arn:aws:sqs:us-east-1:{project}:{queue}"],
            )
            database.execute(
                "insert into bucket_metainfos (project_id, name, config) select id, 'bucket', 1 from projects"
                " where public_id = %s on conflict do nothing",
                [project],
            )
            database.execute(
                "insert into bucket_eventing_configs (project_id, bucket_name, config_id, topic_name, events, lane, since)"
                " select id, 'bucket', %s, %s, '{s3:ObjectCreated:*}', %s, 1 from projects where public_id = %s",
                [queue, queue, lane, project],
            )
        database.execute("update rules_version set version = %s", [VERSION])

    def write(self, project: str, key: str) -> None:
        self.database.execute(
            """
            insert into changes (seq, project, bucket, bucket_id, key, event, size, etag, principal, source_ip, request_id,
                                 config, rules)
            select nextval('change_seq'), p.public_id, b.name, b.id, %s, 'ObjectCreated:Put', 1, 'e', 'me', '192.0.2.1', 'r', 1,
                   (select string_agg(rule::text, ',' order by rule) from bucket_eventing_configs where project_id = p.id)
            from projects p join bucket_metainfos b on b.project_id = p.id where p.public_id = %s
            """,
            [key, project],
        )

    def seqs(self, project: str) -> list[int]:
        return [seq for (seq,) in self.database.execute("select seq from changes where project = %s order by seq", [project])]

    def received(self, queue: str) -> list[int]:
        """The numbers of the changes that arrived in a queue, in the order of their arrival."""
        rows = self.database.execute(
            "select body from queue_messages join queues using (pile) where name = %s order by queue_messages.id", [queue]
        )
        return [int(json.loads(body)["Records"][0]["s3"]["object"]["sequencer"], 16) for (body,) in rows]

    def states(self) -> list[tuple[str, Position | None]]:
        rows = self.database.execute("select state, win, seq from lanes order by id").fetchall()
        return [(state, None if win is None else Position(win, seq)) for state, win, seq in rows]


@pytest.fixture
def tenants(spark_database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> Tenants:
    monkeypatch.setenv("TIDINGS_DELIVERY__SHARE_CALLS", str(SHARE))
    monkeypatch.setenv("TIDINGS_DELIVERY__BUDGET_SECONDS", "60")  # it is the share that ends this round, not the clock
    made = Tenants(spark_database)
    for number in range(LARGE):
        made.write(made.large, "hot")
        if number % (LARGE // QUIET) == 0:
            made.write(made.quiet, f"key-{number}")
    return made


def test_a_round_delivers_the_quiet_project_whole_and_the_large_one_its_share_and_the_rest_arrives_in_order(
    spark: SparkSession, tenants: Tenants
) -> None:
    database, loaded = tenants.database, settings.load()
    stream, rounds, beside = Stream(spark, loaded), Pipeline(spark, loaded, "rounds"), Pipeline(spark, loaded, "beside")
    newest = windows.cut(database, windows.BEFORE_ALL)
    assert newest is not None
    large, quiet = tenants.seqs(tenants.large), tenants.seqs(tenants.quiet)
    within = next(number for number in range(LARGE) if 2 * (number + 1) * 1.01 > SHARE)

    done = stream._round(database, rounds, EPOCH, START, newest)

    assert done == (newest.end, within + sum(seq < newest.hi for seq in quiet)), "what is left to others needs no gathering"
    assert tenants.received("q") == quiet
    assert tenants.received("a") == tenants.received("b") == large[:within]
    cursor = Position(newest.id, large[within] - 1)
    assert tenants.states() == [("behind", cursor), ("behind", cursor), ("live", None)]

    owner = Owner(EPOCH, newest.end)
    for _ in range(LARGE):
        if {state for state, _ in tenants.states()} == {"live"}:
            break
        stream._catch_up(database, beside, owner, "quick")
        stream._round(database, rounds, EPOCH, newest.end, newest)
    assert tenants.states() == [("live", None)] * 3
    assert tenants.received("a") == tenants.received("b") == large, "lost, doubled or out of order"
    assert tenants.received("q") == quiet


def test_lanes_that_are_ready_bring_no_more_than_a_share_into_a_round_of_few_changes(tenants: Tenants) -> None:
    database = tenants.database
    backlog = windows.cut(database, windows.BEFORE_ALL)
    assert backlog is not None
    database.execute("update lanes set state = 'ready', win = 0, seq = 0 where project = %s", [tenants.large])
    tenants.write(tenants.quiet, "one")
    newest = windows.cut(database, backlog)
    assert newest is not None
    standing, large = lanes.standing(database), tenants.seqs(tenants.large)
    wanted = lanes.rules_of(database, [FIRST_LANE, FIRST_LANE + 1])
    pieces = reader.slices(database, START, backlog.end, wanted) + reader.slices(database, backlog.end, newest.end)

    done = shares.cut(database, SHARE, pieces, backlog.end, newest.n, standing)

    within = next(number for number in range(LARGE) if 2 * (number + 1) * 1.01 > SHARE)
    assert done == shares.Cut(1, dict.fromkeys((FIRST_LANE, FIRST_LANE + 1), Position(backlog.id, large[within] - 1)))
    assert shares.cut(database, SHARE, [], backlog.end, 0, standing) == shares.Cut(0), "they are where the stream is"


def test_a_lane_that_serves_two_projects_ends_at_the_first_cut_and_one_that_the_round_does_not_know_has_none(
    tenants: Tenants,
) -> None:
    database = tenants.database
    for _ in range(LARGE):
        tenants.write(tenants.quiet, "hot too")
    database.execute(
        "update bucket_eventing_configs c set lane = %s from projects p where p.id = c.project_id and p.public_id = %s",
        [FIRST_LANE, tenants.quiet],
    )
    newest = windows.cut(database, windows.BEFORE_ALL)
    assert newest is not None
    pieces, standing = reader.slices(database, START, newest.end), lanes.standing(database)
    first = next(number for number in range(LARGE) if 2 * (number + 1) * 1.01 > SHARE)
    end = Position(newest.id, tenants.seqs(tenants.large)[first] - 1)
    ends = shares.cut(database, SHARE, pieces, START, newest.n, standing).ends
    assert ends == dict.fromkeys((FIRST_LANE, FIRST_LANE + 1), end)

    late = FIRST_LANE + 9
    database.execute(
        "insert into lanes (id, project, destination) overriding system value values (%s, %s, 'arn:aws:sqs:us-east-1:x:late')",
        [late, tenants.large],
    )
    database.execute("update bucket_eventing_configs set lane = %s where lane = %s", [late, FIRST_LANE + 1])
    assert late not in shares.cut(database, SHARE, pieces, START, newest.n, standing).ends


def test_a_project_that_is_alone_has_the_whole_round(tenants: Tenants) -> None:
    database = tenants.database
    newest = windows.cut(database, windows.BEFORE_ALL)
    assert newest is not None
    pieces = reader.slices(database, START, newest.end)
    assert shares.cut(database, SHARE, pieces, START, newest.n, lanes.standing(database)).ends.keys() == {
        FIRST_LANE,
        FIRST_LANE + 1,
    }
    database.execute("update lanes set state = 'closed', win = 0, seq = 0 where project = %s", [tenants.quiet])
    assert shares.cut(database, SHARE, pieces, START, newest.n, lanes.standing(database)) == shares.Cut(newest.n)


def test_a_lane_that_failed_before_the_cut_stays_where_it_failed() -> None:
    failed, passed = Report(1, 3, Position(4, 11), error="down"), Report(2, 9)
    first, second, third = shares.hold_back([failed, passed], dict.fromkeys((1, 2, 3), Position(4, 20)))
    assert first == failed
    assert [(r.lane, r.sent, r.cursor, r.late) for r in (second, third)] == [
        (2, 9, Position(4, 20), True),
        (3, 0, Position(4, 20), True),
    ]
