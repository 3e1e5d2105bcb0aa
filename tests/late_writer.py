"""Transactions that draw their number early and commit late, beside all others: what reads `seq > last` never sees them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

# A change like one that is there, of a key of its own.
_LIKE_ANOTHER = """
    insert into changes
        (seq, project, bucket, bucket_id, key, event, size, etag, principal, source_ip, request_id, config, rules)
    select nextval('change_seq'), project, bucket, bucket_id, %(key)s, event, size, etag, principal, source_ip, %(key)s, config,
        rules
    from changes where bucket = %(bucket)s and event = 'ObjectCreated:Put' and rules is not null limit 1
"""


@contextmanager
def committing_late(url: str, buckets: Sequence[str], seed: int) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=_write, args=(url, buckets, random.Random(f"{seed}/late"), over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _write(url: str, buckets: Sequence[str], chance: random.Random, over: threading.Event) -> None:
    number = 0
    while not over.is_set():
        try:
            with psycopg.connect(url, connect_timeout=5) as connection:
                while not over.is_set():
                    number += 1
                    bucket = chance.choice(buckets)
                    connection.execute(_LIKE_ANOTHER.encode(), {"key": f"late/{number % 20:03}", "bucket": bucket})
                    over.wait(chance.uniform(0.1, 0.6))
                    connection.commit()
        except psycopg.OperationalError:
            over.wait(0.2)
