"""Encrypts and decrypts the secrets of rows. What is stored is a version, the data key's id, a nonce and the ciphertext.

A ciphertext is bound to its table, column and row (AAD): in any other place it cannot be decrypted. Data keys are unwrapped
once and stay in memory. One that is not known yet, because it is newer than the process, is read when it is met.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, LiteralString

import psycopg
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from pydantic import SecretStr

from tidings.errors import OperatorError
from tidings.secrets import master_key
from tidings.secrets.master_key import KEY_BYTES, NONCE_BYTES, MasterKey
from tidings.secrets.settings import SecretsSettings

_VERSION = b"\x01"
_ID_BYTES = 16
HEADER_BYTES = len(_VERSION) + _ID_BYTES
LOCK = 0x73656372657473
"""Of whoever makes a data key ("secrets" in ASCII)."""

_IS_OPEN: LiteralString = """
select coalesce(bool_or(master = %s), true) from data_keys
where retired_at is null and number = (select max(number) from data_keys where retired_at is null)"""
_NEWEST: LiteralString = (
    "select id, wrapped from data_keys where master = %s and retired_at is null order by number desc limit 1 for key share"
)
"""Locked, so that no rotation ends before the secret that is encrypted with it is committed."""
_FIND: LiteralString = "select wrapped from data_keys where id = %s and master = %s"
_MASTERS: LiteralString = "select distinct master from data_keys where retired_at is null"
_TRIES = 5

Steps = Generator[tuple[LiteralString, list[Any]], list[Any], bytes]
"""Statements, and the rows of each: the same work over both kinds of connection."""


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column of ciphertexts. Its package declares it, `bootstrap.SEALED` lists all."""

    table: LiteralString
    column: LiteralString
    id: LiteralString
    """The column that identifies the row."""

    def place(self, row: str | bytes) -> bytes:
        return b"\0".join([self.table.encode(), self.column.encode(), row.encode() if isinstance(row, str) else bytes(row)])


class Undecryptable(OperatorError):
    """A secret that no key opens: its row was changed, or comes from elsewhere."""


class Keyring:
    """All that one master key opens."""

    def __init__(self, master: MasterKey) -> None:
        self.master = master
        self._ciphers: dict[bytes, AESGCM] = {}

    def seal(self, connection: Connection[Any], column: SealedColumn, row: str | bytes, secret: bytes) -> bytes:
        """Encrypt under the newest data key. The caller is in the transaction that stores what is returned."""
        sealed = _run(connection, self._seal(column, row, secret))
        assert connection.info.transaction_status == TransactionStatus.INTRANS, (
            "a secret is sealed in the transaction that stores it"
        )
        return sealed

    async def seal_async(
        self, connection: AsyncConnection[Any], column: SealedColumn, row: str | bytes, secret: bytes
    ) -> bytes:
        sealed = await _run_async(connection, self._seal(column, row, secret))
        assert connection.info.transaction_status == TransactionStatus.INTRANS, (
            "a secret is sealed in the transaction that stores it"
        )
        return sealed

    def open(self, connection: Connection[Any], column: SealedColumn, row: str | bytes, sealed: bytes) -> bytes:
        """Decrypt. The connection is used only if the data key is not known yet."""
        return _run(connection, self._open(column, row, sealed))

    async def open_async(
        self, connection: AsyncConnection[Any], column: SealedColumn, row: str | bytes, sealed: bytes
    ) -> bytes:
        if (cipher := self._ciphers.get(sealed[:HEADER_BYTES])) is not None:
            return _decrypted(cipher, column, row, sealed)
        return await _run_async(connection, self._open(column, row, sealed))

    def check(self, connection: Connection[Any]) -> None:
        """Refuse a master key that is not the one of this database."""
        self._refuse_others([row[0] for row in connection.execute(_MASTERS).fetchall()])

    async def opens(self, connection: AsyncConnection[Any]) -> bool:
        """Whether what is encrypted now can be read: not by a process whose master key has been replaced."""
        found = await (await connection.execute(_IS_OPEN, [self.master.id])).fetchone()
        return found is not None and bool(found[0])

    def learn(self, data_key: uuid.UUID, wrapped: bytes) -> AESGCM:
        header = header_of(data_key)
        self._ciphers[header] = cipher = AESGCM(self.master.unwrap(data_key, wrapped))
        return cipher

    def _refuse_others(self, masters: list[str]) -> None:
        if masters and self.master.id not in masters:
            raise OperatorError(
                f"{self.master.source} is the master key {self.master.id}, and this database's secrets are under"
                f" {' and '.join(sorted(masters))}: set the one that it was used with."
            )

    def _seal(self, column: SealedColumn, row: str | bytes, secret: bytes) -> Steps:
        for _ in range(_TRIES):
            found = yield _NEWEST, [self.master.id]
            if found:
                break
            yield from self._make_first()
        else:
            raise OperatorError("No data key could be made or read: look at the table data_keys.")
        data_key, wrapped = found[0]
        header = header_of(data_key)
        return sealed_with(self._ciphers.get(header) or self.learn(data_key, wrapped), data_key, column, row, secret)

    def _make_first(self) -> Steps:
        yield "select pg_advisory_xact_lock(%s)", [LOCK]
        masters = [row[0] for row in (yield _MASTERS, [])]
        self._refuse_others(masters)
        if not masters:
            made = uuid.uuid4()
            wrapped = self.master.wrap(made, os.urandom(KEY_BYTES))
            yield (
                "insert into data_keys (number, id, master, wrapped)"
                " select coalesce(max(number), 0) + 1, %s, %s, %s from data_keys returning id",
                [made, self.master.id, wrapped],
            )
        return b""

    def _open(self, column: SealedColumn, row: str | bytes, sealed: bytes) -> Steps:
        cipher = self._ciphers.get(sealed[:HEADER_BYTES])
        if cipher is None:
            if len(sealed) <= HEADER_BYTES + NONCE_BYTES or not sealed.startswith(_VERSION):
                raise _undecryptable(column, row)
            data_key = uuid.UUID(bytes=bytes(sealed[len(_VERSION) : HEADER_BYTES]))
            found = yield _FIND, [data_key, self.master.id]
            if not found:
                self._refuse_others([row[0] for row in (yield _MASTERS, [])])
                raise Undecryptable(
                    f"{column.table}.{column.column} has a secret under the data key {data_key}, which is not in data_keys:"
                    " restore that table from the same backup as the others."
                )
            cipher = self.learn(data_key, found[0][0])
        return _decrypted(cipher, column, row, sealed)


def header_of(data_key: uuid.UUID) -> bytes:
    return _VERSION + data_key.bytes


def sealed_with(cipher: AESGCM, data_key: uuid.UUID, column: SealedColumn, row: str | bytes, secret: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return header_of(data_key) + nonce + cipher.encrypt(nonce, secret, column.place(row))


def _decrypted(cipher: AESGCM, column: SealedColumn, row: str | bytes, sealed: bytes) -> bytes:
    nonce, ciphertext = sealed[HEADER_BYTES : HEADER_BYTES + NONCE_BYTES], sealed[HEADER_BYTES + NONCE_BYTES :]
    try:
        return cipher.decrypt(nonce, ciphertext, column.place(row))
    except (InvalidTag, ValueError):
        raise _undecryptable(column, row) from None


def _undecryptable(column: SealedColumn, row: str | bytes) -> Undecryptable:
    name = row if isinstance(row, str) else bytes(row).hex()
    return Undecryptable(
        f"The secret in {column.table}.{column.column} of {name[:200]} cannot be decrypted: it was changed, or comes from"
        " another row. Restore the row from a backup, or make a new secret."
    )


def _run(connection: Connection[Any], steps: Steps) -> bytes:
    cursor = connection.cursor(row_factory=tuple_row)  # whatever rows the connection's owner likes
    try:
        statement, parameters = next(steps)
        while True:
            statement, parameters = steps.send(cursor.execute(statement, parameters).fetchall())
    except StopIteration as done:
        value: bytes = done.value
        return value


async def _run_async(connection: AsyncConnection[Any], steps: Steps) -> bytes:
    cursor = connection.cursor(row_factory=tuple_row)
    try:
        statement, parameters = next(steps)
        while True:
            await cursor.execute(statement, parameters)
            statement, parameters = steps.send(await cursor.fetchall())
    except StopIteration as done:
        value: bytes = done.value
        return value


@lru_cache(maxsize=16)
def under(settings: SecretsSettings) -> Keyring:
    """The keyring of the master key in these settings. A process has one, and reads the master key once."""
    return Keyring(master_key.read(settings))


def resolved(settings: SecretsSettings) -> SecretsSettings:
    """The same with the key itself, for processes that have neither the file nor the command."""
    if not settings.is_given:
        return settings
    return SecretsSettings(master_key=SecretStr(base64.b64encode(under(settings).master.key).decode()))


def check_at_start(database_url: str, settings: SecretsSettings) -> None:
    """Refuse to start without the master key of this database. One that does not answer yet is no reason."""
    keyring = under(settings)
    try:
        with psycopg.connect(database_url, connect_timeout=5) as connection:
            keyring.check(connection)
    except psycopg.errors.UndefinedTable:
        raise OperatorError("The database has no table data_keys yet: run `tidings migrate` first.") from None
    except psycopg.OperationalError:
        pass


def of_process() -> Keyring:
    """For those who are given a connection and no settings: commands, tests."""
    from tidings.settings import load

    return under(load().secrets)
