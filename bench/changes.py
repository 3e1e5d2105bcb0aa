"""A million changes that every rule wants, in a PostgreSQL of their own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from bench.measure import CannotMeasure, Progress
from tidings.access.projects import create_project
from tidings.changestream import reader, windows
from tidings.changestream.retention import keep_up
from tidings.changestream.settings import ChangestreamSettings
from tidings.db.migrate import migrate
from tidings.events.arn import PubSubTopic
from tidings.events.keys import encoded_if_different
from tidings.events.positions import START, Position
from tidings.local.postgres import Postgres
from tidings.local.processes import free_port
from tidings.rules import table
from tidings.rules.model import KeyFilter, Rule

BUCKETS = 10
SAMPLE = 1000
PREFIX = "data/"

# One key in ten holds a space, so that it has an encoded form of its own.
INSERT = """
insert into changes (seq, project, bucket, bucket_id, key, encoded, event, size, etag,
                     principal, source_ip, request_id, config, rules)
select nextval('change_seq'), %(project)s, c.bucket_name, b.id, k.key, nullif(replace(k.key, ' ', '+'), k.key),
       'ObjectCreated:Put', 1024 + n %% 1000000, md5(n::text), 'AKIABENCHBENCHBENCH2', '10.0.' || n %% 256 || '.7',
       upper(lpad(to_hex(n), 16, '0')), b.config, c.rule::text
from generate_series(1, %(rows)s) n
cross join lateral (
    select %(prefix)s || '2026/11/' || lpad((n / 64)::text, 8, '0') || '/part' || case when n %% 10 = 0 then ' ' else '-' end
           || lpad((n %% 64)::text, 5, '0') || '.parquet' as key
) k
join bucket_eventing_configs c on c.bucket_name = %(name)s || n %% %(buckets)s
join bucket_metainfos b on (b.project_id, b.name) = (c.project_id, c.bucket_name)
"""


@dataclass(frozen=True)
class Changes:
    """The database, and its changes as slices of one window: all of them, and the first few for looking at."""

    url: str
    rows: int
    all: tuple[reader.Slice, ...]
    sample: tuple[reader.Slice, ...]


@contextmanager
def database(progress: Progress) -> Iterator[str]:
    """The URL of a migrated database in a PostgreSQL of its own."""
    with TemporaryDirectory(prefix="tidings-bench-") as folder:
        progress("starting PostgreSQL")
        server = Postgres(Path(folder) / "postgres", free_port())
        try:
            server.start()
            migrate(server.url)
            yield server.url
        finally:
            server.stop()


@contextmanager
def prepared(rows: int, progress: Progress) -> Iterator[Changes]:
    with database(progress) as url:
        progress(f"writing {rows:,} changes")
        yield _filled(url, rows)


def _filled(url: str, rows: int) -> Changes:
    with psycopg.connect(url, autocommit=True) as connection:
        keep_up(connection, ChangestreamSettings())  # partitions, as the stream makes them
        project = create_project(connection, "bench")
        names = [f"bench-{number}" for number in range(BUCKETS)]
        connection.execute(
            "insert into bucket_metainfos (project_id, name) select id, unnest(%s::text[]) from projects where public_id = %s",
            [names, project],
        )
        asyncio.run(_set_rules(url, project, names))
        connection.execute(INSERT, {"project": project, "rows": rows, "name": "bench-", "buckets": BUCKETS, "prefix": PREFIX})
        connection.execute("vacuum analyze")
        connection.execute("checkpoint")  # or it comes in the middle of a repeat
        _check_keys(connection, rows)
        window = windows.cut(connection, windows.last(connection))
        if window is None or window.n != rows:
            raise CannotMeasure(f"The window holds {window.n if window else 0} changes, not {rows}.")
        everything = reader.slices(connection, START, window.end)
        first = reader.slices(connection, START, Position(window.id, window.lo + SAMPLE - 1))
        return Changes(url, rows, tuple(everything), tuple(first))


async def _set_rules(url: str, project: str, buckets: list[str]) -> None:
    """One rule for each bucket, all leading to the same topic, through the code that stores those of tenants."""
    rule = Rule("bench", PubSubTopic("bench-project", "bench-events"), ("s3:ObjectCreated:*",), KeyFilter(prefix=PREFIX))
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        for bucket in buckets:
            await table.replace(connection, project, bucket, [rule])


def _check_keys(connection: psycopg.Connection, rows: int) -> None:
    """SQL made the encoded forms; the store makes them in Python."""
    wanted = random.Random(1).sample(range(1, rows + 1), SAMPLE)
    found = connection.execute("select key, encoded from changes where seq = any(%s)", [wanted]).fetchall()
    if len(found) != SAMPLE or any(encoded != encoded_if_different(key) for key, encoded in found):
        raise CannotMeasure("The prepared keys are not encoded as the store encodes them.")
