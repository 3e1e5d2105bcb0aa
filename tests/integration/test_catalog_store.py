"""The catalog over a real database: what each call tells, who may come in between, and what it costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from catalog_calls import WHO, Calls, calls
from catalog_changes import table
from conftest import Say
from tidings.catalog import contents, joined, limits, points, writing
from tidings.catalog.errors import CatalogError
from tidings.catalog.hashes import BEGINNING
from tidings.catalog.merge import Wish
from tidings.catalog.model import Caller, Delete, Key, Meta, Operation, Put, Unchanged
from tidings.catalog.service import Catalog
from tidings.catalog.settings import CatalogSettings
from tidings.db.pool import make_pool


@pytest.fixture
def catalog(database_url: str) -> Iterator[Calls]:
    with calls(database_url) as opened:
        yield opened


def key(text: str) -> Key:
    return Key.of(text.split("."))


def put(text: str, **more: Any) -> Put:
    return Put(key(text), table(text, **more))


COMMIT, STORED, REMOVED = "COMMIT", "CONTENT_STORED", "CONTENT_REMOVED"


def test_each_call_tells_what_the_seed_says_and_a_refusal_or_a_reading_tells_nothing(catalog: Calls) -> None:
    service, project, told = catalog.catalog, catalog.project, catalog.told
    main = catalog.head()
    assert told.types() == ["REFERENCE_CREATED"]
    one = catalog.commit("main", main, put("a"), put("b"))
    assert told.types() == [COMMIT, STORED, STORED]
    two = catalog.commit("main", one, Delete(key("a")), Unchanged(key("b")))
    assert told.types() == [COMMIT, REMOVED]
    three = catalog.commit("main", two, Unchanged(key("b")))
    assert told.types() == [COMMIT]
    catalog.create("dev", "main", one)
    catalog.create("v1", "main", None, "TAG")
    assert told.types() == ["REFERENCE_CREATED", "REFERENCE_CREATED"]
    dev = catalog.commit("dev", one, put("c"))
    told.types()

    def run(work: Any) -> Any:
        return catalog.run(work)

    run(service.merge(project, WHO, "main", None, Wish("dev", None, dry_run=True)))
    assert told.types() == []
    run(service.merge(project, WHO, "main", None, Wish("dev", None)))
    assert told.types() == ["MERGE", COMMIT, STORED]
    run(service.merge(project, WHO, "main", None, Wish("dev", None)))  # nothing left to merge
    assert told.types() == []
    more = catalog.commit("dev", dev, put("d"))
    told.types()
    run(service.transplant(project, WHO, "main", None, [more], Wish("dev", None, True, dry_run=True)))
    assert told.types() == []
    run(service.transplant(project, WHO, "main", None, [more], Wish("dev", None, True)))
    assert told.types() == ["TRANSPLANT", COMMIT, STORED]
    run(service.assign(project, WHO, "TAG", "v1", three, "main", None))
    assert told.types() == ["REFERENCE_UPDATED"]
    run(service.delete(project, WHO, "TAG", "v1", catalog.head("v1")))
    assert told.types() == ["REFERENCE_DELETED"]

    there = catalog.content(key("d"), "main")
    assert there is not None
    clash = catalog.commit("dev", more, put("d", id=there.id, snapshotId=8))
    catalog.commit("main", None, put("d", id=there.id, snapshotId=9))
    told.types()
    before = everything(catalog)
    refusals = [
        service.commit(project, WHO, "main", one, [put("b")], Meta()),
        service.commit(project, WHO, "main", None, [Delete(key("none"))], Meta()),
        service.commit(project, WHO, "nowhere", None, [put("x")], Meta()),
        service.commit(project, WHO, "main", "f" * 64, [put("x")], Meta()),
        service.commit(project, WHO, "main", None, [put("x"), put("x")], Meta()),
        service.merge(project, WHO, "main", None, Wish("dev", None)),
        service.merge(project, WHO, "main", None, Wish("nowhere", None)),
        service.merge(project, WHO, "main", clash, Wish("dev", None)),
        service.transplant(project, WHO, "main", None, [clash], Wish("dev", None)),
        service.transplant(project, WHO, "dev", None, [clash, more], Wish("dev", None)),
        service.create(project, WHO, "dev", "BRANCH", "main", None),
        service.create(project, WHO, "new", "TAG", None, None),
        service.create(project, WHO, "new", "BRANCH", "main", clash),
        service.assign(project, WHO, "BRANCH", "main", one, "dev", None),
        service.assign(project, WHO, "TAG", "main", one, "dev", None),
        service.delete(project, WHO, "BRANCH", "dev", one),
        service.delete(project, WHO, "BRANCH", "main", catalog.head()),
    ]
    for work in refusals:
        with pytest.raises(CatalogError):
            run(work)
    assert not run(service.merge(project, WHO, "main", None, Wish("dev", None, conflict_as_result=True))).successful
    catalog.state()
    catalog.log()
    catalog.diff("main", "dev")
    catalog.references()
    assert told.types() == []
    assert everything(catalog) == before
    assert [event.id for event in catalog.published] == [
        row[0] for row in catalog.connection.execute("select id from changes order by seq").fetchall()
    ]


def everything(catalog: Calls) -> list[Any]:
    names = ["references", "commits", "contents", "lines", "merges", "repositories", "objects"]
    return [catalog.connection.execute(f"select * from catalog_{name} order by 1, 2, 3".encode()).fetchall() for name in names]


def test_a_change_says_who_did_it_and_who_wants_it(catalog: Calls) -> None:
    catalog.head()
    rules = [
        catalog.connection.execute(
            "insert into catalog_subscriptions (project, name, destination) values (%s, %s, 'log') returning rule",
            [project, name],
        ).fetchone()
        for project, name in ((catalog.project, "one"), (catalog.project, "two"), ("other", "one"))
    ]
    catalog.told.rows()
    at = datetime(2026, 1, 31, tzinfo=UTC)
    caller = Caller("ann", ("r1", "r2"), "10.0.0.1", "request-1", at, "00-trace")
    catalog.run(catalog.catalog.commit(catalog.project, caller, "main", None, [put("a")], Meta("words")))
    row = catalog.told.rows()[0]
    assert row["rules"] == f"{rules[0][0]},{rules[1][0]}"  # type: ignore[index]
    assert (row["principal"], row["source_ip"], row["request_id"]) == ("ann", "10.0.0.1", "request-1")
    assert (row["config"], row["operation"], json.loads(row["metadata"])) == (0, "catalog:commit", ["r1", "r2"])
    (stored,) = catalog.connection.execute("select request_at, trace, at from changes order by seq desc limit 1").fetchall()
    assert stored[:2] == (at, "00-trace")
    assert abs((datetime.now(UTC) - stored[2]).total_seconds()) < 600


def test_without_events_nothing_is_told(database_url: str) -> None:
    with calls(database_url, events=False) as catalog:
        one = catalog.commit("main", None, put("a"))
        catalog.create("dev")
        catalog.commit("dev", one, put("b"))
        catalog.run(catalog.catalog.merge(catalog.project, WHO, "main", None, Wish("dev", None)))
        assert set(catalog.state()) == {key("a"), key("b")}
        assert catalog.told.rows() == []
        assert catalog.published == []


def test_a_repository_begins_once_however_many_ask_at_once(catalog: Calls, database_url: str) -> None:
    async def work() -> None:
        pool = make_pool(database_url, 8)
        await pool.open()
        many = [Catalog(pool, CatalogSettings(default_branch="trunk")) for _ in range(8)]
        assert {await each.default_branch(catalog.project, WHO) for each in many[:1]} == {"trunk"}
        names = await asyncio.gather(*(each.default_branch(f"other-{n % 2}", WHO) for n, each in enumerate(many)))
        assert set(names) == {"trunk"}
        await pool.close()

    catalog.run(work())
    # Who comes with another setting later finds the branch that it began with.
    assert catalog.run(catalog.catalog.default_branch(catalog.project, WHO)) == "trunk"
    assert [event["repositoryId"] for event in catalog.told.events()].count("other-0") == 1
    count = catalog.connection.execute("select count(*) from changes").fetchone()
    assert count == (3,)


WRITERS, EACH = 8, 12


def test_committers_on_one_branch_lose_nothing(catalog: Calls, say: Say) -> None:
    """Each writer counts up in one of three keys, which several share: it reads, adds one, and commits or reads again."""
    numbers = [key(f"counter.{n}") for n in range(3)]
    first = catalog.commit("main", None, *(Put(each, {"type": "COUNTER", "id": str(each), "n": 0}) for each in numbers))
    catalog.told.rows()
    conflicts: list[tuple[CatalogError, Key]] = []
    succeeded: list[str] = []

    async def writer(who: int) -> None:
        mine = numbers[who % 3]
        for _ in range(EACH):
            while True:
                async with catalog.catalog.reading(catalog.project, WHO) as connection:
                    at = (await points.find(connection, catalog.project, "main")).head
                    found = contents.content_of(await contents.contents(connection, at, [mine.text]), mine.text)
                assert found is not None
                new: Operation = Put(mine, {**found.values, "n": found.values["n"] + 1})
                try:
                    made = await catalog.catalog.commit(catalog.project, WHO, "main", at.hash, [new], Meta(str(who)))
                except CatalogError as error:
                    conflicts.append((error, mine))
                    continue
                succeeded.append(made)
                break

    async def all_of_them() -> None:
        await asyncio.gather(*(writer(who) for who in range(WRITERS)))

    catalog.run(all_of_them())
    total = WRITERS * EACH
    counted = {tuple(name): found.values["n"] for name, found in catalog.state().items()}
    assert sum(counted.values()) == total, "an update was lost"
    log = catalog.log()
    assert [entry.hash for entry in log if entry.hash != first and entry.hash in set(succeeded)] == [e.hash for e in log[:-1]]
    assert len(log) == total + 1
    assert [entry.parents for entry in log] == [[each.hash] for each in log[1:]] + [[BEGINNING]]
    events = catalog.told.events()
    told = [(event["type"], event.get("hashAfter") or event["hash"]) for event in events]
    assert told == [pair for entry in reversed(log[:-1]) for pair in ((COMMIT, entry.hash), (STORED, entry.hash))]
    say(f"{total} commits by {WRITERS} writers on one branch, {len(conflicts)} conflicts")
    assert conflicts
    assert all(error.code == "REFERENCE_CONFLICT" and f"'{mine}'" in error.message for error, mine in conflicts)


def test_branches_that_share_a_head_go_on_side_by_side(catalog: Calls) -> None:
    """Their first commits at once: each gets a line of its own, whoever comes first."""
    catalog.commit("main", None, put("a"))
    for n in range(6):
        catalog.create(f"branch-{n}")

    async def work() -> None:
        await asyncio.gather(
            *(
                catalog.catalog.commit(catalog.project, WHO, f"branch-{n}", None, [put(f"b{n}.{m}")], Meta())
                for m in range(3)
                for n in range(6)
            )
        )

    catalog.run(work())
    for n in range(6):
        assert set(catalog.state(f"branch-{n}")) == {key("a"), *(key(f"b{n}.{m}") for m in range(3))}
    assert set(catalog.state()) == {key("a")}


def test_a_reader_does_not_wait_for_a_writer_nor_a_writer_for_a_reader(catalog: Calls, database_url: str) -> None:
    catalog.commit("main", None, put("a"))
    with psycopg.connect(database_url) as other:
        other.execute("select * from catalog_references for update")
        assert set(catalog.state()) == {key("a")}
        assert len(catalog.log()) == 1
        other.rollback()
        other.execute("set transaction isolation level repeatable read")
        other.execute("select * from catalog_references, catalog_commits, catalog_contents").fetchall()
        catalog.commit("main", None, put("b"))
        other.rollback()


def test_a_lookup_reads_the_same_number_of_pages_however_long_the_history_is(catalog: Calls, say: Say) -> None:
    def pages() -> int:
        ref = catalog.run(_find(catalog))
        query = f"explain (analyze, buffers, format json) {contents._AT}"
        with psycopg.ClientCursor(catalog.connection) as cursor:
            cursor.execute(query.encode(), {"keys": [key("busy").text, key("quiet").text], **contents.places(ref.head)})
            row = cursor.fetchone()
        assert row is not None
        plan = row[0][0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    made = catalog.commit("main", None, Put(key("busy"), {"type": "T", "id": "i"}), Put(key("quiet"), {"type": "T", "id": "j"}))
    before = pages()
    for n in range(150):
        made = catalog.commit("main", made, Put(key("busy"), {"type": "T", "id": "i", "n": n}))
    catalog.connection.execute("vacuum analyze catalog_contents")
    after = pages()
    say(f"{before} pages after 1 commit, {after} after 151")
    assert after <= before + 6


async def _find(catalog: Calls) -> points.Ref:
    async with catalog.catalog.reading(catalog.project, WHO) as connection:
        return await points.find(connection, catalog.project, "main")


def test_branches_of_branches_are_looked_up_in_a_bounded_number_of_lines(catalog: Calls) -> None:
    made = catalog.commit("main", None, put("k0"), put("gone"))
    made = catalog.commit("main", made, Delete(key("gone")))
    name = "main"
    for n in range(1, 2 * points.MOST_LINES + 4):
        catalog.create(f"branch-{n}", name)
        name = f"branch-{n}"
        before, made = made, catalog.commit(name, made, put(f"k{n}"))
        assert catalog.lines(name) <= points.MOST_LINES
        if n == points.MOST_LINES + 2:
            # A key that was removed before the copy is still known to have been changed.
            with pytest.raises(CatalogError, match="REFERENCE_CONFLICT"):
                catalog.commit(name, BEGINNING, put("gone"))
    assert set(catalog.state(name)) == {key(f"k{n}") for n in range(2 * points.MOST_LINES + 4)}
    assert len(catalog.log(name)) == 2 * points.MOST_LINES + 5
    assert set(catalog.state(name, before)) == {key(f"k{n}") for n in range(2 * points.MOST_LINES + 3)}
    assert writing.MOST_LINES == points.MOST_LINES


@pytest.mark.parametrize(
    ("limit", "most", "what"),
    [("MOST_COMMITS", 3, "more than 3 commits"), ("MOST_KEYS", 3, "more than 3 keys"), ("MOST_BYTES", 1500, "bytes")],
)
def test_a_call_takes_in_so_much_of_a_history_and_can_go_in_steps(
    catalog: Calls, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, what: str
) -> None:
    service, project = catalog.catalog, catalog.project
    catalog.create("dev", "main")
    hashes = [catalog.commit("dev", None, put(f"t{number}"), message="m" * 200) for number in range(4)]
    monkeypatch.setattr(limits, limit, most)  # lower limits only: histories as long as the real ones take minutes to write
    monkeypatch.setattr(limits, "FEW_KEYS", 0)
    catalog.told.types()
    calls_of: dict[str, Callable[[], Any]] = {
        "merge": lambda: catalog.run(service.merge(project, WHO, "main", None, Wish("dev", None))),
        "transplant": lambda: catalog.run(service.transplant(project, WHO, "main", None, hashes, Wish("dev", None))),
        "diff": lambda: catalog.diff("main", "dev"),
    }
    refused = {"MOST_COMMITS": ["merge", "transplant"], "MOST_KEYS": ["merge", "diff"], "MOST_BYTES": ["merge", "transplant"]}
    for call in refused[limit]:
        with pytest.raises(CatalogError, match=rf"takes in .*{what}.* go in steps"):
            calls_of[call]()
    assert catalog.told.types() == []
    catalog.run(service.merge(project, WHO, "main", None, Wish("dev", hashes[1])))
    catalog.run(service.merge(project, WHO, "main", None, Wish("dev", None)))
    assert catalog.state("main") == catalog.state("dev")


def test_contents_that_are_large_count_also_where_they_are_only_deleted(
    catalog: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        catalog.commit("main", None, put(f"t{number}", metadataLocation="s3://elsewhere/" + "x" * 1000))
    catalog.create("dev", "main")
    for number in range(4):
        catalog.commit("dev", None, Delete(key(f"t{number}")))
    monkeypatch.setattr(limits, "MOST_BYTES", 3000)  # a lower limit only
    monkeypatch.setattr(limits, "FEW_KEYS", 0)
    for call in (
        lambda: catalog.run(catalog.catalog.merge(catalog.project, WHO, "main", None, Wish("dev", None))),
        lambda: catalog.diff("main", "dev"),
    ):
        with pytest.raises(CatalogError, match="bytes"):
            call()


def test_branches_that_follow_each_other_for_long_can_still_be_merged(catalog: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    service, project = catalog.catalog, catalog.project
    catalog.create("dev", "main")
    monkeypatch.setattr(limits, "MOST_COMMITS", 3)  # a lower limit only
    for number in range(6):
        for source, target in (("main", "dev"), ("dev", "main")):
            catalog.commit(source, None, put(f"{source}{number}"))
            catalog.run(service.merge(project, WHO, target, None, Wish(source, None)))
    assert catalog.state("main") == catalog.state("dev")


def test_a_table_is_joined_with_the_object_that_it_names(catalog: Calls) -> None:
    rows = catalog.connection.execute(
        "with b as (insert into bucket_metainfos (project_id, name) select id, 'lake' from projects where public_id = %s"
        "  returning id),"
        " h as (insert into heads (bucket_id, key, size, etag, content_type, metadata, config, body)"
        "  select id, 'a/metadata.json', 1, 'etag-1', '', '{}', 0, 'x' from b returning bucket_id)"
        " insert into changes (seq, project, bucket, bucket_id, key, event, principal, source_ip, request_id, config)"
        " select nextval('change_seq'), %s, 'lake', bucket_id, 'a/metadata.json', 'ObjectCreated:Put', '', '', '', 0 from h"
        " returning id, bucket_id",
        [catalog.project, catalog.project],
    ).fetchall()
    ((change, bucket_id),) = rows
    made = catalog.commit(
        "main", None, put("a"), put("b"), Put(key("n.c"), {"type": "OTHER", "metadataLocation": "s3://lake/a"})
    )
    events = {tuple(each["contentKey"]["elements"]): each["id"] for each in catalog.told.events() if each["type"] == STORED}
    (found,) = joined.objects_of(catalog.connection, catalog.project, made)
    assert (found["content_key"], found["bucket"], found["object_key"]) == (["a"], "lake", "a/metadata.json")
    assert (found["event"], found["change"], found["etag"]) == (events[("a",)], change, "etag-1")
    (back,) = joined.commits_naming(catalog.connection, bucket_id, "a/metadata.json")
    assert (back["commit_hash"], back["event"], back["change"]) == (made, events[("a",)], change)
    # A later change of the object is another one, which nobody has named yet.
    catalog.connection.execute(
        "insert into changes (seq, project, bucket, bucket_id, key, event, principal, source_ip, request_id, config)"
        " values (nextval('change_seq'), %s, 'lake', %s, 'a/metadata.json', 'ObjectCreated:Put', '', '', '', 0)",
        [catalog.project, bucket_id],
    )
    assert joined.commits_naming(catalog.connection, bucket_id, "a/metadata.json")[0]["change"] == change


def test_the_object_of_another_project_is_nobodys_business(catalog: Calls) -> None:
    catalog.connection.execute("insert into projects (name, public_id) values ('stranger', 'stranger')")
    catalog.connection.execute(
        "with b as (insert into bucket_metainfos (project_id, name)"
        "  select id, 'lake' from projects where public_id = 'stranger' returning id)"
        " insert into heads (bucket_id, key, size, etag, content_type, metadata, config, body)"
        " select id, 'a/metadata.json', 1, 'e', '', '{}', 0, 'x' from b"
    )
    made = catalog.commit("main", None, put("a"))
    assert joined.objects_of(catalog.connection, catalog.project, made) == []
