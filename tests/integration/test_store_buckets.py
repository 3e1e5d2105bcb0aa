"""Buckets, and the keys that requests come with."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tidings.access import api_keys
from tidings.access.keys import KeyCache, create_key
from tidings.access.projects import create_project, find_project
from tidings.db.pool import Pool, make_pool
from tidings.errors import CallerError, OperatorError
from tidings.store import buckets
from tidings.store.model import Content, Origin, Place
from tidings.store.objects import commit_inline_object


def run(url: str, work: Callable[[Pool], Awaitable[Any]]) -> Any:
    async def opened() -> Any:
        async with make_pool(url, 4) as pool:
            return await work(pool)

    return asyncio.run(opened())


def test_a_bucket_is_made_listed_and_deleted(database_url: str, database: psycopg.Connection) -> None:
    one, other = create_project(database, "one"), create_project(database, "other")

    async def work(pool: Pool) -> None:
        for name in ("bbb", "aaa", "a.b", "abc"):
            await buckets.create(pool, one, name)
        await buckets.create(pool, other, "bbb")
        assert [each.name for each in await buckets.list_all(pool, one)] == ["a.b", "aaa", "abc", "bbb"]
        assert [each.name for each in await buckets.list_all(pool, one, "a", "a.b", 1)] == ["aaa"]
        with pytest.raises(CallerError, match="BucketAlreadyOwnedByYou"):
            await buckets.create(pool, one, "bbb")
        await buckets.delete(pool, one, "bbb")
        with pytest.raises(CallerError, match="NoSuchBucket"):
            await buckets.delete(pool, one, "bbb")
        with pytest.raises(CallerError, match="NoSuchBucket"):
            await buckets.check_exists(pool, one, "bbb")
        await buckets.check_exists(pool, other, "bbb")

    run(database_url, work)


def test_a_bucket_with_an_object_in_it_stays(database_url: str, database: psycopg.Connection) -> None:
    project = create_project(database, "one")

    async def work(pool: Pool) -> None:
        await buckets.create(pool, project, "bucket")
        await commit_inline_object(pool, Place(project, "bucket", "key"), Content(0, "e", "t", {}, b""), Origin("", "", ""))
        with pytest.raises(CallerError, match="BucketNotEmpty"):
            await buckets.delete(pool, project, "bucket")
        await buckets.check_exists(pool, project, "bucket")

    run(database_url, work)


def test_a_bucket_without_a_proper_name_is_not_made(database_url: str, database: psycopg.Connection) -> None:
    project = create_project(database, "one")
    with pytest.raises(CallerError, match="InvalidBucketName"):
        run(database_url, lambda pool: buckets.create(pool, project, "No"))


def test_a_project_is_made_once_and_found_by_its_name(database: psycopg.Connection) -> None:
    public_id = create_project(database, "one")
    row = database.execute("select id::text from projects").fetchone()
    assert row is not None
    assert public_id != row[0]
    assert find_project(database, "one") == public_id
    assert find_project(database, "two") is None
    with pytest.raises(OperatorError, match="already a project called 'one'"):
        create_project(database, "one")


def test_a_key_has_the_shape_that_clients_expect_and_belongs_to_a_project(database: psycopg.Connection) -> None:
    access_key_id, secret = create_key(database, create_project(database, "one"))
    assert re.fullmatch(r"AKIA[A-Z2-7]{16}", access_key_id)
    assert re.fullmatch(r"[A-Za-z0-9+/]{40}", secret)
    with pytest.raises(OperatorError, match="no project 'nobody'"):
        create_key(database, "nobody")


def test_a_key_is_remembered_when_it_was_proven_and_for_a_while(database_url: str, database: psycopg.Connection) -> None:
    project = create_project(database, "one")
    (first, secret), (second, _) = create_key(database, project), create_key(database, project)
    now = [100.0]

    def delete(access_key_id: str) -> None:
        database.execute("delete from access_keys where access_key_id = %s", [access_key_id])

    async def work(pool: Pool) -> None:
        cache = KeyCache(pool, seconds=5, most=1, clock=lambda: now[0])
        found = await cache.find(first)
        assert found is not None
        assert (found.principal.access_key_id, found.secret, found.principal.project) == (first, secret, project)
        assert secret not in repr(found)
        now[0] = 102.0
        cache.keep(found)  # a long body was read in between
        delete(first)
        now[0] = 104.9
        assert await cache.find(first) == found
        now[0] = 105.0
        assert await cache.find(first) is None, "five seconds after it was read, not after it was proven"
        assert await cache.renewed(replace(found, read_at=now[0])) is not None, "it may be so old"
        assert await cache.renewed(found) is None, "it was revoked while a long body was read"
        assert await cache.find("AKIANOBODY") is None
        unproven = await cache.find(second)
        assert unproven is not None
        delete(second)
        assert await cache.find(second) is None, "nothing is kept before it was proven"
        third, fourth = [await cache.find(create_key(database, project)[0]) for _ in range(2)]
        assert third is not None
        assert fourth is not None
        for key in (third, fourth):
            cache.keep(key)
            delete(key.principal.access_key_id)
        assert await cache.find(third.principal.access_key_id) is None, "there is room for one"
        assert await cache.find(fourth.principal.access_key_id) == fourth

    run(database_url, work)


def test_each_kind_of_proof_has_a_cache_of_its_own(database_url: str, database: psycopg.Connection) -> None:
    made = api_keys.create(database, create_project(database, "one"))

    async def work(pool: Pool) -> None:
        cache = KeyCache(pool)
        found = await cache.find(made.access_key_id)
        assert found is not None
        cache.keep(found)
        assert await cache.find_by_api_key(made.access_key_id) is None, "an access key id is no API key"
        assert await cache.find_by_api_key(made.api_key) is not None
        assert await cache.find(made.api_key) is None, "an API key is no access key id"

    run(database_url, work)
