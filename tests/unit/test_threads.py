"""Threads that projects share."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from tidings.db import context
from tidings.threads import Threads

SIZE = 8


class Work:
    """Calls that are held in their threads until the gate opens."""

    def __init__(self) -> None:
        self.threads = Threads("test", SIZE)
        self.gate = threading.Event()
        self.began: Counter[str] = Counter()

    def hold(self, share: str) -> str:
        self.began[share] += 1
        assert self.gate.wait(60)
        return share

    def start(self, share: str, number: int = 1) -> list[asyncio.Task[str]]:
        async def run() -> str:
            context.share.set(share)
            return await self.threads.run(self.hold, share)

        return [asyncio.create_task(run()) for _ in range(number)]

    async def until(self, began: dict[str, int]) -> None:
        async with asyncio.timeout(60):
            while self.began != began:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


def with_work(test: Callable[[Work], Awaitable[None]]) -> None:
    async def run() -> None:
        work = Work()
        try:
            await test(work)
        finally:
            work.gate.set()

    asyncio.run(run())


def test_one_share_leaves_a_quarter_of_the_threads() -> None:
    async def test(work: Work) -> None:
        a = work.start("a", 40)
        await work.until({"a": 6})
        b = work.start("b")
        await work.until({"a": 6, "b": 1})
        work.gate.set()
        assert await asyncio.gather(*a, *b) == ["a"] * 40 + ["b"]

    with_work(test)


def test_several_shares_together_leave_a_thread_too() -> None:
    async def test(work: Work) -> None:
        begun = work.start("a", 40)
        await work.until({"a": 6})
        begun += work.start("b", 40)
        await work.until({"a": 6, "b": 1})
        begun += work.start("c")
        await work.until({"a": 6, "b": 1, "c": 1})
        work.gate.set()
        await asyncio.gather(*begun)

    with_work(test)


def test_shares_take_turns() -> None:
    async def run() -> None:
        threads, order = Threads("test", 1), list[str]()
        gate = threading.Event()

        async def call(share: str) -> None:
            context.share.set(share)
            await threads.run(lambda: (gate.wait(60), order.append(share)))

        begun = [asyncio.create_task(call(share)) for share in "aaaabbbc"]
        await asyncio.sleep(0)  # all of them are queued, in this order
        gate.set()
        await asyncio.gather(*begun)
        assert order == list("aabcabab")

    asyncio.run(run())


def test_a_call_that_is_cancelled_while_it_waits_is_never_made() -> None:
    async def test(work: Work) -> None:
        begun = work.start("a", 10)
        await work.until({"a": 6})
        for each in begun[6:]:
            each.cancel()
        more = work.start("a")
        await asyncio.sleep(0)
        work.gate.set()
        await asyncio.wait(begun + more)
        assert [each.cancelled() for each in begun] == [False] * 6 + [True] * 4
        assert work.began == {"a": 7}

    with_work(test)


def test_a_call_that_is_cancelled_under_way_keeps_its_thread_until_it_ends() -> None:
    async def test(work: Work) -> None:
        begun = work.start("a", 6)
        await work.until({"a": 6})
        for each in begun:
            each.cancel()
        await asyncio.wait(begun)
        more = work.start("a")
        b = work.start("b")
        await work.until({"a": 6, "b": 1})
        work.gate.set()
        assert await asyncio.gather(*more, *b) == ["a", "b"]

    with_work(test)


def test_an_error_reaches_its_caller_and_frees_the_thread() -> None:
    async def run() -> None:
        threads = Threads("test", 1)
        for _ in range(3):
            with pytest.raises(ValueError, match="invalid literal"):
                await threads.run(int, "x")
        assert await threads.run(int, "12", base=8) == 10

    asyncio.run(run())


def test_a_call_that_outlives_its_loop_frees_its_thread() -> None:
    threads, gate = Threads("test", 1), threading.Event()

    async def abandon() -> None:
        task = asyncio.create_task(threads.run(gate.wait, 60))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(abandon())
    gate.set()
    assert asyncio.run(threads.run(int, "7")) == 7
