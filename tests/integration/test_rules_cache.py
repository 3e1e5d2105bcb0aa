"""The cache of rules against a real Redis: as it should be, killed, stopped, slow, and one that talks nonsense."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tidings.errors import OperatorError
from tidings.local.processes import free_port
from tidings.local.redis import Redis
from tidings.rules.breaker import FAILURES, REST_SECONDS
from tidings.rules.cache import BUDGET_SECONDS, CONNECTIONS, FORGET_SECONDS, KEPT_SECONDS, RedisRules
from waiting import PATIENCE_SECONDS

PROJECT = "550e8400-e29b-41d4-a716-446655440000"
BUSY = 5.0
"""What a call may take on top when the machine is busy with something else."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    running = Redis(tmp_path_factory.mktemp("redis"), free_port())
    running.start()
    yield running
    running.stop()


@pytest.fixture
def client(server: Redis) -> Iterator[redis.Redis]:
    """Another client of the same server, which is empty."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        yield client


@asynccontextmanager
async def cache(url: str) -> AsyncIterator[RedisRules]:
    rules = RedisRules(url)
    try:
        yield rules
    finally:
        await rules.close()


async def until(true: Callable[[], Awaitable[bool]], seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not await true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def stored(rules: RedisRules, bucket: str, document: str) -> None:
    """Put and see it there: a put returns before Redis has it."""

    async def there() -> bool:
        await rules.put(PROJECT, bucket, document)
        await asyncio.sleep(0.01)
        return await rules.get(PROJECT, bucket) == document

    await until(there)


async def found(rules: RedisRules, bucket: str, document: str) -> None:
    """Asked again where this machine was too busy for the budget; whatever is answered is right."""

    async def there() -> bool:
        answer = await rules.get(PROJECT, bucket)
        assert answer in (None, document)
        return answer == document

    await until(there)


async def missed(rules: RedisRules, bucket: str) -> None:
    async def missing() -> bool:
        before = rules.misses
        assert await rules.get(PROJECT, bucket) is None
        return rules.misses > before

    await until(missing)


async def opened(rules: RedisRules, bucket: str = "photos") -> None:
    """Ask until the breaker is open."""

    async def skips() -> bool:
        before = rules.skipped
        assert await rules.get(PROJECT, bucket) is None
        return rules.skipped > before

    await until(skips)


@contextmanager
def stopped(server: Redis) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@asynccontextmanager
async def proxy(server: Redis, delay: Callable[[], float], breaks: Callable[[], bool] = lambda: False) -> AsyncIterator[str]:
    """The server's URL through a proxy that holds every answer back, or ends the connection at the first request."""
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None
        serving.add(this)
        upstream, onward = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            while request := await reader.read(65536):
                if breaks():
                    return
                onward.write(request)
                answer = await upstream.read(65536)
                if wait := delay():
                    await asyncio.sleep(wait)
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            serving.discard(this)
            onward.close()
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield server.url.replace(f":{server.port}/", f":{port}/")
    finally:
        listening.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


@asynccontextmanager
async def talker(words: bytes, delay: float = 0.0) -> AsyncIterator[int]:
    """A port where every request is answered with the same bytes; with none, the connection is closed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while words and await reader.read(65536):
                await asyncio.sleep(delay)
                writer.write(words)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


async def timed(call: Awaitable[object]) -> float:
    began = time.perf_counter()
    await call
    return time.perf_counter() - began


def figures(times: list[float]) -> str:
    p99 = sorted(times)[int(len(times) * 0.99)]
    return f"p99 {p99 * 1000:.2f} ms, longest {max(times) * 1000:.1f} ms of {len(times)} gets"


def test_what_was_put_is_found_under_the_agreed_key_for_five_minutes(server: Redis, client: redis.Redis) -> None:
    async def run() -> None:
        async with cache(server.url) as rules:
            await missed(rules, "my-bucket")
            assert (rules.hits, rules.misses) == (0, 1)
            await rules.put(PROJECT, "my-bucket", "version 7 ✓")
            await until(is_there)
            await found(rules, "my-bucket", "version 7 ✓")
            assert (rules.hits, rules.misses) == (1, 1)

    async def is_there() -> bool:
        return client.exists(name) == 1

    name = "bucket-eventing:550e8400-e29b-41d4-a716-446655440000:my-bucket"
    asyncio.run(run())
    assert client.keys() == [name]
    assert KEPT_SECONDS == 300
    assert 240 < client.ttl(name) <= 300


def test_an_empty_document_is_a_hit(server: Redis, client: redis.Redis) -> None:
    async def run() -> None:
        async with cache(server.url) as rules:
            await stored(rules, "empty", "")
            hits = rules.hits
            await found(rules, "empty", "")
            assert rules.hits == hits + 1

    assert client.keys() == []
    asyncio.run(run())


def test_a_forgotten_document_is_gone_for_every_process_and_its_neighbours_stay(server: Redis, client: redis.Redis) -> None:
    async def run() -> None:
        async with cache(server.url) as one, cache(server.url) as other:
            await stored(one, "photos", "old")
            await stored(one, "videos", "kept")
            assert await one.forget(PROJECT, "photos")
            await missed(other, "photos")
            await found(other, "videos", "kept")
            assert await one.forget(PROJECT, "photos"), "nothing to delete is no failure"

    assert client.keys() == []
    asyncio.run(run())


def of_the_cache(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What it has said itself: when garbage is collected, a loop that ended in another test may complain."""
    return [record for record in caplog.records if record.name == "tidings.rules.cache"]


def test_a_killed_server_costs_nothing_and_is_used_again_by_itself(server: Redis, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with cache(server.url) as rules:
            await stored(rules, "photos", "before")
            caplog.clear()
            server.process.kill()  # type: ignore[union-attr]
            server.process.wait()  # type: ignore[union-attr]
            await opened(rules)
            assert rules.failures >= FAILURES
            assert not await rules.forget(PROJECT, "photos")
            server.start()
            assert await rules.forget(PROJECT, "photos"), "does not wait for the breaker"
            await stored(rules, "photos", "after")

    asyncio.run(run())
    assert [record.levelname for record in of_the_cache(caplog)] == ["WARNING", "WARNING"]
    assert "failed 3 times in a row (ConnectionError)" in caplog.text
    assert f"Redis at 127.0.0.1:{server.port} answers again" in caplog.text


def test_a_restart_that_nobody_saw_is_no_failure(server: Redis) -> None:
    async def run() -> None:
        async with cache(server.url) as rules:
            await stored(rules, "photos", "before")
            server.stop()
            server.start()
            await asyncio.sleep(0.05)
            failures = rules.failures
            assert await rules.get(PROJECT, "photos") is None
            assert rules.failures == failures

    asyncio.run(run())


def test_a_server_that_hangs_costs_each_request_its_budget_once(
    server: Redis, caplog: pytest.LogCaptureFixture, say: Callable[[str], None]
) -> None:
    times: list[float] = []

    async def ask(rules: RedisRules, end: float) -> None:
        while time.monotonic() < end:
            times.append(await timed(rules.get(PROJECT, "photos")))
            await asyncio.sleep(0.005)

    async def run() -> None:
        async with cache(server.url) as rules:
            await stored(rules, "photos", "document")
            caplog.clear()
            before = rules.failures, rules.skipped
            with stopped(server):
                end = time.monotonic() + 2
                await asyncio.gather(*(ask(rules, end) for _ in range(50)))
                # Each of the 50 loses its budget at most once; the breaker rests for longer than we ask.
                failures, skipped = rules.failures - before[0], rules.skipped - before[1]
                assert FAILURES <= failures <= 50
                assert skipped == len(times) - failures > 500
                assert max(times) < BUDGET_SECONDS + BUSY
                assert sorted(times)[len(times) // 2] < 0.01, "with the breaker open the answer comes at once"
                assert len(asyncio.all_tasks()) == 1, "nothing waits for the server any more"

                await asyncio.sleep(REST_SECONDS - 2)
                await until(lambda: tried(rules))
                failures = rules.failures
                await asyncio.gather(*(rules.get(PROJECT, "photos") for _ in range(50)))
                assert rules.failures == failures, "one tried in vain: Redis is left alone again"
            await found(rules, "photos", "document")

    async def tried(rules: RedisRules) -> bool:
        """Many ask at once when the rest is over: one of them, and no other, asks Redis."""
        failures = rules.failures
        await asyncio.gather(*(rules.get(PROJECT, "photos") for _ in range(50)))
        assert rules.failures - failures <= 1
        return rules.failures > failures

    asyncio.run(run())
    assert len(of_the_cache(caplog)) == 2
    assert "(TimeoutError)" in caplog.text
    say(f"50 at once: {figures(times)}")


def test_the_budget_is_fifty_milliseconds(server: Redis) -> None:
    async def run() -> None:
        async with cache(server.url) as rules:
            await stored(rules, "photos", "document")
            with stopped(server):
                times = [await timed(rules.get(PROJECT, "photos")) for _ in range(FAILURES)]
        # The shortest: whatever else this machine does lengthens some of them, hardly all.
        assert BUDGET_SECONDS == 0.05
        assert 0.8 * BUDGET_SECONDS < min(times) < 3 * BUDGET_SECONDS

    asyncio.run(run())


def test_who_tries_for_all_and_goes_away_leaves_the_next_one_to_try(server: Redis) -> None:
    async def run() -> None:
        async with cache(server.url) as rules:
            with stopped(server):
                await opened(rules)
                await asyncio.sleep(REST_SECONDS + 0.1)
                failures, skipped = rules.failures, rules.skipped
                trying = asyncio.create_task(rules.get(PROJECT, "photos"))
                await asyncio.sleep(0)
                trying.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await trying
                assert (rules.failures, rules.skipped) == (failures, skipped)
                assert await rules.get(PROJECT, "photos") is None
                assert (rules.failures, rules.skipped) == (failures + 1, skipped)

    asyncio.run(run())


def test_a_put_never_waits_and_does_not_pile_up(server: Redis) -> None:
    async def run() -> None:
        async with cache(server.url) as rules:
            with stopped(server):
                began = time.perf_counter()
                for number in range(500):
                    await rules.put(PROJECT, f"b{number}", "x" * 10_000)
                assert time.perf_counter() - began < BUSY
                assert rules.skipped == 500 - CONNECTIONS
                await asyncio.sleep(0)
                assert len(asyncio.all_tasks()) <= 1 + 2 * CONNECTIONS
                await until(lambda: alone())

    async def alone() -> bool:
        return len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_a_forget_gives_up_within_about_a_second(server: Redis) -> None:
    async def run() -> None:
        async with cache(server.url) as rules:
            with stopped(server):
                began = time.perf_counter()
                assert not await rules.forget(PROJECT, "photos")
                assert time.perf_counter() - began < FORGET_SECONDS + BUSY

    asyncio.run(run())


def test_a_forget_is_tried_again(server: Redis, client: redis.Redis) -> None:
    requests = iter([True])  # the first request ends its connection

    async def run() -> None:
        async with proxy(server, lambda: 0.0, lambda: next(requests, False)) as url, cache(url) as rules:
            assert await rules.forget(PROJECT, "photos")
            assert rules.failures == 1

    client.set(f"bucket-eventing:{PROJECT}:photos", "old")
    asyncio.run(run())
    assert client.keys() == []


@pytest.mark.parametrize(("least", "most"), [(0.2, 0.2), (0.04, 0.2)])
def test_a_slow_server_is_left_alone(server: Redis, say: Callable[[str], None], least: float, most: float) -> None:
    chance = random.Random(7)
    times: list[float] = []
    slow = False

    async def ask(rules: RedisRules, end: float) -> None:
        while time.monotonic() < end:
            times.append(await timed(rules.get(PROJECT, "photos")))
            await asyncio.sleep(0.005)

    async def run() -> None:
        nonlocal slow
        async with proxy(server, lambda: chance.uniform(least, most) if slow else 0.0) as url, cache(url) as rules:
            await until(lambda: connected(rules))
            slow = True
            before = rules.failures, rules.skipped
            end = time.monotonic() + 1.5
            await asyncio.gather(*(ask(rules, end) for _ in range(16)))
            assert FAILURES <= rules.failures - before[0] <= 16 * FAILURES
            assert rules.skipped - before[1] > 16 * 20
            assert max(times) < BUDGET_SECONDS + BUSY

    async def connected(rules: RedisRules) -> bool:
        before = rules.misses
        await asyncio.gather(*(rules.get(PROJECT, "photos") for _ in range(16)))
        return rules.misses == before + 16

    asyncio.run(run())
    say(f"answers after {least:g} to {most:g} s: {figures(times)}")


def test_no_more_connections_are_open_than_agreed() -> None:
    open_at_once: list[int] = []

    async def look(port: int) -> None:
        while True:
            here = psutil.Process().net_connections("tcp")
            open_at_once.append(sum(1 for one in here if one.raddr and one.raddr.port == port))
            await asyncio.sleep(0.005)

    async def run() -> None:
        async with talker(b"$-1\r\n", BUDGET_SECONDS / 2) as port, cache(f"redis://127.0.0.1:{port}/0") as rules:
            looking = asyncio.create_task(look(port))
            await asyncio.gather(*(rules.get(PROJECT, "photos") for _ in range(200)))
            looking.cancel()

    asyncio.run(run())
    assert 1 <= max(open_at_once) <= CONNECTIONS


def test_a_late_answer_is_never_taken_for_the_answer_to_another_question(server: Redis, client: redis.Redis) -> None:
    """One answer comes too late; the next question, on whatever connection, gets its own."""
    delays = {"now": 0.0}

    async def run() -> None:
        async with proxy(server, lambda: delays["now"]) as url, cache(url) as rules:
            await found(rules, "one", "of one")
            delays["now"] = 2 * BUDGET_SECONDS
            assert await rules.get(PROJECT, "one") is None
            delays["now"] = 0.0
            await asyncio.sleep(3 * BUDGET_SECONDS)
            await found(rules, "two", "of two")

    client.set(f"bucket-eventing:{PROJECT}:one", "of one")
    client.set(f"bucket-eventing:{PROJECT}:two", "of two")
    asyncio.run(run())


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(b"", id="closes"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="http"),
        pytest.param(b"\x00\xff\xfe" * 50_000, id="no line"),
        pytest.param(b"\xff\xfe\r\n", id="no type"),
        pytest.param(b"$many\r\nx\r\n", id="no length"),
        pytest.param(b"$2\r\n\xff\xfe\r\n", id="no text"),
        pytest.param(b"$99999999999999\r\nx", id="never ends"),
        pytest.param(b"*1\r\n" * 5000, id="deep"),
        pytest.param(b":7\r\n", id="a number"),
        pytest.param(b"*1\r\n$1\r\nx\r\n", id="a list"),
        pytest.param(b"-LOADING the dataset\r\n", id="loading"),
        pytest.param(b"-ERR unknown command `AUTH`, with args beginning with: `s3cr3t-word`\r\n", id="repeats the password"),
    ],
)
@pytest.mark.parametrize("user", ["", ":s3cr3t-word@"])
def test_nonsense_is_a_failure_and_nothing_more(words: bytes, user: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with talker(words) as port, cache(f"redis://{user}127.0.0.1:{port}/0") as rules:
            for _ in range(FAILURES):
                assert await timed(is_none(rules)) < BUDGET_SECONDS + BUSY
            assert (rules.hits, rules.misses, rules.failures, rules.skipped) == (0, 0, FAILURES, 0)
            assert await rules.get(PROJECT, "photos") is None
            await rules.put(PROJECT, "photos", "document")
            await asyncio.sleep(0.01)
            assert rules.skipped == 2

    async def is_none(rules: RedisRules) -> None:
        assert await rules.get(PROJECT, "photos") is None

    asyncio.run(run())
    assert len(caplog.records) == 1
    assert "s3cr3t" not in caplog.text


def test_a_wrong_password_is_a_failure_that_the_log_names_without_it(server: Redis, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with cache(f"redis://:s3cr3t-word@127.0.0.1:{server.port}/0") as rules:
            await opened(rules)
            assert rules.failures == FAILURES
            assert not await rules.forget(PROJECT, "photos")

    asyncio.run(run())
    assert "(AuthenticationError)" in caplog.text
    assert "s3cr3t" not in caplog.text


def test_a_connection_that_is_never_made_costs_the_budget() -> None:
    async def run(port: int) -> None:
        async with cache(f"redis://127.0.0.1:{port}/0") as rules:
            assert await timed(rules.get(PROJECT, "photos")) < BUDGET_SECONDS + BUSY
            assert rules.failures == 1

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]  # nobody accepts: the kernel's queue is full
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        asyncio.run(run(port))
        for one in waiting:
            one.close()


def test_who_asks_while_the_cache_is_closed_gets_none(server: Redis) -> None:
    async def run() -> None:
        rules = RedisRules(server.url)
        with stopped(server):
            asking = asyncio.create_task(rules.get(PROJECT, "photos"))
            await asyncio.sleep(0)
            await rules.close()
            assert await asking is None
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:6379", "redis://:s3cr3t#word@127.0.0.1:6379", "redis://127.0.0.1/?no_such=1", ""]
)
def test_a_url_that_is_not_understood_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(OperatorError, match="percent-encode") as refused:
        RedisRules(url)
    assert refused.value.__cause__ is None
    assert "s3cr3t" not in str(refused.value)


def test_a_url_cannot_take_the_budget_away(server: Redis) -> None:
    async def run() -> None:
        options = "socket_timeout=9&socket_connect_timeout=9&decode_responses=yes&protocol=3&health_check_interval=1"
        async with cache(f"{server.url}?{options}") as rules:
            await stored(rules, "photos", "document")
            with stopped(server):
                assert await timed(rules.get(PROJECT, "photos")) < BUDGET_SECONDS + BUSY

    asyncio.run(run())


def test_the_password_is_needed_and_only_this_machine_is_served(server: Redis) -> None:
    with redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    listening = [one.laddr.ip for one in psutil.Process(server.pid).net_connections() if one.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]
    assert (server.folder / "redis.conf").stat().st_mode & 0o077 == 0
    assert server.url.split(":")[2].split("@")[0] not in " ".join(psutil.Process(server.pid).cmdline())


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from tidings.local.processes import free_port; "
        "from tidings.local.redis import Redis; r = Redis(Path(sys.argv[1]), free_port()); r.start(); "
        "print(r.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "redis")], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_cannot_start_says_why(server: Redis, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"Redis did not start: .*server\.log"):
        Redis(tmp_path / "second", server.port).start()
