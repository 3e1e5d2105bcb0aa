"""Listings against a model in Python, and what the walk over common prefixes costs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidings.access.projects import create_project
from tidings.db.pool import Pool, make_pool
from tidings.errors import CallerError
from tidings.store import listing
from tidings.store.listing import Page

# The first and last characters there are, one of two bytes, one behind the surrogates, and the usual delimiter.
ALPHABET = "ab/-\x01ü\ue000\U0010ffff"
WORDS = st.text(ALPHABET, max_size=4)
NAMES = st.text(ALPHABET, min_size=1, max_size=6)
_FILL = """
insert into heads (bucket_id, key, size, etag, content_type, metadata, config, body)
select b.id, k, length(k), md5(k), '', '{}', 0, '' from bucket_metainfos b, unnest(%s::text[]) k where b.name = 'bucket'
"""


class Listed:
    def __init__(self, url: str, connection: psycopg.Connection) -> None:
        self.url = url
        self.sql = connection
        self.project = create_project(connection, "one")
        connection.execute("insert into bucket_metainfos (project_id, name) select id, 'bucket' from projects")

    def fill(self, keys: Iterable[str]) -> None:
        self.sql.execute("truncate heads")
        self.sql.execute(_FILL, [list(keys)])


@pytest.fixture
def listed(database_url: str, database: psycopg.Connection) -> Listed:
    return Listed(database_url, database)


def expected(keys: set[str], prefix: str, delimiter: str, after: str) -> list[tuple[str, bool]]:
    """(name, is it a common prefix) in order: what S3 says a listing is, without a thought for its cost."""
    names = []
    for key in sorted(keys, key=str.encode):
        if key.startswith(prefix) and key.encode() > after.encode():
            at = key.find(delimiter, len(prefix)) if delimiter else -1
            name = (key, False) if at < 0 else (key[: at + len(delimiter)], True)
            if name not in names:
                names.append(name)
    return names


async def pages(pool: Pool, project: str, prefix: str, delimiter: str, after: str, most: int) -> list[Page]:
    found: list[Page] = []
    while True:
        page = await listing.page(pool, project, "bucket", prefix=prefix, delimiter=delimiter, after=after, most=most)
        found.append(page)
        if not page.more:
            return found
        after = listing.behind(page.entries[-1].name, is_prefix=page.entries[-1].size is None)


def test_every_listing_is_the_models_page_by_page(listed: Listed) -> None:
    with asyncio.Runner() as runner:
        pool = make_pool(listed.url, 2)
        runner.run(pool.open())

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(
            st.sets(NAMES, max_size=25),
            WORDS,
            st.sampled_from(["", "/", "/", "a", "-/", "\U0010ffff"]),
            WORDS,
            st.integers(1, 7),
        )
        def check(keys: set[str], prefix: str, delimiter: str, after: str, most: int) -> None:
            listed.fill(keys)
            found = runner.run(pages(pool, listed.project, prefix, delimiter, after, most))
            names = [(entry.name, entry.size is None) for page in found for entry in page.entries]
            assert names == expected(keys, prefix, delimiter, after)
            assert all(len(page.entries) == most for page in found[:-1])
            for page in found:
                assert all(entry.size in (None, len(entry.name)) for entry in page.entries)

        check()
        runner.run(pool.close())


def page(listed: Listed, bucket: str = "bucket", **how: Any) -> Page:
    async def work() -> Page:
        async with make_pool(listed.url, 2) as pool:
            return await listing.page(pool, listed.project, bucket, **how)

    return asyncio.run(work())


@pytest.mark.parametrize("delimiter", ["", "/"])
def test_an_empty_bucket_is_an_empty_page_and_a_missing_one_an_error(listed: Listed, delimiter: str) -> None:
    assert page(listed, delimiter=delimiter) == Page([], False)
    with pytest.raises(CallerError, match="NoSuchBucket"):
        page(listed, bucket="elsewhere", delimiter=delimiter)


@pytest.mark.parametrize("delimiter", ["", "/"])
def test_a_page_of_nothing_is_not_truncated(listed: Listed, delimiter: str) -> None:
    listed.fill(["a", "b/c"])
    assert page(listed, delimiter=delimiter, most=0) == Page([], False)


def test_keys_of_the_greatest_length_are_listed_and_passed(listed: Listed) -> None:
    longest = "a/" + "\U0010ffff" * 255 + "zz"
    assert len(longest.encode()) == 1024
    listed.fill([longest, "a0"])
    assert [entry.name for entry in page(listed, prefix="a/").entries] == [longest]
    assert [entry.name for entry in page(listed, delimiter="/").entries] == ["a/", "a0"]


def test_a_common_prefix_costs_the_same_however_many_keys_are_under_it(listed: Listed) -> None:
    listed.fill([f"{group}/{number}" for group in "abc" for number in range(5000)])
    listed.sql.execute("vacuum analyze heads")
    found = page(listed, delimiter="/")
    assert [entry.name for entry in found.entries] == ["a/", "b/", "c/"]
    statement = listing._GROUPED
    parameters = {"project": listed.project, "bucket": "bucket", "prefix": "", "end": listing.LAST, "after": "", "most": 1001}
    parameters |= {"delimiter": "/", "skip": 0, "last": listing.LAST}
    plan = listed.sql.execute(f"explain (analyze, buffers, format json) {statement}".encode(), parameters).fetchone()
    assert plan is not None
    assert plan[0][0]["Plan"]["Shared Hit Blocks"] + plan[0][0]["Plan"]["Shared Read Blocks"] < 60
