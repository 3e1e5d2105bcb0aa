"""The changes of a key are numbered in the order in which they happened.

What happened is written down by a trigger on the head rows, under the same row lock, with numbers and links of its own:
which eTag each change found and which one it left. The log is compared with that.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import psycopg
import pytest

import writers
from tidings.changestream import windows
from tidings.db.pool import Pool, run
from tidings.store import objects
from tidings.store.model import Content, Place
from writers import Change, Writer

KEYS = ("a", "b", "c", "d")
WRITERS = 8
TURNS = 190

WITNESS = """
create sequence seen_number;
create table seen (number bigint, xid xid8, key text, found text, left_ text);
create function witness() returns trigger language plpgsql as $$
begin
    insert into seen values (nextval('seen_number'), pg_current_xact_id(), coalesce(new.key, old.key), old.etag, new.etag);
    return null;
end $$;
create trigger witness after insert or update or delete on heads for each row execute function witness();
"""

# A moment's wait between the start of a statement and its row lock: for ours as for those that are known to be wrong.
JITTER = """
create function dawdle() returns trigger language plpgsql as $$
begin
    perform pg_sleep(random() * 0.004);
    return new;
end $$;
create trigger dawdle before insert on heads for each row execute function dawdle();
"""

# The store's put with one difference: the number is drawn before the row lock is taken.
DRAWN_EARLY = """
with b as (
    select b.id, b.config, (select min(rule)::text from bucket_eventing_configs) as rules
    from bucket_metainfos b join projects p on p.id = b.project_id
    where p.public_id = %(project)s and b.name = %(bucket)s
),
n as materialized (select nextval('change_seq') as seq),
h as (
    insert into heads (bucket_id, key, size, etag, content_type, metadata, config, body)
    select b.id, %(key)s, 1, %(etag)s, 'text/plain', '{}', b.config, 'x' from b, n
    on conflict (bucket_id, key) do update set etag = excluded.etag
    returning new.size, new.etag
)
insert into changes (seq, project, bucket, bucket_id, key, event, size, etag, principal, source_ip, request_id, config, rules)
select n.seq, %(project)s, %(bucket)s, b.id, %(key)s, 'ObjectCreated:Put', h.size, h.etag, '', '', %(etag)s, b.config, b.rules
from h, b, n
"""

Put = Callable[[Writer, Pool, str], Awaitable[Any]]


class Step(NamedTuple):
    """One change of a key, as the witness saw it or as the log tells it: what it found, what it left."""

    found: str | None
    left: str | None


async def put_drawn_early(writer: Writer, pool: Pool, key: str) -> None:
    etag, _ = writer.request()
    await run(pool, DRAWN_EARLY, {"project": writer.project, "bucket": writer.bucket, "key": key, "etag": etag})


@pytest.fixture
def writer(database_url: str, database: psycopg.Connection) -> Iterator[Writer]:
    with writers.writer_to(database_url) as made:
        database.execute(WITNESS.encode())
        database.execute(JITTER.encode())
        yield made


def interleave(writer: Writer, put: Put = Writer.put_in) -> None:
    """Eight writers on four keys, three puts to each delete."""

    def one(number: int) -> Callable[[Pool], Awaitable[None]]:
        draw = random.Random(number)

        async def turns(pool: Pool) -> None:
            for _ in range(TURNS):
                key = draw.choice(KEYS)
                await (writer.delete_in(pool, key) if draw.random() < 0.25 else put(writer, pool, key))
                await asyncio.sleep(draw.random() * 0.002)

        return turns

    writer.at_once(*(one(number) for number in range(WRITERS)))


@contextmanager
def cutting(url: str) -> Iterator[None]:
    """Windows are cut all the time, as the stream does."""
    over = threading.Event()

    def cut() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not over.wait(0.01):
                windows.latest(connection)

    beside = threading.Thread(target=cut)
    beside.start()
    try:
        yield
    finally:
        over.set()
        beside.join()


def witnessed(database: psycopg.Connection) -> dict[str, list[tuple[str, Step]]]:
    """By key: (transaction, step), in the order of the row."""
    rows = database.execute("select key, xid::text, found, left_ from seen order by number").fetchall()
    return {key: [(r[1], Step(*r[2:])) for r in rows if r[0] == key] for key in {row[0] for row in rows}}


def breaks(database: psycopg.Connection, log: list[Change]) -> int:
    """How often a change in the log does not follow the one that happened before it. Zero is the promise."""
    truth = witnessed(database)
    for steps in truth.values():  # the witness itself: without gap, each finds what the one before it left
        assert steps[0][1].found is None
        assert all(before.left == after.found for (_, before), (_, after) in pairwise(steps))
    transactions: dict[str, str] = dict(database.execute("select id, xid::text from changes").fetchall())
    assert sorted(change["id"] for change in log) == sorted(transactions), "each change is read once"
    found = 0
    for key, steps in truth.items():
        told = [(transactions[change["id"]], change["etag"]) for change in log if change["key"] == key]
        happened = [(xid, step.left) for xid, step in steps]
        assert sorted(told, key=str) == sorted(happened, key=str), (
            "each change in the log happened, and each that happened is there"
        )
        found += sum(one != other for one, other in zip(told, happened, strict=True))
    return found


def test_interleaved_writers_are_delivered_in_the_order_of_each_key(database: psycopg.Connection, writer: Writer) -> None:
    with cutting(writer.url):
        interleave(writer)
    log = writer.read()
    assert len(log) > 1200
    assert len({change["window"] for change in log}) > 20
    assert {change["event"] for change in log} == {"ObjectCreated:Put", "ObjectRemoved:Delete"}
    assert breaks(database, log) == 0


def test_numbers_drawn_before_the_lock_break_the_order(database: psycopg.Connection, writer: Writer) -> None:
    interleave(writer, put_drawn_early)
    assert breaks(database, writer.read()) > 20


def test_numbers_from_a_sequence_with_a_cache_break_the_order(database: psycopg.Connection, writer: Writer) -> None:
    database.execute("alter sequence change_seq cache 20")
    interleave(writer)
    assert breaks(database, writer.read()) > 100


def first_writes(writer: Writer, put: Put = Writer.put_in, rounds: int = 60) -> None:
    """Two puts race to make a key that is not there, and sometimes a delete with them; then the key is removed, and again."""

    async def race(pool: Pool) -> None:
        draw = random.Random(1)
        for turn in range(rounds):
            key = f"new-{turn}" if turn % 2 else "again"
            others = [writer.delete_in(pool, key)] if draw.random() < 0.5 else []
            await asyncio.gather(put(writer, pool, key), put(writer, pool, key), *others)
            await writer.delete_in(pool, key)

    writer.at_once(race)


def test_two_first_writes_of_a_key_are_delivered_in_the_order_of_the_key(database: psycopg.Connection, writer: Writer) -> None:
    first_writes(writer)
    log = writer.read()
    assert len(log) >= 150
    assert breaks(database, log) == 0


def test_two_first_writes_with_numbers_drawn_before_the_lock_break_the_order(
    database: psycopg.Connection, writer: Writer
) -> None:
    first_writes(writer, put_drawn_early)
    assert breaks(database, writer.read()) > 5


def test_a_log_that_is_cut_by_transaction_id_breaks_the_order(database: psycopg.Connection, writer: Writer) -> None:
    """An id is older than the row lock as soon as a transaction did anything before it."""
    with writer.held() as transaction:
        writer.run(writer.put_in(transaction, "other"))
        writer.put("key")
        writer.run(writer.put_in(transaction, "key"))
    log = writer.read()
    assert breaks(database, log) == 0
    ids: dict[str, int] = dict(database.execute("select id, xid::text::bigint from changes").fetchall())
    assert breaks(database, sorted(log, key=lambda change: (ids[change["id"]], change["seq"]))) > 0


def test_a_key_that_waits_for_its_turn_is_in_no_earlier_window_than_the_one_it_waited_for(
    database: psycopg.Connection, writer: Writer
) -> None:
    """The second put began before the first committed; a window that is cut in between holds neither."""

    async def second() -> None:
        async with await psycopg.AsyncConnection.connect(writer.url, autocommit=True) as connection:
            await objects.commit_inline_object(
                writers.Held(connection),  # type: ignore[arg-type]
                Place(writer.project, writer.bucket, "key"),
                Content(1, "second", "text/plain", {}, b"x"),
                writer.request()[1],
            )

    writer.put("key")
    with writer.held() as transaction:
        writer.run(writer.put_in(transaction, "key"))
        beside = threading.Thread(target=asyncio.run, args=(second(),))
        beside.start()
        wait_until_blocked(database)
        assert windows.latest(database).window == 1
        writer.put("elsewhere")
        assert windows.latest(database).window == 2
    beside.join()
    log = writer.read()
    assert [(change["etag"], change["window"]) for change in log if change["key"] == "key"] == [
        ("e1", 1),
        ("e2", 3),
        ("second", 3),
    ]
    assert breaks(database, log) == 0


def wait_until_blocked(database: psycopg.Connection) -> None:
    for _ in range(500):
        row = database.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        ).fetchone()
        if row and row[0]:
            return
        threading.Event().wait(0.01)
    raise AssertionError("nobody waits for a lock")
