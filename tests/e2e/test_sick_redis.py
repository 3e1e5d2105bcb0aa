"""A cache of rules that is killed, hangs or is slow in the middle of writes: no write fails or waits, no event is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import redis

import canary
from conftest import Say, running_stack
from tidings.local.processes import free_port
from tidings.local.redis import Redis
from traffic import Writers, all_arrived, collecting, percentile, seeded, send_events, verdict
from waiting import until

BUCKET = "sick-redis"
PHASE_SECONDS = 3.0
LATER_SECONDS = 1.0
"""What a sick Redis may cost the median write: more than the machine's other work does, less than waiting for it would."""


class Proxy:
    """A way to the server on which every answer can be held back."""

    def __init__(self, server: Redis) -> None:
        self.delay = 0.0
        self.url = ""
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()

    @contextmanager
    def open(self) -> Iterator[Proxy]:
        thread = threading.Thread(target=self._loop.run_forever)
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        thread.start()
        assert self._up.wait(10)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()

    async def _listen(self) -> None:
        listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        self.url = self._server.url.replace(f":{self._server.port}/", f":{port}/")
        self._up.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream, onward = await asyncio.open_connection("127.0.0.1", self._server.port)
            while request := await reader.read(65536):
                onward.write(request)
                answer = await upstream.read(65536)
                if not answer:
                    break
                await asyncio.sleep(self.delay)
                writer.write(answer)
        except OSError:
            pass
        finally:
            writer.close()


def test_a_redis_that_is_killed_hangs_or_is_slow_fails_no_write_and_loses_no_event(tmp_path: Path, say: Say) -> None:
    seed, server = seeded(), Redis(tmp_path / "redis", free_port())
    server.start()
    canary.plant_secret(urlsplit(server.url).password or "")
    marks: dict[str, tuple[float, float]] = {}

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        began = time.time()
        yield
        time.sleep(PHASE_SECONDS)
        marks[name] = (began, time.time())

    with Proxy(server).open() as proxy:
        settings = {"TIDINGS_BUCKET_EVENTING__LOOKUP": "redis", "TIDINGS_BUCKET_EVENTING__REDIS_URL": proxy.url}
        try:
            with running_stack(tmp_path, **settings) as stack, collecting(stack) as collector:
                send_events(stack, collector, BUCKET)
                with Writers(stack.ready, [BUCKET], seed, threads=4, pace=0.02).writing() as writers:
                    time.sleep(1)
                    with phase("healthy"):
                        pass
                    with redis.Redis.from_url(server.url) as client:
                        key = f"bucket-eventing:{stack.ready['project']}:{BUCKET}"
                        assert 0 < client.ttl(key) <= 300
                        assert client.info("stats")["keyspace_hits"] > 50
                    with phase("killed"):
                        server.process.kill()
                        server.process.wait()
                    server.start()
                    asked_again(server)
                    with phase("back"):
                        pass
                    with phase("hung"):
                        os.kill(server.pid, signal.SIGSTOP)
                        stack.s3().put_bucket_notification_configuration(
                            Bucket=BUCKET,
                            NotificationConfiguration=_same(stack.s3().get_bucket_notification_configuration(Bucket=BUCKET)),
                        )
                    os.kill(server.pid, signal.SIGCONT)
                    asked_again(server)
                    with phase("slow"):
                        proxy.delay = 0.2
                all_arrived(stack.ready["database"], collector, [BUCKET])
                found = verdict(stack.ready["database"], collector, writers, [BUCKET], seed)
        finally:
            server.stop()
    took = {
        name: [write.seconds for write in writers.acknowledged if began <= write.began < ended]
        for name, (began, ended) in marks.items()
    }
    p99 = ", ".join(f"{name} {percentile(seconds, 0.99) * 1000:.0f} ms" for name, seconds in took.items())
    say(f"p99 of a write: {p99}; {found}")
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    assert (writers.refused, writers.unanswered) == ([], 0)
    medians = {name: percentile(seconds, 0.5) for name, seconds in took.items()}
    assert max(medians.values()) <= medians["healthy"] + LATER_SECONDS


def asked_again(server: Redis) -> None:
    """Every process has found that Redis is well: from here on a sick one is met by all of them."""
    with redis.Redis.from_url(server.url) as client:
        start = client.info("stats")["keyspace_hits"]
        until(lambda: client.info("stats")["keyspace_hits"] > start + 200, "Redis is asked again")


def _same(answer: dict[str, object]) -> dict[str, object]:
    return {"TopicConfigurations": answer["TopicConfigurations"]}
