"""A rule is told of what was there before it, and then follows: no object on both sides of the seam, and none on neither.

What is staged is what would be sent first, what the changes name the rule in is what would be sent then: nothing is sent here.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import dict_row

import writers
from tidings.changestream import reader
from tidings.db.pool import make_pool
from tidings.delivery import backfilling, backfills, catchup, existing, explain, lanes, overview, replays, steering
from tidings.delivery.lanes import Step
from tidings.delivery.reports import Report
from tidings.errors import OperatorError, Superseded
from tidings.events.arn import SnsTopic
from tidings.events.positions import Position
from tidings.rules import table
from tidings.rules.backfills import Backfill
from tidings.rules.model import KeyFilter, Rule
from tidings.settings import Settings
from tidings.store import buckets, deletes
from tidings.store.model import Place
from waiting import until

EPOCH = 7
ALL = Rule("all", writers.TOPIC, writers.EVERYTHING)
NEW = Rule("new", writers.TOPIC, writers.EVERYTHING)


@pytest.fixture
def writer(database_url: str) -> Iterator[writers.Writer]:
    with writers.writer_to(database_url) as made:
        yield made


@pytest.fixture
def db(database: psycopg.Connection, writer: writers.Writer) -> psycopg.Connection:  # noqa: ARG001 - it makes the bucket
    database.execute("set statement_timeout = '30s'")
    database.execute("update stream set epoch = %s", [EPOCH])
    return database


async def replaced(url: str, project: str, bucket: str, rules: list[Rule], wanted: Backfill | None) -> None:
    async with await AsyncConnection.connect(url, autocommit=True) as connection:
        await table.replace(connection, project, bucket, rules, backfill=wanted)


def add(writer: writers.Writer, wanted: Backfill | None, *rules: Rule) -> None:
    writer.run(replaced(writer.url, writer.project, writer.bucket, list(rules or (ALL, NEW)), wanted))


def rows(db: psycopg.Connection, query: str, *values: Any) -> list[dict[str, Any]]:
    with db.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), values).fetchall()


def number(db: psycopg.Connection, config_id: str = "new") -> int:
    return int(rows(db, "select rule from bucket_eventing_configs where config_id = %s", config_id)[0]["rule"])


def held(db: psycopg.Connection) -> lanes.Lane:
    [lane] = lanes.standing(db).in_state("backfill")
    return lane


class Served:
    """In the place of the stream: what it would tell a rule of, page by page. It sends to nobody."""

    def __init__(self, db: psycopg.Connection, url: str, epoch: int = EPOCH) -> None:
        self.db, self.url, self.epoch = db, url, epoch
        self.told: list[dict[str, Any]] = []
        self._job = backfilling.Backfilling(Settings(), catchup.Turns())

    def begun(self) -> bool:
        return self._job._begin(self.db, self.epoch, held(self.db))

    def page(self, most: int = 1000, confirmed: int | None = None, error: str | None = None) -> bool:
        """Stage a page, unless there is one, and tell of it, or of its first rows; whether there is more to do."""
        lane = held(self.db)
        [before] = rows(self.db, "select id, n, told, listed_at from backfills where lane = %s", lane.id)
        if before["n"] == before["told"] and before["listed_at"] is None:
            existing.stage(self.db, self.epoch, lane.id, most, literal=False)
        [now] = rows(self.db, "select id, n, told from backfills where lane = %s", lane.id)
        piece = reader.Slice(0, existing.condition(now["id"], now["told"], now["n"]), dense=True, staged=True)
        found = [row for batch in reader.read(self.url, [piece], 0, 1) for row in batch.to_pylist()][:confirmed]
        self.told += found
        reached = found[-1]["window"] if found else now["told"]
        step = Step(existing.place(reached), wait=1.0 if error else None, error=error)
        assert lanes.end_page(self.db, self.epoch, lane, now["told"], step, Report(lane.id, len(found)))
        return bool(lanes.standing(self.db).in_state("backfill"))

    def all(self, most: int = 1000) -> list[dict[str, Any]]:
        until(self.begun, "no older writer is left")
        while self.page(most):
            pass
        return self.told


def live(db: psycopg.Connection, rule: int) -> list[dict[str, Any]]:
    query = "select key, event, etag, version_id, seq from changes where %s = any(string_to_array(rules, ',')) order by seq"
    return rows(db, query, str(rule))


def versions_there(db: psycopg.Connection, table_: str = "heads") -> list[tuple[str, str]]:
    return [(row["key"], row["etag"]) for row in rows(db, f"select key, etag from {table_} where not delete_marker")]


def check(db: psycopg.Connection, told: list[dict[str, Any]], versions: bool) -> None:
    """Every version that is there was told of once, and never on both sides; per key what was there comes first."""
    first = Counter((row["key"], row["etag"]) for row in told if row["event"].startswith("ObjectCreated"))
    later = live(db, number(db))
    then = Counter((row["key"], row["etag"]) for row in later if row["event"].startswith("ObjectCreated"))
    both = first + then
    assert not [each for each, times in both.items() if times > 1]
    there = versions_there(db) + (versions_there(db, "versions") if versions else [])
    # Who deletes the newest version lets an older one come to light, of which nobody tells unless versions were asked for.
    lit = set() if versions else {row["key"] for row in later if row["event"] == "ObjectRemoved:Delete" and row["version_id"]}
    assert not [each for each in there if both[each] != 1 and each[0] not in lit]
    lowest = {row["key"]: row["seq"] for row in reversed(later)}
    assert not [row for row in told if row["seq"] >= lowest.get(row["key"], row["seq"] + 1)]
    for key in {row["key"] for row in told}:
        numbers = [row["seq"] for row in told if row["key"] == key]
        assert numbers == sorted(set(numbers)), key
    assert len({row["id"] for row in told}) == len(told)


def test_a_rule_is_told_of_each_object_and_then_of_each_change(db: psycopg.Connection, writer: writers.Writer) -> None:
    writer.put("a", "b", "c", "a", "gone", "schön +x")
    writer.delete("gone")
    add(writer, Backfill("new"))
    writer.put("b", "d")
    writer.delete("c")
    told = Served(db, writer.url).all(most=2)
    assert [row["key"] for row in told] == ["a", "schön +x"]
    assert {row["event"] for row in told} == {"ObjectCreated:Put"}
    assert [row["encoded"] for row in told] == [None, "sch%C3%B6n+%2Bx"]
    assert [row["key"] for row in live(db, number(db))] == ["b", "d", "c"]
    check(db, told, versions=False)
    [lane] = lanes.standing(db).lanes
    assert (lane.state, lane.cursor) == ("behind", Position(0, 0))
    assert db.execute("select count(*) from backfill_changes").fetchone() == (0,)


def test_who_is_writing_while_the_rule_comes_is_waited_for_and_told_of(db: psycopg.Connection, writer: writers.Writer) -> None:
    served = Served(db, writer.url)
    with writer.held() as open_:
        [etag] = [writer.run(writer.put_in(open_, "late"))]
        add(writer, Backfill("new"))
        writer.put("after")
        assert not served.begun()
        assert "waits for transactions" in str(overview.lanes(db)[1]["error"])
        writer.put("after/2")  # later writers are not waited for, and wait for nobody
    assert [row["etag"] for row in served.all()] == [etag]
    assert [row["key"] for row in live(db, number(db))] == ["after", "after/2"]
    check(db, served.told, versions=False)
    assert overview.lanes(db)[1]["error"] is None


def test_a_delete_marker_that_is_written_while_the_rule_comes_keeps_its_place(
    db: psycopg.Connection, writer: writers.Writer
) -> None:
    set_versioning(writer, "enabled")
    writer.put("key")
    served = Served(db, writer.url)
    rule = writer.run(AsyncConnection.connect(writer.url))
    writer.run(fetched(rule, "select"))  # from here on there is a transaction to hold
    writer.run(table.replace(rule, writer.project, writer.bucket, [ALL, NEW], backfill=Backfill("new", versions=True)))
    writer.put("key")
    writer.delete("key")
    writer.run(rule.commit())
    writer.run(rule.close())
    told = served.all()
    assert [row["event"].partition(":")[2] for row in told] == ["Put", "Put", "DeleteMarkerCreated"]
    assert [row["seq"] for row in told] == sorted(row["seq"] for row in told)
    check(db, told, versions=True)


@contextmanager
def beside(work: Any) -> Iterator[None]:
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(work)
        yield
        done.result(60)


def test_who_has_read_the_old_rules_and_has_no_transaction_id_yet_is_waited_for_too(
    db: psycopg.Connection, writer: writers.Writer
) -> None:
    """It waits for the row of its key, held by a transaction that is younger than the rule's."""
    writer.put("key")
    served = Served(db, writer.url)
    rule = writer.run(AsyncConnection.connect(writer.url))
    [xid] = writer.run(fetched(rule, "select pg_current_xact_id()::text"))  # from here on there is a transaction to hold
    writer.run(table.replace(rule, writer.project, writer.bucket, [ALL, NEW], backfill=Backfill("new")))
    with psycopg.connect(writer.url) as lock:
        lock.execute("select from heads where key = 'key' for update")
        lock.execute("select pg_current_xact_id()")
        with beside(lambda: asyncio.run(put_alone(writer, "key"))):
            waiting = "select exists (select from pg_locks l join pg_stat_activity a using (pid) where not l.granted"
            waiting += " and a.datname = current_database() and a.backend_xid is null)"
            until(lambda: db.execute(waiting.encode()).fetchone() == (True,), "the writer waits, and has no id")
            writer.run(rule.commit())
            past = db.execute("select pg_snapshot_xmin(pg_current_snapshot()) > %s::xid8", xid).fetchone()
            assert past == (True,), "whoever looked at transaction ids would begin now"
            assert not served.begun()
            lock.rollback()
    writer.run(rule.close())
    told = served.all()
    assert [(row["key"], row["etag"]) for row in told] == versions_there(db)
    assert live(db, number(db)) == []


async def fetched(connection: AsyncConnection[Any], query: str) -> list[Any]:
    return await (await connection.execute(query.encode())).fetchall()


async def put_alone(writer: writers.Writer, key: str, deleting: bool = False) -> None:
    async with make_pool(writer.url, 1) as pool:
        await (writer.delete_in if deleting else writer.put_in)(pool, key)


@pytest.mark.parametrize("deleting", [False, True])
@pytest.mark.parametrize("state", ["unversioned", "enabled"])
def test_who_has_read_the_old_rules_and_comes_after_one_who_knows_the_new_reads_them_again(
    db: psycopg.Connection, writer: writers.Writer, state: str, deleting: bool
) -> None:
    """Otherwise the rule would hear of the other's object as the last, or for ever."""
    if state == "enabled":
        set_versioning(writer, "enabled")
    writer.put("key")
    with writer.held() as first:
        writer.run(locked(first, "key"))
        with beside(lambda: asyncio.run(put_alone(writer, "key", deleting))):
            waiting = "select exists (select from pg_locks l join pg_stat_activity a using (pid) where not l.granted"
            until(
                lambda: db.execute(f"{waiting} and a.datname = current_database())".encode()).fetchone() == (True,),
                "it waits for the key",
            )
            add(writer, Backfill("new"))
            [etag] = [writer.run(writer.put_in(first, "key"))]
            writer.run(first.commit())
    heard = live(db, number(db))
    assert [row["event"].partition(":")[0] for row in heard] == [
        "ObjectCreated",
        *["ObjectRemoved" if deleting else "ObjectCreated"],
    ]
    assert heard[0]["etag"] == etag
    told = Served(db, writer.url).all()
    assert len(told) == (state == "enabled")
    check(db, told, versions=False)


async def locked(held_: writers.Held, key: str) -> None:
    connection = await held_.getconn()
    await connection.execute("select from heads where key = %s for update", [key])


STATES = ("unversioned", "enabled", "suspended")


class Busy:
    """Writers of a few keys beside a test: puts, deletes, deletes of versions, while the bucket's versioning changes."""

    def __init__(self, writer: writers.Writer, state: str, seed: int) -> None:
        self._writer, self._state, self._seed = writer, state, seed
        self._over = threading.Event()
        self.writes = 0

    async def _one(self, pool: Any, draw: random.Random) -> None:
        keys = [f"k/{number:02}" for number in range(40)]
        place = Place(self._writer.project, self._writer.bucket, "")
        while not self._over.is_set():
            key, chance = draw.choice(keys), draw.random()
            if chance < 0.7:
                await self._writer.put_in(pool, key)
            elif chance < 0.85:
                await self._writer.delete_in(pool, key)
            else:
                async with pool.connection() as connection:
                    found = await connection.execute("select version_id from heads where key = %s", [key])
                    row = await found.fetchone()
                if row:
                    there = Place(place.project, place.bucket, key)
                    await deletes.delete_object_exact_version(pool, there, row[0], self._writer.request()[1])
            self.writes += 1
            await asyncio.sleep(0.004 * draw.random())

    async def _all(self) -> None:
        async with make_pool(self._writer.url, 4) as pool:
            await asyncio.gather(*(self._one(pool, random.Random(f"{self._seed}/{n}")) for n in range(4)))

    @contextmanager
    def writing(self) -> Iterator[None]:
        with beside(lambda: asyncio.run(self._all())):
            try:
                yield
            finally:
                self._over.set()


@pytest.mark.parametrize("versions", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_under_busy_writers_no_version_is_told_of_twice_or_never(
    db: psycopg.Connection, writer: writers.Writer, state: str, versions: bool
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    writer.put(*(f"k/{number:02}" for number in range(40)), *(f"quiet/{number:03}" for number in range(60)))
    if state != "unversioned":
        set_versioning(writer, "enabled")
        writer.put(*(f"k/{number:02}" for number in range(0, 40, 2)))
        writer.delete("k/03")
        set_versioning(writer, state)
    busy, served = Busy(writer, state, seed), Served(db, writer.url)
    with busy.writing():
        time.sleep(0.3)
        add(writer, Backfill("new", versions))
        before = busy.writes
        until(served.begun, "no older writer is left")
        while served.page(most=7):
            time.sleep(0.005)
        until(lambda: busy.writes > before + 50, "they go on")
    check(db, served.told, versions)
    assert Counter(row["key"] for row in served.told if row["key"].startswith("quiet/")) == Counter(
        f"quiet/{number:03}" for number in range(60)
    )
    assert live(db, number(db))


def set_versioning(writer: writers.Writer, state: str) -> None:
    async def done() -> None:
        async with make_pool(writer.url, 1) as pool:
            await buckets.put_versioning(pool, writer.project, writer.bucket, state)

    writer.run(done())


def test_older_versions_and_markers_are_told_of_where_that_is_asked_for_each_key_in_its_order(
    db: psycopg.Connection, writer: writers.Writer
) -> None:
    set_versioning(writer, "enabled")
    etags = writer.put("a", "a", "b", "a")
    writer.delete("a")
    add(writer, Backfill("new", versions=True))
    told = Served(db, writer.url).all(most=2)
    assert [(row["key"], row["event"].partition(":")[0]) for row in told] == [
        *[("a", "ObjectCreated")] * 3,
        ("a", "ObjectRemoved"),
        ("b", "ObjectCreated"),
    ]
    assert [row["etag"] for row in told if row["event"] == "ObjectCreated:Put"] == [*etags[:2], etags[3], etags[2]]
    assert all(row["version_id"] for row in told)
    check(db, told, versions=True)


def test_whoever_takes_over_goes_on_where_the_other_was_killed(db: psycopg.Connection, writer: writers.Writer) -> None:
    writer.put(*"abcdefgh")
    add(writer, Backfill("new"))
    first = Served(db, writer.url)
    assert first.begun()
    assert first.page(most=3)
    assert first.page(most=3, confirmed=1, error="down")  # of d, e, f the first was taken; then it is killed
    db.execute("update stream set epoch = epoch + 1")
    with pytest.raises(Superseded):
        existing.stage(db, EPOCH, held(db).id, 3, literal=False)
    lane = held(db)
    assert not lanes.end_page(db, EPOCH, lane, 4, Step(existing.place(6)), Report(lane.id, 2))
    second = Served(db, writer.url, EPOCH + 1)
    writer.delete("e")  # it was staged: it is told of, and its end after that
    told = [*first.told, *second.all(most=3)]
    assert [row["key"] for row in told] == list("abcdefgh")
    check(db, told, versions=False)
    assert db.execute("select sent, n from backfills").fetchone() == (8, 8)


def test_a_page_that_is_not_confirmed_is_given_again_with_the_same_words(
    db: psycopg.Connection, writer: writers.Writer
) -> None:
    writer.put(*"abc")
    add(writer, Backfill("new"))
    served = Served(db, writer.url)
    assert served.begun()
    assert served.page(confirmed=0, error="nobody is there")
    lane = held(db)
    assert (lane.attempts, lane.due) == (1, False)
    piece = reader.Slice(0, existing.condition(1, 0, 3), dense=True, staged=True)
    once, again = ([b.to_pylist() for b in reader.read(writer.url, [piece], 0, 1)] for _ in range(2))
    assert once == again
    writer.put("b")
    assert [row["key"] for row in served.all()] == list("abc")


def round_over(db: psycopg.Connection, end: Position) -> None:
    row = db.execute("select win, seq from stream").fetchone()
    assert row is not None
    seen = lanes.standing(db)
    lanes.end_round(db, EPOCH, Position(*row), end, seen.in_state("ready"), [], 1.0, seen.unsettled)


def routes(db: psycopg.Connection) -> dict[int, int]:
    return {row["source"]: row["lane"] for row in rows(db, "select source, lane from routes")}


def test_two_rules_of_one_lane_are_apart_until_the_new_one_has_caught_up_and_then_share_it(
    db: psycopg.Connection, writer: writers.Writer
) -> None:
    writer.put("old")
    db.execute("update stream set win = 5, seq = 50")
    add(writer, Backfill("new"))
    old, new = number(db, "all"), number(db)
    own = held(db)
    assert own.cursor == Position(5, 50)
    assert routes(db) == {old: 1, new: own.id}
    assert lanes.standing(db).not_served == {own.id}, "the other rule's lane goes on with the stream"
    round_over(db, Position(6, 60))
    Served(db, writer.url).all()
    [behind] = lanes.standing(db).lanes
    assert (behind.id, behind.state, behind.cursor) == (own.id, "behind", Position(5, 50))
    assert lanes.end_catch_up(db, EPOCH, behind, Step(Position(6, 60), ready=True))
    steering.pause(db, 1)
    round_over(db, Position(7, 70))
    assert routes(db) == {old: 1, new: own.id}, "the lane beside it is not with the stream: it would be sent again"
    steering.resume(db, 1)
    db.execute("update lanes set state = 'ready' where id = 1")
    round_over(db, Position(8, 80))
    assert lanes.standing(db).unsettled
    round_over(db, Position(8, 80))
    assert routes(db) == {old: 1, new: 1}
    assert db.execute("select state, win, seq from lanes where id = %s", [own.id]).fetchone() == ("closed", 8, 80)
    assert not lanes.standing(db).unsettled


def test_a_rule_that_is_at_work_is_cut_over_between_two_rounds(db: psycopg.Connection, writer: writers.Writer) -> None:
    writer.put("old", "other/old")
    add(writer, None)
    writer.put("new")
    backfills.ask(db, writer.project, writer.bucket, "new", False, "o")
    with pytest.raises(OperatorError, match="is under way"):
        backfills.ask(db, writer.project, writer.bucket, "new", False, "")
    assert routes(db)[number(db)] == 1, "nothing is known yet of how far its lane is"
    steering.pause(db, 1)
    assert not lanes.standing(db).unsettled
    steering.resume(db, 1)
    db.execute("update lanes set state = 'live', win = null, seq = null")
    round_over(db, Position(9, 90))
    lane = held(db)
    assert lane.cursor == Position(9, 90)
    assert routes(db)[number(db)] == lane.id
    assert [row["key"] for row in Served(db, writer.url).all()] == ["old", "other/old"]
    found = backfills.progress(db, writer.project, writer.bucket, "new")
    assert (found["sent"], found["wanted"], found["ended"]) == (2, 2, True)


def test_a_backfill_is_paused_and_goes_on_where_it_was(db: psycopg.Connection, writer: writers.Writer) -> None:
    writer.put(*"abc")
    add(writer, Backfill("new"))
    served = Served(db, writer.url)
    assert served.begun()
    served.page(most=2)
    lane = held(db)
    steering.pause(db, lane.id)
    assert not lanes.end_page(db, EPOCH, lane, 2, Step(existing.place(2)), Report(lane.id, 0))
    assert steering.resume(db, lane.id) == "backfill"
    assert [row["key"] for row in served.all()] == list("abc")


def test_the_prefix_of_a_rule_narrows_the_listing(db: psycopg.Connection, writer: writers.Writer) -> None:
    writer.put("a/1", "b/1", "b/2", "c")
    only = Rule("new", writers.TOPIC, writers.EVERYTHING, KeyFilter("b/", ""))
    add(writer, Backfill("new"), ALL, only)
    assert [row["key"] for row in Served(db, writer.url).all()] == ["b/1", "b/2"]


@pytest.mark.parametrize(
    ("asked", "of_rule", "literal", "found"),
    [
        *(("", "", False, ""), ("a/b", "a/", False, "a/b"), ("a", "a/", False, "a/"), ("a", "b", False, None)),
        *(("", "a+b", False, ""), ("", "a+b", True, "a+b"), ("x", "a%20", False, "x")),
    ],
)
def test_which_prefix_a_key_must_have(asked: str, of_rule: str, literal: bool, found: str | None) -> None:
    assert existing.narrowest(asked, of_rule, literal) == found


def test_a_rule_that_is_deleted_meanwhile_takes_its_backfill_along(db: psycopg.Connection, writer: writers.Writer) -> None:
    writer.put(*"abc")
    add(writer, Backfill("new"))
    served = Served(db, writer.url)
    assert served.begun()
    served.page(most=2, confirmed=1)
    lane = held(db).id
    add(writer, None, ALL)
    assert lanes.close_unused(db, EPOCH) == [lane]
    assert db.execute("select count(*) from backfill_changes").fetchone() == (0,)
    assert db.execute("select ended_at is not null from backfills").fetchone() == (True,)
    assert lanes.close_unused(db, EPOCH) == []


def test_the_lane_that_a_backfill_ends_in_is_not_closed_meanwhile(db: psycopg.Connection, writer: writers.Writer) -> None:
    add(writer, Backfill("new"), NEW)
    assert lanes.close_unused(db, EPOCH) == []
    own = held(db).id
    add(writer, None, ALL)
    assert lanes.close_unused(db, EPOCH) == [own]


def test_a_rule_to_a_topic_without_a_subscriber_cannot_be_backfilled_and_is_not_made(
    db: psycopg.Connection, writer: writers.Writer
) -> None:
    topic = Rule("new", SnsTopic("us-east-1", writer.project, "nobody"), writers.EVERYTHING)
    with pytest.raises(OperatorError, match="no subscription that is confirmed"):
        add(writer, Backfill("new"), ALL, topic)
    assert [row["config_id"] for row in rows(db, "select config_id from bucket_eventing_configs")] == ["all"]


def test_explain_and_replay_know_the_lane_of_a_backfill(db: psycopg.Connection, writer: writers.Writer) -> None:
    add(writer, Backfill("new"))
    writer.put("x")
    lane = held(db).id
    found = explain.explain(db, writer.project, explain.Place.parse(f"s3://{writer.bucket}/x"), False)
    told = {rule["rule"]: rule for rule in found["changes"][0]["rules"]}
    assert str(lane) in str(told)
    rule = replays.find_rule(db, writer.project, "new")
    assert [part.of_lane for part in replays.plan(db, rule, None, None, "")] == [lane]
