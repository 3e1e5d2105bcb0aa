"""The rival of the figures about delivery: a plain asyncio relay, a process of its own, with the same clients.

One process, one event loop, one cursor: read, match, render, publish, store the position. Well written, so that the comparison
is fair: rows come in binary through a server-side cursor, JSON is made by one encoder, messages are plain protobuf, a thousand
of them travel in one call, several calls are under way while the next rows are read. It promises what we promise: no two
messages of a key are in flight, and the position never passes what is not confirmed.

One line of JSON in for each run, one out.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol
from uuid import UUID, uuid5

import psycopg

from bench.measure import CannotMeasure
from bench.plain_loop import COLUMNS, PlainRule, record, wants

_FETCH = 2000
_CALL = 1000
_CALLS = 8
"""Calls under way at once."""
_COS_COLUMNS = ", bucket_id, content_type, metadata, request_at, version_id"
_NAMESPACE = UUID("f9faf101-3f10-54eb-b890-543f4ff976bd")
_SYSTEM = "00000000-0000-0000-0000-000000000000"
_ANSWER_SECONDS = 60.0

Message = tuple[str, str, bytes, bytes | None]
"""Its id, its sequencer, its body and, for Kafka, its key."""


class Publisher(Protocol):
    async def publish(self, messages: Sequence[Message]) -> None:
        """Returns when all of them are confirmed."""


class PubSub:
    """Google's asynchronous client, below its convenience layer: that one makes a Python object for every field."""

    def __init__(self, topic: str, host: str) -> None:
        import grpc.aio
        from google.pubsub_v1 import PublisherAsyncClient
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
        from google.pubsub_v1.types import PublishRequest

        self._topic = topic
        self._client = PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=grpc.aio.insecure_channel(host)))
        self._wrap, self._request = PublishRequest.wrap, PublishRequest.pb()

    async def publish(self, messages: Sequence[Message]) -> None:
        request = self._request(topic=self._topic)
        add = request.messages.add
        for id_, sequencer, body, _ in messages:
            message = add()  # in place: one that is made outside is made twice
            message.data = body
            attributes = message.attributes
            attributes["id"], attributes["sequencer"] = id_, sequencer
        answer = await self._client.publish(request=self._wrap(request), retry=None, timeout=_ANSWER_SECONDS)
        assert len(answer.message_ids) == len(messages)


class Kafka:
    """confluent-kafka, idempotent. Its reports are taken between two calls; if all are under way, a thread waits for them."""

    def __init__(self, topic: str, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "partitioner": "murmur2_random",
                "queue.buffering.max.kbytes": 128 * 1024,
            }
        )
        self._waiting = 0

    async def publish(self, messages: Sequence[Message]) -> None:
        missing = len(messages)

        def confirmed(error: object, _message: object) -> None:
            nonlocal missing
            if error is not None:
                raise RuntimeError(f"Kafka: {error}")
            missing -= 1

        for id_, sequencer, body, key in messages:
            headers: list[tuple[str, str | bytes | None]] = [("id", id_), ("sequencer", sequencer)]
            self._producer.produce(self._topic, body, key, headers=headers, on_delivery=confirmed)
        self._producer.poll(0)
        while missing:
            self._waiting += 1
            # one of the calls that wait listens in a thread, so that the loop can go on
            await (asyncio.to_thread(self._producer.poll, 0.005) if self._waiting == 1 else asyncio.sleep(0.001))
            self._waiting -= 1


class _Relay:
    def __init__(self, url: str, kind: str, topic: str, place: str, region: str) -> None:
        self._url = url
        self._region = region
        self._publisher: Publisher = PubSub(topic, place) if kind == "pubsub" else Kafka(topic, place)
        self._columns = COLUMNS if kind == "pubsub" else COLUMNS + _COS_COLUMNS
        self._said = self._s3 if kind == "pubsub" else self._cos
        self._dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode

    async def run(self, condition: str) -> dict[str, float]:
        """Relay the changes of one slice of a window, to the last confirmation and the last position."""
        began, cpu = time.perf_counter(), time.process_time()
        async with (
            await psycopg.AsyncConnection.connect(self._url) as reading,
            await psycopg.AsyncConnection.connect(self._url, autocommit=True) as storing,
        ):
            done = await self._relay(reading, storing, condition)
        return {"messages": done, "seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}

    async def _relay(self, reading: psycopg.AsyncConnection, storing: psycopg.AsyncConnection, condition: str) -> int:
        await reading.execute("set time zone 'UTC'")
        known = await _rules(reading)
        sending = _Sending(self._publisher.publish, storing)
        async with reading.cursor("changes", binary=True) as cursor:
            await cursor.execute(f"select {self._columns} from changes where {condition} order by seq".encode())
            rows = await cursor.fetchmany(_FETCH)
            while rows:
                following = asyncio.create_task(cursor.fetchmany(_FETCH))
                for row in rows:
                    key = (row[3], row[4])
                    for number in row[12].split(","):
                        rule = known.get(number)
                        if rule is not None and wants(rule, row[6], row[4], row[5]):
                            if sending.must_wait(key):
                                await sending.until_free(key)
                            sending.add(key, row[0], self._said(row, rule, number))
                            if sending.full:
                                await sending.send()
                rows = await following
        await sending.finish()
        return sending.confirmed

    def _s3(self, row: tuple[Any, ...], rule: PlainRule, number: str) -> Message:
        body = self._dumps(record(row, rule.config_id, self._region)).encode()
        return f"{row[13]}.{number}", f"{row[0]:016X}", body, None

    def _cos(self, row: tuple[Any, ...], _rule: PlainRule, number: str) -> Message:
        (
            seq,
            at,
            _,
            bucket,
            key,
            _,
            event,
            size,
            etag,
            _,
            _,
            request_id,
            _,
            id_,
            bucket_id,
            type_,
            metadata,
            request_at,
            version,
        ) = row
        if not event.startswith("ObjectCreated:"):
            raise CannotMeasure(f"The relay was not made for {event}.")
        payload = {
            "format": "2.0",
            "request_id": request_id,
            "request_time": (request_at or at).isoformat(timespec="milliseconds")[:-6] + "Z",
            "event_type": "Object:Write",
            "bucket_name": bucket,
            "bucket_uuid": bucket_id,
            "system_uuid": _SYSTEM,
        }
        if version is not None:
            payload["object_version"] = version
        payload |= {"object_name": key, "object_length": size, "object_etag": etag}
        if type_:
            payload["content_type"] = type_
        if metadata and '"x-amz-meta-' in metadata:
            own = [(name, value) for name, value in json.loads(metadata).items() if name.startswith("x-amz-meta-")]
            payload["meta_headers"] = [{"header": name, "value": value} for name, value in own]
        message_id = f"{id_}.{number}"
        label = {"format": "2.0", "request_id": request_id, "notification_id": str(uuid5(_NAMESPACE, message_id))}
        return message_id, f"{seq:016X}", self._dumps(payload).encode(), self._dumps(label).encode()


class _Sending:
    """Calls under way, the keys that are in them, and the position up to which everything is confirmed."""

    def __init__(self, publish: Callable[[Sequence[Message]], Awaitable[None]], storing: psycopg.AsyncConnection) -> None:
        self._publish = publish
        self._storing = storing
        self._messages: list[Message] = []
        self._keys: set[tuple[str, str]] = set()
        self._last = 0
        self._under_way: list[tuple[asyncio.Task[None], set[tuple[str, str]], int, int]] = []
        self.confirmed = 0

    @property
    def full(self) -> bool:
        return len(self._messages) >= _CALL

    def must_wait(self, key: tuple[str, str]) -> bool:
        return key in self._keys or any(key in keys for _, keys, _, _ in self._under_way)

    async def until_free(self, key: tuple[str, str]) -> None:
        if key in self._keys:
            await self.send()
        while self.must_wait(key):
            await self._settle()

    def add(self, key: tuple[str, str], seq: int, message: Message) -> None:
        self._messages.append(message)
        self._keys.add(key)
        self._last = seq

    async def send(self) -> None:
        if self._messages:
            task = asyncio.ensure_future(self._publish(self._messages))
            self._under_way.append((task, self._keys, self._last, len(self._messages)))  # type: ignore[arg-type]
            self._messages, self._keys = [], set()
        await asyncio.sleep(0)  # so that the call begins
        while len(self._under_way) >= _CALLS:
            await self._settle()

    async def _settle(self) -> None:
        """Wait for the oldest call, and store how far everything is confirmed."""
        await self._under_way[0][0]
        while self._under_way and self._under_way[0][0].done():
            task, _, last, count = self._under_way.pop(0)
            task.result()
            self.confirmed += count
        await self._storing.execute("update relay set seq = %s", [last])

    async def finish(self) -> None:
        await self.send()
        while self._under_way:
            await self._settle()


async def _rules(connection: psycopg.AsyncConnection) -> dict[str, PlainRule]:
    found = await connection.execute(
        "select rule::text, config_id, events, coalesce(filter_prefix, ''), coalesce(filter_suffix, '')"
        " from bucket_eventing_configs"
    )
    return {row[0]: PlainRule(row[1], frozenset(row[2]), row[3], row[4]) for row in await found.fetchall()}


class Relay:
    """That process, as a figure uses it. It ends when its input does."""

    def __init__(self, url: str, kind: str, topic: str, place: str, region: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table if not exists relay (seq bigint not null)")
            connection.execute("insert into relay select 0 where not exists (select from relay)")
        command = [sys.executable, "-m", "bench.relay"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._send([url, kind, topic, place, region])

    def _send(self, line: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def run(self, condition: str) -> dict[str, float]:
        """`messages`, `seconds` and `cpu` of one run."""
        self._send(condition)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise CannotMeasure("The relay stopped; what it said is above.")
        done: dict[str, float] = json.loads(line)
        return done

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


async def _main() -> None:
    relay = _Relay(*json.loads(sys.stdin.readline()))
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await relay.run(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
