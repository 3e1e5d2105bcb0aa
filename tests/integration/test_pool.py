"""The pool's own way with named parameters, however long the statement is."""

from __future__ import annotations

import asyncio
from typing import LiteralString

import psycopg
import pytest

from tidings.db import context
from tidings.db.pool import Pool, SharedPool, borrowed, make_pool, run
from tidings.local.postgres import Postgres


@pytest.mark.parametrize("space", ["", " " * 5000], ids=["short", "long"])
def test_a_name_may_come_twice_and_a_percent_sign_is_itself(postgres: Postgres, space: LiteralString) -> None:
    statement = f"select %(one)s::text || %(two)s::text || %(one)s::text like 'a%%a', 7 %% %(two)s::int {space}"

    async def ask() -> None:
        async with make_pool(postgres.url, 1) as pool:
            for two, rest in ((4, 3), (5, 2)):
                row = await (await run(pool, statement, {"one": "a", "two": two, "unused": object()})).fetchone()
                assert row == (True, rest)
            async with borrowed(pool) as connection:
                assert await (await connection.execute("select %s", ["x"])).fetchone() == ("x",)
                assert await (await connection.execute("select '%'")).fetchone() == ("%",)
                with pytest.raises(KeyError, match="two"):
                    await connection.execute(statement, {"one": "a"})
                with pytest.raises(psycopg.errors.DivisionByZero):
                    await connection.execute(statement, {"one": "a", "two": 0})
                assert await (await connection.execute("select 1")).fetchone() == (1,)

    asyncio.run(ask())


def test_a_project_that_waits_for_connections_leaves_some_to_others(postgres: Postgres) -> None:
    async def hold(pool: Pool, project: str, until: asyncio.Event) -> None:
        context.share.set(project)
        async with borrowed(pool):
            await until.wait()

    async def ask() -> None:
        over = asyncio.Event()
        async with make_pool(postgres.url, 4) as pool:
            many = [asyncio.create_task(hold(pool, "many", over)) for _ in range(30)]
            await asyncio.sleep(0)  # each has asked
            at_once = asyncio.Event()
            at_once.set()
            await asyncio.create_task(hold(pool, "few", at_once))
            assert not any(task.done() for task in many)
            given_up, *rest = reversed(many)
            given_up.cancel()
            over.set()
            await asyncio.gather(*rest)
            assert isinstance(pool, SharedPool)
            assert (pool._turns, pool._users, pool._held) == ({}, {}, {})

    asyncio.run(ask())
