"""Listings of versions against a list in memory, page by page, with and without a delimiter."""

from __future__ import annotations

import asyncio

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidings.access.projects import create_project
from tidings.db.pool import Pool, make_pool
from tidings.store import buckets, version_listing
from tidings.store.version_listing import ListedVersion

KEYS = st.dictionaries(st.text("ab/", min_size=1, max_size=6), st.integers(1, 4), max_size=25)


def fill(sql: psycopg.Connection, keys: dict[str, int]) -> None:
    sql.execute("delete from heads")
    sql.execute("delete from versions")
    columns = "bucket_id, key, version_id, ordinal, delete_marker, size, etag, content_type, metadata, tags, config, body"
    for key, number in keys.items():
        for ordinal in range(1, number + 1):
            table = "heads" if ordinal == number else "versions"
            sql.execute(
                f"insert into {table} ({columns}) select id, %s, %s, %s, false, 0, '', '', '{{}}', '{{}}', config, ''"
                " from bucket_metainfos".encode(),
                [key, f"v{ordinal}", ordinal],
            )


def expected(keys: dict[str, int], prefix: str, delimiter: str) -> list[tuple[str, int] | str]:
    found: list[tuple[str, int] | str] = []
    for key in sorted(key for key in keys if key.startswith(prefix)):
        at = key.find(delimiter, len(prefix)) if delimiter else -1
        if at >= 0:
            group = key[: at + 1]
            if group not in found:
                found.append(group)
        else:
            found += [(key, ordinal) for ordinal in range(keys[key], 0, -1)]
    return found


async def pages(pool: Pool, project: str, prefix: str, delimiter: str, most: int) -> list[tuple[str, int] | str]:
    """As a client reads them: each page begins behind the last entry of the one before."""
    found: list[tuple[str, int] | str] = []
    key, ordinal = "", None
    while True:
        page = await version_listing.page(
            pool, project, "bucket", prefix=prefix, delimiter=delimiter, key=key, ordinal=ordinal, most=most
        )
        assert len(page.entries) <= most
        found += [(each.key, each.ordinal) if isinstance(each, ListedVersion) else each for each in page.entries]
        if not page.more:
            return found
        last = page.entries[-1]
        if isinstance(last, ListedVersion):
            key, ordinal = last.key, last.ordinal
        else:
            key, ordinal = version_listing.behind(last, delimiter, prefix), None


def test_every_listing_of_versions_is_the_list_page_by_page(database_url: str, database: psycopg.Connection) -> None:
    project = create_project(database, "one")
    pool = make_pool(database_url, 4)
    with asyncio.Runner() as runner:
        runner.run(pool.open(wait=True))
        runner.run(buckets.create(pool, project, "bucket"))

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(KEYS, st.sampled_from(["", "a", "a/", "b/a"]), st.sampled_from(["", "/"]), st.sampled_from([1, 2, 3, 10, 1000]))
        def check(keys: dict[str, int], prefix: str, delimiter: str, most: int) -> None:
            fill(database, keys)
            assert runner.run(pages(pool, project, prefix, delimiter, most)) == expected(keys, prefix, delimiter)

        check()
        fill(database, {f"{number:03}/{name}": 2 for number in range(300) for name in "abc"})
        assert len(runner.run(pages(pool, project, "", "/", 1000))) == 300
        runner.run(pool.close())
