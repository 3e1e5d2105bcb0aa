"""Existing databases are encrypted when they are migrated; a rotation leaves nothing under the old key and stops nobody."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import canary
from tidings.access import api_keys
from tidings.access.api_keys import SECRET
from tidings.access.keys import KeyCache
from tidings.access.macaroons import Caveat, Macaroon
from tidings.access.projects import create_project
from tidings.bootstrap import SEALED
from tidings.db.migrate import migrate, migrations
from tidings.db.pool import make_pool
from tidings.errors import OperatorError
from tidings.local.postgres import Postgres
from tidings.secrets import keyring, rotation
from tidings.secrets.keyring import HEADER_BYTES, Keyring
from tidings.secrets.master_key import MasterKey
from tidings.settings import Settings
from tidings.topics import signing
from waiting import until

TOPIC = "arn:aws:sns:us-east-1:11111111-2222-3333-4444-555555555555:changes"
WEBHOOK = [f"whsec_{base64.b64encode(text * 4).decode()}" for text in (b"new-key-", b"old-key-")]


def found(database_url: str, *ids: str, ring: Keyring | None = None) -> list[str | None]:
    """The secrets that a process of its own reads."""

    async def work() -> list[str | None]:
        async with make_pool(database_url, 2) as pool:
            keys = [await KeyCache(pool, keyring=ring or Keyring(keyring.of_process().master)).find(id_) for id_ in ids]
            return [key and key.secret for key in keys]

    return asyncio.run(work())


def data_keys(database: psycopg.Connection) -> set[bytes]:
    """Under which the access keys' secrets are."""
    rows = database.execute("select distinct substr(sealed_secret, 1, %s) from access_keys", [HEADER_BYTES]).fetchall()
    return {bytes(row[0]) for row in rows}


@pytest.fixture
def older(postgres: Postgres) -> str:
    """A database of the version before, with a secret of each kind in clear."""
    server = postgres.url.removesuffix("/tidings")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("drop database if exists older with (force)")
        connection.execute("create database older")
    with psycopg.connect(f"{server}/older", autocommit=True) as connection:
        connection.execute("create table schema_migrations (number integer primary key, name text, applied_at timestamptz)")
        for number, name, sql in migrations():
            if number < 20:
                connection.execute(sql.encode())
                connection.execute("insert into schema_migrations values (%s, %s, now())", [number, name])
    return f"{server}/older"


def test_a_database_with_secrets_in_clear_is_encrypted_by_its_migration(older: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = os.urandom(32)
    whole = Macaroon.new(root)
    narrow, ended = whole.restricted(Caveat(buckets=frozenset({"b"}))), whole.restricted(Caveat(buckets=frozenset({"gone"})))
    private, certificate = signing._made("localhost", 10)
    with psycopg.connect(older, autocommit=True) as connection:
        project = create_project(connection, "one")
        connection.execute("insert into api_keys select %s, %s, '{read}', id from projects", [whole.head, root])
        connection.execute("insert into access_keys select 'AKIAOLD', 'oldest secret', id from projects")
        for name, key in (("AKIAWHOLE", whole), ("AKIANARROW", narrow), ("AKIAENDED", ended)):
            connection.execute(
                "insert into access_keys (access_key_id, secret_access_key, project_id, head, api_key)"
                " select %s, %s, id, %s, %s from projects",
                [name, f"secret of {name}", key.head, str(key)],
            )
        connection.execute("insert into revoked_tails values (%s)", [ended.tail])
        connection.execute("insert into topics (arn, project) values (%s, %s)", [TOPIC, project])
        connection.execute(
            "insert into subscriptions (arn, topic, project, protocol, endpoint, secrets)"
            " values (%s, %s, %s, 'https', 'x', %s)",
            [f"{TOPIC}:one", TOPIC, project, WEBHOOK],
        )
        connection.execute("insert into signing_key values (true, %s, %s)", [private.decode(), certificate.decode()])
        relations = "select oid::regclass, pg_relation_filepath(oid) from pg_class where relname in ('access_keys', 'api_keys')"
        before = dict(connection.execute(relations).fetchall())

        with monkeypatch.context() as without:
            without.delenv("TIDINGS_SECRETS__MASTER_KEY")
            with pytest.raises(OperatorError, match="No master key: set TIDINGS_SECRETS__MASTER_KEY_FILE"):
                migrate(older)
        assert connection.execute("select max(number) from schema_migrations").fetchone() == (19,)
        assert connection.execute("select count(secret_access_key) from access_keys").fetchone() == (4,)

        assert "0020_secrets" in migrate(older)
        after = dict(connection.execute(relations).fetchall())
        assert not before.items() & after.items(), "old versions of the rows are in files that are gone"
        columns = "select column_name from information_schema.columns where table_name = 'access_keys'"
        assert not {"secret_access_key", "api_key"} & {row[0] for row in connection.execute(columns)}
        assert [secret.decode().split() for secret in canary.unsealed(connection, SEALED[3])] == [WEBHOOK]
        assert canary.unsealed(connection, SEALED[4]) == [private]
        assert api_keys.inspect(connection, str(narrow)).access_key_id == "AKIANARROW"
        assert [each.revoked for each in api_keys.listed(connection, project)].count(True) == 1
    assert found(older, "AKIAOLD", "AKIAWHOLE", "AKIANARROW", "AKIAENDED") == [
        "oldest secret", "secret of AKIAWHOLE", "secret of AKIANARROW", None
    ]  # fmt: skip
    assert migrate(older) == []
    with psycopg.connect(older, autocommit=True) as connection:  # it was in old backups in clear, so it can be ended
        api_keys.revoke(connection, "AKIAOLD")
        assert [each.revoked for each in api_keys.listed(connection, project)].count(True) == 2
    assert found(older, "AKIAOLD", "AKIAWHOLE") == [None, "secret of AKIAWHOLE"]


def files_of(postgres: Postgres, database_url: str) -> bytes:
    """Everything that the server has in the files of a database."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("checkpoint")
        row = connection.execute("select oid from pg_database where datname = current_database()").fetchone()
    assert row is not None
    contents = []
    for file in (postgres.data / "base" / str(row[0])).iterdir():
        with suppress(FileNotFoundError):  # PostgreSQL removes and writes pg_internal.init whenever the catalog changes
            contents.append(file.read_bytes())
    return b"".join(contents)


def test_a_migration_that_was_killed_leaves_nothing_in_clear_when_the_next_has_ended(postgres: Postgres, older: str) -> None:
    whole = Macaroon.new(os.urandom(32))
    ended = whole.restricted(Caveat(buckets=frozenset({"gone"})))
    private, certificate = signing._made("localhost", 10)
    secrets = {"secret": b"secret-in-clear-of-AKIAWHOLE", "key": str(whole).encode(), "tail": ended.tail}
    secrets |= {"webhook": WEBHOOK[0].encode(), "signing key": private.splitlines()[5]}
    with psycopg.connect(older, autocommit=True) as connection:
        project = create_project(connection, "one")
        connection.execute("insert into api_keys select %s, %s, '{read}', id from projects", [whole.head, os.urandom(32)])
        connection.execute(
            "insert into access_keys (access_key_id, secret_access_key, project_id, head, api_key)"
            " select 'AKIAWHOLE', %s, id, %s, %s from projects",
            [secrets["secret"].decode(), whole.head, str(whole)],
        )
        connection.execute("insert into access_keys select 'AKIA' || n, 'same', id from projects, generate_series(1, 3) n")
        connection.execute("insert into revoked_tails values (%s)", [ended.tail])
        connection.execute("insert into topics (arn, project) values (%s, %s)", [TOPIC, project])
        connection.execute(
            "insert into subscriptions (arn, topic, project, protocol, endpoint, secrets)"
            " values (%s, %s, %s, 'https', 'x', %s)",
            [f"{TOPIC}:one", TOPIC, project, WEBHOOK],
        )
        connection.execute("insert into signing_key values (true, %s, %s)", [private.decode(), certificate.decode()])
        connection.execute("analyze")
        before = files_of(postgres, older)
        assert [name for name, secret in secrets.items() if secret not in before] == [], "they would be found"

        command = [sys.executable, "-m", "tidings", "migrate"]
        with psycopg.connect(older) as reading:  # so that it stands still while it writes this table anew
            reading.execute("select from revoked_tails")
            killed = subprocess.Popen(command, env={**os.environ, "TIDINGS_DATABASE__URL": older}, stdout=subprocess.DEVNULL)
            waits = "select from pg_stat_activity where query like 'vacuum full%' and wait_event_type = 'Lock'"
            until(lambda: connection.execute(waits).rowcount, "it waits for whoever reads")
            killed.send_signal(signal.SIGKILL)
            killed.wait()
        assert connection.execute("select count(*) from schema_migrations where number between 20 and 22").fetchone() == (3,)

        assert migrate(older) == []
        after = files_of(postgres, older)
        assert [name for name, secret in secrets.items() if secret in after] == []
        assert connection.execute("select count(*) from stale_tables").fetchone() == (0,)


def test_tables_that_a_role_may_not_write_anew_stay_named_until_their_owner_has(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("drop database if exists guest with (force)")
        connection.execute("drop role if exists guest")
        connection.execute("create role guest login password 'guest'")
        connection.execute("create database guest")
    url = postgres.url.removesuffix("/tidings") + "/guest"
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(b"grant create on database guest to guest; grant create on schema public to guest")
    as_guest = re.sub("//[^@]+@", "//guest:guest@", url)
    migrate(as_guest)
    with psycopg.connect(as_guest, autocommit=True) as guest:
        guest.execute("insert into stale_tables values ('pg_statistic'), ('access_keys')")
        assert migrate(as_guest) == []
        assert guest.execute("select name from stale_tables").fetchall() == [("pg_statistic",)]
    assert "As its owner run: vacuum full pg_statistic;" in caplog.text
    assert migrate(url) == []
    with psycopg.connect(url) as owner:
        assert owner.execute("select count(*) from stale_tables").fetchone() == (0,)


def test_a_rotation_that_was_killed_goes_on_and_meanwhile_both_keys_are_read(
    database_url: str, database: psycopg.Connection, tmp_path: Path
) -> None:
    project = create_project(database, "one")
    made = [api_keys.create(database, project) for _ in range(2 * rotation.BATCH + 100)]
    made.sort(key=lambda each: each.access_key_id)
    process = Keyring(keyring.of_process().master)  # which has started before the rotation
    middle = made[rotation.BATCH + 50].access_key_id
    assert found(database_url, middle, ring=process) == [made[rotation.BATCH + 50].secret]
    [before] = data_keys(database)

    command = [sys.executable, "-m", "tidings", "secrets", "rotate", "--json"]
    environment = {**os.environ, "TIDINGS_DATABASE__URL": database_url}
    with psycopg.connect(database_url) as holding:  # so that it stands still in the second batch
        holding.execute("select from access_keys where access_key_id = %s for update", [middle])
        with (tmp_path / "rotate.log").open("wb") as log:
            killed = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        until(lambda: len(data_keys(database)) == 2, "the first batch is written")
        with (
            pytest.raises(OperatorError, match="Another `tidings secrets rotate` is at work"),
            psycopg.connect(database_url, autocommit=True) as another,
        ):
            rotation.rotate(another, keyring.of_process(), SEALED)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    sample = [made[0], made[rotation.BATCH + 50], made[-1]]
    for ring in (process, None):
        assert found(database_url, *(each.access_key_id for each in sample), ring=ring) == [each.secret for each in sample]

    # the lock ends with the session of the one that was killed, which the server may take a moment to notice
    def resumed() -> subprocess.CompletedProcess[str] | None:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return None if "is at work" in done.stderr else done

    done = until(resumed, "the session of the killed process has ended")
    assert done.returncode == 0, done.stderr
    assert '"resumed": true' in done.stdout
    assert f'"access_keys.sealed_secret": {rotation.BATCH + 100}' in done.stdout, "what was written is not written again"
    [after] = data_keys(database)
    assert after != before
    for ring in (process, None):
        assert found(database_url, *(each.access_key_id for each in sample), ring=ring) == [each.secret for each in sample]


def test_a_secret_that_is_committed_late_is_not_left_under_the_old_key(database_url: str, database: psycopg.Connection) -> None:
    create_project(database, "one")
    ring = Keyring(MasterKey(os.urandom(32)))
    with database.transaction():
        ring.seal(database, SECRET, "AKIA0", b"makes the first data key")

    def rotate() -> None:
        with psycopg.connect(database_url, autocommit=True) as connection:
            done.append(rotation.rotate(connection, ring, SEALED))

    done: list[rotation.Rotated] = []
    with psycopg.connect(database_url) as late:
        sealed = ring.seal(late, SECRET, "AKIALATE", b"late")
        thread = threading.Thread(target=rotate)
        thread.start()
        blocked = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        until(lambda: database.execute(blocked).rowcount, "the rotation waits for the writer")
        late.execute(
            "insert into access_keys (access_key_id, sealed_secret, project_id) select 'AKIALATE', %s, id from projects",
            [sealed],
        )
        late.commit()
    thread.join()
    assert done[0].secrets == {"access_keys.sealed_secret": 1}
    assert data_keys(database) == {keyring.header_of(done[0].data_key)}
    assert found(database_url, "AKIALATE", ring=Keyring(ring.master)) == ["late"]


def test_a_new_master_key_takes_over_while_processes_still_have_the_old_one(
    database_url: str, database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = create_project(database, "one")
    masters = [os.urandom(32) for _ in range(2)]

    def with_master(key: bytes) -> Keyring:
        monkeypatch.setenv("TIDINGS_SECRETS__MASTER_KEY", base64.b64encode(key).decode())
        return Keyring(MasterKey(key))

    old, new = (Keyring(MasterKey(key)) for key in masters)
    with_master(masters[0])
    first = api_keys.create(database, project)
    both = rotation.rotate(database, old, SEALED, new.master)
    assert both.masters == sorted([old.master.id, new.master.id])
    by_old = api_keys.create(database, project)
    with_master(masters[1])
    by_new = api_keys.create(database, project)
    three = [first, by_old, by_new]
    for ring in (old, new):
        assert found(database_url, *(each.access_key_id for each in three), ring=ring) == [each.secret for each in three]
    alone = rotation.rotate(database, Keyring(new.master), SEALED)
    assert (alone.masters, alone.resumed) == ([new.master.id], False)
    assert found(database_url, first.access_key_id, ring=Keyring(new.master)) == [first.secret]
    with pytest.raises(OperatorError, match=f"secrets are under {new.master.id}"):
        found(database_url, first.access_key_id, ring=Keyring(old.master))
    rotation.rotate(database, Keyring(new.master), SEALED)
    assert database.execute("select count(*) from data_keys where master = %s", [old.master.id]).fetchone() == (0,)


def test_a_rotation_under_the_former_master_key_changes_nothing_once_one_under_the_new_has_begun(
    database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (Keyring(MasterKey(os.urandom(32))) for _ in range(2))
    monkeypatch.setenv("TIDINGS_SECRETS__MASTER_KEY", base64.b64encode(old.master.key).decode())
    made = api_keys.create(database, create_project(database, "one"))
    rotation.rotate(database, old, SEALED, new.master)
    with pytest.raises(RuntimeError, match="killed"):
        rotation.rotate(database, new, SEALED, progress=_killed)
    before = database.execute("select id, master from data_keys order by number, master").fetchall()
    with pytest.raises(OperatorError, match=f"a rotation under {new.master.id} has begun"):
        rotation.rotate(database, Keyring(old.master), SEALED)
    assert database.execute("select id, master from data_keys order by number, master").fetchall() == before
    assert rotation.rotate(database, Keyring(new.master), SEALED).resumed
    ring = Keyring(new.master)
    assert canary.unsealed(database, SECRET, ring) == [made.secret.encode()]


def test_a_plain_rotation_locks_out_nobody_who_has_the_new_master_key_already(
    database_url: str, database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (Keyring(MasterKey(os.urandom(32))) for _ in range(2))
    monkeypatch.setenv("TIDINGS_SECRETS__MASTER_KEY", base64.b64encode(old.master.key).decode())
    made = api_keys.create(database, create_project(database, "one"))
    rotation.rotate(database, old, SEALED, new.master)
    with pytest.raises(OperatorError, match=f"the master key {new.master.id} takes its place"):
        rotation.rotate(database, Keyring(old.master), SEALED)
    again = rotation.rotate(database, Keyring(old.master), SEALED, new.master)
    assert again.masters == sorted([old.master.id, new.master.id])
    assert opens(database_url, old, new, Keyring(MasterKey(os.urandom(32)))) == [True, True, False]
    assert rotation.rotate(database, Keyring(new.master), SEALED).masters == [new.master.id]
    assert opens(database_url, old, new) == [False, True]
    assert found(database_url, made.access_key_id, ring=Keyring(new.master)) == [made.secret]
    assert rotation.rotate(database, Keyring(new.master), SEALED).masters == [new.master.id], "and the next one is plain again"


def opens(database_url: str, *rings: Keyring) -> list[bool]:
    async def work() -> list[bool]:
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            return [await ring.opens(connection) for ring in rings]

    return asyncio.run(work())


def test_a_secret_that_nobody_can_read_stops_no_rotation_and_is_named(database_url: str, database: psycopg.Connection) -> None:
    project = create_project(database, "one")
    good, damaged, lost = (api_keys.create(database, project) for _ in range(3))
    change = "update access_keys set sealed_secret = {} where access_key_id = %s"
    database.execute(change.format(r"sealed_secret || '\x00'").encode(), [damaged.access_key_id])
    database.execute(change.format("overlay(sealed_secret placing '0123456789abcdef' from 2)").encode(), [lost.access_key_id])
    done = rotation.rotate(database, Keyring(keyring.of_process().master), SEALED)
    assert len(done.undecryptable) == 2
    for each, words in ((damaged, f"of {damaged.access_key_id} cannot be decrypted"), (lost, "which is not in data_keys")):
        assert any(words in text for text in done.undecryptable), each
    assert database.execute("select count(*) from data_keys where retired_at is null").fetchone() == (1,)
    assert found(database_url, good.access_key_id) == [good.secret]


def _killed(_: int) -> None:
    raise RuntimeError("killed")


def test_a_signing_key_that_is_old_is_replaced_and_its_certificate_stays(
    database_url: str, database: psycopg.Connection
) -> None:
    settings = Settings(database={"url": database_url})

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            first = await signing.load(connection, settings)
            assert (await signing.load(connection, settings)).url == first.url
            database.execute("update signing_keys set created_at = now() - interval '366 days'")
            second, third = await asyncio.gather(*(_load() for _ in range(2)))
            assert first.url != second.url == third.url, "whoever is second takes what the first has made"
            for signer in (first, second):
                path = signing.certificate_path(signer.certificate)
                assert await signing.find_certificate(connection, path) == signer.certificate
            assert await signing.find_certificate(connection, "/SimpleNotificationService-x.pem") is None

    async def _load() -> signing.Signer:
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            return await signing.load(connection, settings)

    asyncio.run(work())
    assert database.execute("select count(*), count(sealed_key) from signing_keys").fetchone() == (2, 1)


def test_a_signing_key_is_replaced_while_its_certificate_is_good_for_a_year_whatever_the_setting_was(
    database_url: str, database: psycopg.Connection
) -> None:
    private, certificate = signing._made("localhost", 364)
    id_ = signing.certificate_id(certificate)
    with database.transaction():
        sealed = keyring.of_process().seal(database, signing.SIGNING_KEY, id_, private)
        insert = "insert into signing_keys (id, sealed_key, certificate) values (%s, %s, %s)"
        database.execute(insert, [id_, sealed, certificate.decode()])

    async def work() -> list[bytes]:
        settings = Settings(database={"url": database_url}, topics={"signing_key_days": 3650})
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            return [(await signing.load(connection, settings)).certificate for _ in range(2)]

    first, second = asyncio.run(work())
    assert certificate != first == second
