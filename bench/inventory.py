"""inventory_rate and inventory_rollup: the live inventory, from Kafka to its rows, and sums over a million of them.

The brokers are librdkafka's, which keep 5 MiB of a partition: the notifications come in lots that fit, compressed as a producer
would compress them, and each lot is in Kafka before the clock starts. The clock runs from the start of a job until its last
transaction is committed, so the start of the query counts, the start of Spark does not. Four of five notifications are of keys
that are new, the fifth is of a version that is there; the order is by chance.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from confluent_kafka import Producer

from bench.measure import Bar, CannotMeasure, Figure, Progress, cpu_seconds, said
from tidings import settings as settings_module
from tidings.consumers.inventory.job import Inventory
from tidings.consumers.inventory.rollup import BY, rollup
from tidings.db.migrate import migrate
from tidings.delivery import session
from tidings.local import kafka
from tidings.local.postgres import Postgres
from tidings.local.processes import free_port

NAMES = ("inventory_rate", "inventory_rollup")
_TOPIC = "bench-inventory"
_PARTITIONS = 32
_LOT = 400_000
_FEW = 20_000


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    with ExitStack() as open_:
        progress("starting PostgreSQL")
        folder = Path(open_.enter_context(TemporaryDirectory(prefix="tidings-bench-")))
        postgres = Postgres(folder, free_port())
        postgres.start()
        open_.callback(postgres.stop)
        migrate(postgres.url)
        if "inventory_rate" in names:
            yield _rate(postgres.url, quick, progress)
        if "inventory_rollup" in names:
            yield _rollup(postgres.url, quick, progress)


def _rate(url: str, quick: bool, progress: Progress) -> Figure:
    size, lots = (_FEW, 2) if quick else (_LOT, 3)
    with ExitStack() as open_:
        brokers = open_.enter_context(kafka.running())
        kafka.create_topic(brokers.address, _TOPIC, _PARTITIONS)
        environment = {
            "TIDINGS_DATABASE__URL": url,
            "TIDINGS_KAFKA__CLUSTERS": json.dumps({"local": {"bootstrap": brokers.bootstrap}}),
            "TIDINGS_INVENTORY__TOPICS": json.dumps([_TOPIC]),
        }
        os.environ.update(environment)
        for name in environment:
            open_.callback(os.environ.pop, name)
        settings = settings_module.load()
        progress("starting Spark")
        spark = session.start(settings, on_top=0)
        open_.callback(spark.stop)
        rates: list[float] = []
        spent = cpu_seconds(os.getpid())
        for number in range(-1, lots):
            _produce(brokers.bootstrap, number + 1, _FEW if number < 0 else size, progress)
            progress("warming up" if number < 0 else f"lot {number + 1} of {lots}")
            before, began = cpu_seconds(os.getpid()), time.perf_counter()
            job = Inventory(spark, settings, once=True)
            job.run()
            seconds = time.perf_counter() - began
            if number >= 0:
                rates.append(size / seconds)
                spent += cpu_seconds(os.getpid()) - before
            else:
                spent.clear()
            if job.counts["events"] != (_FEW if number < 0 else size) or job.counts["refused"]:
                raise CannotMeasure(f"The inventory took {dict(job.counts)} of {size} notifications.")
        with psycopg.connect(url) as connection:
            [(rows,)] = connection.execute("select count(*) from inventory").fetchall()
        note = (
            f"{lots} lots of {size:,} over {_PARTITIONS} partitions, {rows:,} rows at the end; processor time for a million:"
            f" {said(spent, lots * size / 1e6)}"
        )
        return Figure.median("inventory_rate", rates, Bar(">=", 20_000), "/s", note)


def _produce(bootstrap: str, lot: int, size: int, progress: Progress) -> None:
    progress(f"lot {lot} into Kafka")
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": "zstd",
            "linger.ms": 200,
            "batch.num.messages": 2000,
            "queue.buffering.max.messages": 1_000_000,
            "partitioner": "murmur2_random",
        }
    )
    draw = random.Random(lot)
    numbers = list(range(size))
    draw.shuffle(numbers)
    for number in numbers:
        body, key, sequencer = notification(lot * _LOT + number)
        producer.produce(_TOPIC, body, key, headers=[("id", f"{sequencer}.1"), ("sequencer", sequencer)])
        producer.poll(0)
    if producer.flush(120):
        raise CannotMeasure("The brokers did not take all notifications.")


def notification(number: int) -> tuple[str, str, str]:
    """Body, key and sequencer. One in five deletes or replaces what the one before it wrote."""
    again = number % 5 == 4
    of = number - 1 if again else number
    deleted = again and number % 2 == 0
    request = f"{number:032x}"
    about: dict[str, Any] = {"object_length": 1024 + of % 1_000_000}
    if not deleted:
        about["object_etag"] = f"{number * 0x9E3779B97F4A7C15 % 2**128:032x}"
    payload = {
        "format": "2.0",
        "request_id": request,
        "request_time": f"2026-11-{1 + of % 28:02}T17:12:28.030Z",
        "event_type": "Object:Delete" if deleted else "Object:Write",
        "bucket_name": f"bench-bucket-{of % 10}",
        "bucket_uuid": f"8b7bbeef-9f6a-192d-d839-{of % 10:012x}",
        "system_uuid": "48def817-f0a3-1949-abe2-9193be91de22",
        "object_version": "null",
        "object_name": f"data/2026/11/{of // 640:08}/part-{of % 640:05}.parquet",
        **about,
        "content_type": "application/vnd.apache.parquet",
        "meta_headers": [{"header": "x-amz-meta-writer", "value": f"job-{of % 100}"}],
    }
    key = {"format": "2.0", "request_id": request, "notification_id": f"1c8b6e0c-9f6a-589d-a177-{number:012x}"}
    return json.dumps(payload, separators=(",", ":")), json.dumps(key, separators=(",", ":")), f"{number + 1:016X}"


# One key in four has a second version, one in twenty a delete marker, as a bucket with versions would.
_FILL = """
insert into inventory
select 'bench-bucket-' || k % 10, '8b7bbeef-9f6a-192d-d839-' || lpad(to_hex(k % 10), 12, '0'),
       'data/2026/' || lpad((k % 12)::text, 2, '0') || '/' || lpad((k / 640)::text, 8, '0') || '/part-'
           || lpad((k % 640)::text, 5, '0'),
       lpad(to_hex(n), 32, '0'), upper(lpad(to_hex(n), 16, '0')), 'Object:Write', n % 20 = 0, false, n % 1000000, md5(n::text),
       case when n % 20 <> 0 then (array['image/jpeg', 'text/plain', 'application/json'])[1 + n % 3] end,
       timestamptz '2026-01-01 00:00Z' + n % 8000000 * interval '1 second'
from generate_series(1, %(rows)s) n, lateral (select case when n % 5 = 0 then n - 1 else n end as k) x
"""


def _rollup(url: str, quick: bool, progress: Progress) -> Figure:
    rows, repeats = (100_000, 2) if quick else (1_000_000, 3)
    with psycopg.connect(url, autocommit=True) as connection:
        progress(f"{rows:,} rows")
        connection.execute("truncate inventory")
        connection.execute(_FILL.replace("%(rows)s", str(rows)).encode())
        connection.execute("vacuum analyze inventory")
        seconds: list[float] = []
        slowest = ""
        for number in range(repeats):
            for by in BY:
                progress(f"by {by}: repeat {number + 1} of {repeats}")
                began = time.perf_counter()
                found = rollup(connection, by, depth=3)
                took = time.perf_counter() - began
                if sum(row["versions"] + row["delete_markers"] for row in found) != rows:
                    raise CannotMeasure(f"The rollup by {by} does not count {rows} rows.")
                slowest = by if took >= max(seconds, default=0) else slowest
                seconds.append(took)
    note = f"{rows:,} rows in ten buckets, by {', '.join(BY)}; the slowest of {len(seconds)}, which was by {slowest}"
    return Figure("inventory_rollup", max(seconds), Bar("<=", 10), (min(seconds), max(seconds)), "s", note)
