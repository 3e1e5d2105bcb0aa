"""What is encrypted can be decrypted in its own place, under its own master key, unchanged; and in no other way."""

from __future__ import annotations

import os

import psycopg
import pytest
from psycopg.rows import dict_row

from tidings.access import api_keys
from tidings.access.api_keys import ROOT, SECRET, TAIL
from tidings.access.projects import create_project
from tidings.bootstrap import SEALED
from tidings.errors import OperatorError
from tidings.secrets.keyring import HEADER_BYTES, Keyring
from tidings.secrets.master_key import MasterKey

CLEAR = b"a secret of forty characters, or so it is"


@pytest.fixture
def ring() -> Keyring:
    return Keyring(MasterKey(os.urandom(32), "TIDINGS_SECRETS__MASTER_KEY_FILE"))


def seal(database: psycopg.Connection, ring: Keyring, row: str = "AKIA1") -> bytes:
    with database.transaction():
        return ring.seal(database, SECRET, row, CLEAR)


def test_a_secret_is_decrypted_by_every_process_with_the_master_key(database: psycopg.Connection, ring: Keyring) -> None:
    sealed = seal(database, ring)
    assert CLEAR not in sealed
    assert seal(database, ring) != sealed
    for process in (ring, Keyring(ring.master)):
        assert process.open(database, SECRET, "AKIA1", sealed) == CLEAR


def test_a_secret_of_another_row_column_or_table_is_refused(database: psycopg.Connection, ring: Keyring) -> None:
    sealed = seal(database, ring)
    for column, row in ((SECRET, "AKIA2"), (TAIL, "AKIA1"), (ROOT, "AKIA1")):
        with pytest.raises(OperatorError, match=rf"{column.table}.{column.column} of {row} cannot be decrypted"):
            ring.open(database, column, row, sealed)


def test_a_secret_that_was_changed_anywhere_is_refused(database: psycopg.Connection, ring: Keyring) -> None:
    sealed = seal(database, ring)
    for at in range(len(sealed)):
        changed = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        with pytest.raises(OperatorError, match="cannot be decrypted" if at == 0 or at >= HEADER_BYTES else "not in data_keys"):
            ring.open(database, SECRET, "AKIA1", changed)
    for length in (0, 1, HEADER_BYTES, HEADER_BYTES + 12, len(sealed) - 1):
        with pytest.raises(OperatorError, match="cannot be decrypted"):
            ring.open(database, SECRET, "AKIA1", sealed[:length])


def test_another_master_key_reads_and_writes_nothing_and_is_named(database: psycopg.Connection, ring: Keyring) -> None:
    sealed = seal(database, ring)
    other = Keyring(MasterKey(os.urandom(32), "TIDINGS_SECRETS__MASTER_KEY_FILE"))
    words = rf"MASTER_KEY_FILE is the master key {other.master.id}, and this database's secrets are under {ring.master.id}"
    with pytest.raises(OperatorError, match=words):
        other.open(database, SECRET, "AKIA1", sealed)
    with pytest.raises(OperatorError, match=words):
        seal(database, other)
    with pytest.raises(OperatorError, match=words):
        other.check(database)
    ring.check(database)


def test_a_secret_is_sealed_only_in_a_transaction(database: psycopg.Connection, ring: Keyring) -> None:
    with pytest.raises(AssertionError, match="in the transaction that stores it"):
        ring.seal(database, SECRET, "AKIA1", CLEAR)


def test_a_connection_may_have_rows_of_any_kind(database_url: str, database: psycopg.Connection) -> None:
    project = create_project(database, "one")
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        made = api_keys.create(connection, project)
    assert api_keys.inspect(database, made.api_key).access_key_id == made.access_key_id


def test_the_secrets_of_two_rows_cannot_change_places(database: psycopg.Connection) -> None:
    project = create_project(database, "one")
    mine, theirs = (api_keys.create(database, project) for _ in range(2))
    database.execute(
        "update access_keys k set sealed_tail = o.sealed_tail from access_keys o"
        " where k.access_key_id = %s and o.access_key_id = %s",
        [mine.access_key_id, theirs.access_key_id],
    )
    with pytest.raises(OperatorError, match=f"access_keys.sealed_tail of {mine.access_key_id} cannot be decrypted"):
        api_keys.inspect(database, mine.access_key_id)
    assert not api_keys.inspect(database, theirs.access_key_id).revoked


def test_every_sealed_column_is_among_those_that_a_rotation_visits(database: psycopg.Connection) -> None:
    there = database.execute(
        "select table_name, column_name from information_schema.columns"
        " where table_schema = 'public' and column_name like 'sealed%'"
    ).fetchall()
    assert {(column.table, column.column) for column in SEALED} == set(there)
    assert len(there) == 5
