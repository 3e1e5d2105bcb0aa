"""A new data key, and every secret encrypted again under it, while all processes go on.

Rows are rewritten in batches; a batch is one transaction, and whoever reads meets rows under either key. A rotation that was
killed is resumed by the next one: it goes on with the data key that was made last.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from psycopg import Connection
from psycopg.sql import SQL, Identifier

from tidings.errors import OperatorError
from tidings.secrets.keyring import HEADER_BYTES, LOCK, Keyring, SealedColumn, Undecryptable, header_of, sealed_with
from tidings.secrets.master_key import KEY_BYTES, MasterKey

BATCH = 500
_ONE_AT_A_TIME = LOCK + 1


@dataclass
class Rotated:
    data_key: uuid.UUID
    resumed: bool
    masters: list[str]
    """Under which the new data key is wrapped."""
    secrets: dict[str, int] = field(default_factory=dict)
    """How many were encrypted again, by table and column."""
    undecryptable: list[str] = field(default_factory=list)
    """Why some were left as they are: nobody can read those, under any key."""


def rotate(
    connection: Connection[Any],
    keyring: Keyring,
    columns: Sequence[SealedColumn],
    new_master: MasterKey | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Rotated:
    """With a new master key every data key is wrapped under both, so that processes can be restarted with it one by one.

    The connection is in autocommit, and is used by nobody else.
    """
    keyring.check(connection)
    row = connection.execute("select pg_try_advisory_lock(%s)", [_ONE_AT_A_TIME]).fetchone()
    if row is None or not row[0]:
        raise OperatorError("Another `tidings secrets rotate` is at work: wait until it has ended.")
    try:
        done = _begin(connection, keyring, new_master)
        cipher = keyring.learn(done.data_key, _wrapped(connection, done.data_key, keyring.master))

        def again(column: SealedColumn) -> None:
            for number in _reseal(connection, keyring, cipher, done, column):
                name = f"{column.table}.{column.column}"
                done.secrets[name] = done.secrets.get(name, 0) + number
                progress(sum(done.secrets.values()))

        for column in columns:
            again(column)
        with connection.transaction():
            done.undecryptable.clear()  # the last look finds them again
            # Whoever encrypts under an older data key holds a lock on its row until its secret is committed.
            connection.execute("select from data_keys where retired_at is null and id <> %s for update", [done.data_key])
            for column in columns:
                again(column)
            connection.execute("update data_keys set retired_at = now() where retired_at is null and id <> %s", [done.data_key])
        return done
    finally:
        connection.execute("select pg_advisory_unlock(%s)", [_ONE_AT_A_TIME])


def _begin(connection: Connection[Any], keyring: Keyring, new_master: MasterKey | None) -> Rotated:
    """The data key to encrypt under: a new one, or that of a rotation which has not ended."""
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", [LOCK])
        # Of rotations before the last: nobody can still hold a row that is under them.
        connection.execute("delete from data_keys where retired_at is not null")
        _refuse_former(connection, keyring.master, new_master)
        found = connection.execute("select id, wrapped from data_keys where master = %s order by number", [keyring.master.id])
        live: dict[uuid.UUID, bytes] = {row[0]: keyring.master.unwrap(row[0], row[1]) for row in found.fetchall()}
        resumed = len(live) > 1
        if not resumed:
            live[uuid.uuid4()] = os.urandom(KEY_BYTES)
        masters = [keyring.master, *([new_master] if new_master is not None else [])]
        for data_key, key in live.items():
            for master in masters:
                connection.execute(
                    "insert into data_keys (number, id, master, wrapped) values"
                    " (coalesce((select max(number) from data_keys where id = %(id)s),"
                    " (select coalesce(max(number), 0) + 1 from data_keys)), %(id)s, %(master)s, %(wrapped)s)"
                    " on conflict do nothing",
                    {"id": data_key, "master": master.id, "wrapped": master.wrap(data_key, key)},
                )
        if new_master is not None:
            connection.execute(
                "update data_keys set superseded_by = %s where master = %s and retired_at is null",
                [new_master.id, keyring.master.id],
            )
        newest = list(live)[-1]
        wraps = connection.execute("select master from data_keys where id = %s order by master", [newest]).fetchall()
    return Rotated(newest, resumed, [row[0] for row in wraps])


def _refuse_former(connection: Connection[Any], master: MasterKey, new_master: MasterKey | None) -> None:
    """A master key that another is taking the place of does not open all there is: a rotation under it would never end.

    Before that, a rotation under it alone would lock out every process that has the other one.
    """
    others = connection.execute(
        "select distinct master from data_keys where retired_at is null"
        " and id not in (select id from data_keys where master = %s) order by master",
        [master.id],
    ).fetchall()
    if others:
        raise OperatorError(
            f"{master.source} is the master key {master.id}, and a rotation under {' and '.join(row[0] for row in others)} has"
            " begun, which opens more: run `tidings secrets rotate` with that one."
        )
    superseded = connection.execute(
        "select superseded_by from data_keys where master = %s and retired_at is null and superseded_by is not null"
        " order by number desc limit 1",
        [master.id],
    ).fetchone()
    if superseded and new_master is None:
        raise OperatorError(
            f"{master.source} is the master key {master.id}, and the master key {superseded[0]} takes its place: set that one,"
            " restart every process with it, and run `tidings secrets rotate` with it."
        )


def _wrapped(connection: Connection[Any], data_key: uuid.UUID, master: MasterKey) -> bytes:
    row = connection.execute("select wrapped from data_keys where id = %s and master = %s", [data_key, master.id]).fetchone()
    assert row is not None
    return bytes(row[0])


def _reseal(
    connection: Connection[Any], keyring: Keyring, cipher: AESGCM, done: Rotated, column: SealedColumn
) -> Iterator[int]:
    """Batch by batch in the order of the rows' ids; yields how many secrets each had. One that is damaged stops no rotation."""
    names = {"table": Identifier(column.table), "column": Identifier(column.column), "id": Identifier(column.id)}
    stale = SQL("select {id}, {column} from {table} where substr({column}, 1, %(length)s) <> %(header)s").format(**names)
    first = SQL("{} order by {id} limit %(batch)s").format(stale, **names)
    following = SQL("{} and {id} > %(after)s order by {id} limit %(batch)s").format(stale, **names)
    write = SQL("update {table} set {column} = %s where {id} = %s and {column} = %s").format(**names)
    after: str | bytes | None = None
    wanted = {"length": HEADER_BYTES, "header": header_of(done.data_key), "batch": BATCH}
    while True:
        with connection.transaction(), connection.cursor() as cursor:
            rows = cursor.execute(first if after is None else following, {**wanted, "after": after}).fetchall()
            if not rows:
                return
            after = rows[-1][0]
            changes = []
            for row, sealed in rows:
                try:
                    secret = keyring.open(connection, column, row, sealed)
                except Undecryptable as error:
                    done.undecryptable.append(str(error))
                    continue
                changes.append((sealed_with(cipher, done.data_key, column, row, secret), row, sealed))
            # A row that somebody changed in between is left alone: it is under the new key, or the last look finds it.
            cursor.executemany(write, changes)
            written = cursor.rowcount if changes else 0
        yield written
