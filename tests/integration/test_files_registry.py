"""The merge itself: the same notifications in any order, in any portions and any number of times give the same registry."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import fresh_database
from files_registry import BUCKET, SHA256, add_atlas, everything
from tidings.consumers.files import registry
from tidings.consumers.files.notification import CREATED, MARKED, REMOVED, Record
from tidings.consumers.files.refusals import EtagMismatch
from tidings.consumers.files.staged import row
from tidings.local.postgres import Postgres

KEYS = [f"gut/gut-v1/source-datasets/{name}.h5ad" for name in "abc"]
TIME = "2026-11-16T01:02:03.456Z"


@dataclass(frozen=True)
class Step:
    """What somebody did to a key; a bucket's versioning may be on, suspended or never have been on."""

    key: int
    versioned: bool
    what: str
    which: int


steps = st.lists(
    st.builds(Step, st.integers(0, 2), st.booleans(), st.sampled_from(["put", "put", "mark", "remove"]), st.integers(0, 9)),
    min_size=1,
    max_size=14,
)


def history(done: Sequence[Step]) -> tuple[list[Record], dict[str, list[tuple[str | None, str]]]]:
    """The records that S3 would send, and the versions (id, kind) that it would have for each key, oldest first."""
    records: list[Record] = []
    store: dict[str, list[tuple[str | None, str]]] = {key: [] for key in KEYS}
    for number, step in enumerate(done, 1):
        key, versions = KEYS[step.key], store[KEYS[step.key]]
        sequencer = f"{number:032X}"
        if step.what == "remove":
            if not versions:
                continue
            version = versions.pop(step.which % len(versions))[0]
            records.append(record(REMOVED, key, version, sequencer))
            continue
        new = f"v{number}" if step.versioned else None
        if new is None:
            versions[:] = [each for each in versions if each[0] is not None]
        kind = CREATED if step.what == "put" else MARKED
        versions.append((new, kind))
        records.append(record(kind, key, new, sequencer))
    return records, store


def record(kind: str, key: str, version: str | None, sequencer: str, etag: str | None = None) -> Record:
    created = kind == CREATED
    name = {CREATED: "ObjectCreated:Put", MARKED: "ObjectRemoved:DeleteMarkerCreated", REMOVED: "ObjectRemoved:Delete"}[kind]
    said = (etag or f"{int(sequencer, 16):032x}") if created else None
    size = 7 if created else None
    return Record(kind, BUCKET, key, version, sequencer, said, size, name, TIME, SHA256 if created else None)


def merge(database: psycopg.Connection, records: Sequence[Record]) -> registry.Merged:
    with database.transaction():
        return registry.merge_rows(database, [row(each, each.sha256) for each in records], awaits=False)


def emptied(database: psycopg.Connection) -> None:
    database.execute("truncate hat.files, hat.removals, hat.messages")


def files(database: psycopg.Connection) -> list[tuple[Any, ...]]:
    return [each for each in everything(database) if len(each) > 5]


@pytest.fixture(scope="module")
def registry_url(postgres: Postgres) -> str:
    return fresh_database(postgres, "files_registry")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.randoms(use_true_random=False))
def test_any_order_any_portions_and_any_repetition_give_what_the_store_has(
    registry_url: str, done: list[Step], chance: random.Random
) -> None:
    records, store = history(done)
    with psycopg.connect(registry_url, autocommit=True) as database:
        emptied(database)
        for each in records:
            merge(database, [each])
        in_order = files(database)
        wanted = {
            (key, version): place == len(versions) - 1
            for key, versions in store.items()
            for place, (version, kind) in enumerate(versions)
            if kind == CREATED
        }
        assert {(each[1], each[2]): each[11] for each in in_order} == wanted
        emptied(database)
        shuffled = records + chance.sample(records, len(records) // 2)
        chance.shuffle(shuffled)
        while shuffled:
            size = chance.randint(1, len(shuffled))
            merge(database, shuffled[:size])
            del shuffled[:size]
        assert files(database) == in_order


def test_sixteen_that_merge_the_same_history_at_once_agree(registry_url: str) -> None:
    chance = random.Random(7)
    done = [
        Step(chance.randrange(3), chance.random() < 0.7, chance.choice(["put", "put", "mark", "remove"]), i) for i in range(120)
    ]
    records, _ = history(done)
    with psycopg.connect(registry_url, autocommit=True) as database:
        emptied(database)
        merge(database, records)
        wanted = files(database)
        emptied(database)

        def work(seed: int) -> None:
            own = random.Random(seed)
            mine = own.sample(records, len(records))
            with psycopg.connect(registry_url, autocommit=True) as connection:
                while mine:
                    merge(connection, mine[:9])
                    del mine[:9]

        with ThreadPoolExecutor(16) as threads:
            list(threads.map(work, range(16)))
        assert files(database) == wanted


def test_a_load_refuses_a_version_with_two_etags_and_takes_the_rest(registry_url: str) -> None:
    with psycopg.connect(registry_url, autocommit=True) as database:
        emptied(database)
        good = [record(CREATED, key, "v1", "1".zfill(32)) for key in KEYS[:2]]
        merge(database, good[:1])
        torn = [record(CREATED, KEYS[2], "v1", "1".zfill(32), etag) for etag in ("a", "a", "b")]
        other = record(CREATED, KEYS[0], "v1", "2".zfill(32), "another")
        merged = merge(database, [*good[1:], *torn, other])
        assert (merged.operations["refused"], merged.operations["inserted"]) == (2, 1)
        assert all(isinstance(each, EtagMismatch) for each in merged.refusals)
        assert [each[1] for each in files(database)] == KEYS[:2]


def test_one_write_of_the_null_version_has_one_etag(registry_url: str) -> None:
    with psycopg.connect(registry_url, autocommit=True) as database:
        emptied(database)
        merge(database, [record(CREATED, KEYS[0], None, "5".zfill(32), "a")])
        merged = merge(database, [record(CREATED, KEYS[0], None, "5".zfill(32), "b")])
        assert merged.operations["refused"] == 1


def awaiting(database: psycopg.Connection) -> Record:
    """A record whose file is all that the registry has, without its SHA-256."""
    emptied(database)
    one = record(CREATED, KEYS[0], "v1", "5".zfill(32))
    with database.transaction():
        registry.merge_rows(database, [row(one, None)], awaits=True)
    return one


def test_a_sha256_that_was_awaited_is_taken_when_it_comes(registry_url: str) -> None:
    with psycopg.connect(registry_url, autocommit=True) as database:
        one = awaiting(database)
        assert database.execute("select sha256_client, integrity_status from hat.files").fetchall() == [(None, "awaiting")]
        assert merge(database, [one]).operations == {"updated": 1}
        assert database.execute("select sha256_client, integrity_status, is_latest from hat.files").fetchall() == [
            (SHA256, "pending", True)
        ]


def test_a_sha256_that_comes_after_validation_missed_it_is_to_be_looked_at_again(registry_url: str) -> None:
    with psycopg.connect(registry_url, autocommit=True) as database:
        one = awaiting(database)
        database.execute(
            "update hat.files set integrity_status = 'error', integrity_error = 'none', integrity_checked_at = now()"
        )
        merge(database, [one])
        found = "select sha256_client, integrity_status, integrity_error, integrity_checked_at from hat.files"
        assert database.execute(found).fetchall() == [(SHA256, "pending", None, None)]


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("version", ["v1", None])
def test_of_the_same_record_twice_in_a_batch_the_one_with_a_sha256_counts(
    registry_url: str, version: str | None, awaits: bool
) -> None:
    one = record(CREATED, KEYS[0], version, "5".zfill(32))
    with psycopg.connect(registry_url, autocommit=True) as database:
        for both in ([SHA256, None], [None, SHA256]):
            emptied(database)
            with database.transaction():
                merged = registry.merge_rows(database, [row(one, digest) for digest in both], awaits)
            assert (merged.operations, merged.refusals) == ({"inserted": 1}, ())
            assert database.execute("select sha256_client from hat.files").fetchall() == [(SHA256,)]


def test_new_keys_become_the_same_whether_they_have_to_be_decided_about_or_not(registry_url: str) -> None:
    """In two buckets, so that a key alone is nobody's."""
    chance = random.Random(7)
    records = [
        record(CREATED, key, version, f"{chance.randrange(1, 10**6):032X}")._replace(bucket=bucket)
        for bucket in (BUCKET, "another")
        for key in KEYS
        for version in (None, "v1", "v2", "v3")
    ]
    with psycopg.connect(registry_url, autocommit=True) as database:
        found = []
        for batch in (records, [*records, *records]):  # what comes twice has to be decided about
            emptied(database)
            assert merge(database, batch).operations == {"inserted": len(records)}
            found.append(files(database))
        assert found[0] == found[1]
        newest = {
            (each.bucket, each.key): max(records, key=lambda one: one.sequencer if one[1:3] == each[1:3] else "")
            for each in records
        }
        latest = database.execute("select bucket, key, sequencer from hat.files where is_latest").fetchall()
        assert sorted(latest) == sorted((*of, each.sequencer) for of, each in newest.items())


def test_atlases_that_could_be_meant_alike_cannot_both_be_there(registry_url: str) -> None:
    with psycopg.connect(registry_url, autocommit=True) as database:
        add_atlas(database, "lung", "Lung", "1")
        with pytest.raises(psycopg.errors.UniqueViolation):
            add_atlas(database, "lung", "lung", "1.0")
        add_atlas(database, "lung", "lung", "1.1")


def test_old_message_ids_are_forgotten(registry_url: str) -> None:
    with psycopg.connect(registry_url, autocommit=True) as database:
        emptied(database)
        for age, id_ in (("1 day", "1" * 32), ("8 days", "2" * 32)):
            database.execute("insert into hat.messages values ('t', %s, now() - %s::interval)", [id_, age])
        registry.forget_messages(database)
        assert registry.was_taken(database, "t", "1" * 32)
        assert not registry.was_taken(database, "t", "2" * 32)
