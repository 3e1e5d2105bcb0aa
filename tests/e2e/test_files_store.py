"""The file registry beside a real store: what events do not say is asked for, and files are validated by reading them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import psycopg
import pytest
from s3_server import Server, s3_server

import canary
import hostile_hdf5
from conftest import fresh_database
from files_registry import BUCKET, Topic, Webhook, add_atlas, event, files_webhook, record, rows, trusted_topic
from tidings.consumers.files import validating
from tidings.consumers.files.objects import Objects
from tidings.consumers.files.settings import FilesSettings
from tidings.local.postgres import Postgres
from waiting import PATIENCE_SECONDS

FOLDER = "gut/gut-v1/source-datasets"


@pytest.fixture(scope="module")
def database_url(postgres: Postgres) -> str:
    return fresh_database(postgres, "files_store")


@pytest.fixture(scope="module")
def topic() -> Iterator[Topic]:
    with trusted_topic() as found:
        yield found


@pytest.fixture(scope="module")
def store(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(database_url, tmp_path_factory.mktemp("store"), TIDINGS_API__WORKERS="1") as running:
        running.client().create_bucket(Bucket=BUCKET)
        yield running


@pytest.fixture(scope="module")
def webhook(database_url: str, topic: Topic, store: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    folder = tmp_path_factory.mktemp("files")
    with files_webhook(database_url, folder, topic.url, **reading(store), TIDINGS_FILES__MISSING_SHA256="await") as running:
        yield running


@pytest.fixture(autouse=True)
def database(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("truncate hat.files, hat.removals, hat.messages, hat.atlases, hat.source_studies cascade")
        yield connection


def reading(store: Server) -> dict[str, str]:
    return {
        "TIDINGS_FILES__S3_ENDPOINT": store.endpoint,
        "TIDINGS_FILES__S3_ACCESS_KEY_ID": store.access_key_id,
        "TIDINGS_FILES__S3_SECRET": store.secret,
    }


def put(store: Server, key: str, body: bytes, sha256: str | None = "") -> dict[str, Any]:
    """Store an object, and give the record that AWS would send: it has no metadata."""
    digest = hashlib.sha256(body).hexdigest() if sha256 == "" else sha256
    metadata = {} if digest is None else {"source-sha256": digest}
    answer = store.client().put_object(Bucket=BUCKET, Key=key, Body=body, Metadata=metadata)
    return record(key, sha256=None, etag=answer["ETag"].strip('"'), sequencer=next(_numbers))


_numbers = iter(range(1, 10_000))


def h5ad(**uns: str) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        for name, value in uns.items():
            file[f"uns/{name}"] = value
        file.require_group("uns")
    return out.getvalue()


def odd_h5ad() -> bytes:
    """Its DOI is of a type that numpy does not know."""
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        group = file.require_group("uns")
        h5py.h5d.create(group.id, b"doi", h5py.h5t.UNIX_D32LE, h5py.h5s.create(h5py.h5s.SCALAR))
    return out.getvalue()


def validate(database: psycopg.Connection, store: Server, again: bool = False) -> dict[str, int]:
    settings = FilesSettings(s3_endpoint=store.endpoint, s3_access_key_id=store.access_key_id, s3_secret=store.secret)
    return dict(validating.validate(database, Objects(settings), settings, again, 4))


class Validated(NamedTuple):
    status: int
    done: dict[str, Any]
    log: str
    peak_bytes: int
    """The most memory that the command, or any of its processes, had."""


_MEASURE = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024))
sys.exit(status)
"""
"""Runs a command and measures it. A child of the tests' own process would begin with all the memory that this one has."""


def command(database_url: str, store: Server, folder: Path) -> Validated:
    settings = {**os.environ, **reading(store), "TIDINGS_DATABASE__URL": database_url}
    said, log, peak = folder / "said.json", folder / "validate.log", folder / "peak"
    called = [sys.executable, "-c", _MEASURE, str(peak), sys.executable, "-m", "tidings", "files", "validate", "--json"]
    with said.open("wb") as out, log.open("wb") as err:
        process = subprocess.Popen(called, env=settings, stdout=out, stderr=err, start_new_session=True)
    timer = threading.Timer(PATIENCE_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    status = process.wait()
    timer.cancel()
    canary.seen(said.read_text(), log.read_text())
    return Validated(status, json.loads(said.read_text() or "{}"), log.read_text(), int(peak.read_text()))


def test_the_sha256_that_an_event_does_not_have_is_asked_for(
    webhook: Webhook, topic: Topic, store: Server, database: psycopg.Connection
) -> None:
    assert webhook.post(topic.message(event(put(store, f"{FOLDER}/a.h5ad", b"abc")))).status == 200
    assert rows(database, "sha256_client", "integrity_status") == [(hashlib.sha256(b"abc").hexdigest(), "pending")]
    wrong = webhook.post(topic.message(event(put(store, f"{FOLDER}/b.h5ad", b"abc", "no digest"))))
    assert (wrong.status, "SHA256 metadata is invalid" in wrong.error) == (400, True)


def test_one_that_is_awaited_is_found_by_validation(
    webhook: Webhook, topic: Topic, store: Server, database: psycopg.Connection
) -> None:
    """The object was written again before its first event came: what is there now is not what that event tells of."""
    first = put(store, f"{FOLDER}/a.h5ad", b"first")
    second = put(store, f"{FOLDER}/a.h5ad", b"second")
    assert webhook.post(topic.message(event(first))).status == 200
    assert rows(database, "sha256_client", "integrity_status") == [(None, "awaiting")]
    assert validate(database, store)["error"] == 1
    assert webhook.post(topic.message(event(second))).status == 200
    assert rows(database, "sha256_client", "integrity_status") == [(hashlib.sha256(b"second").hexdigest(), "pending")]
    database.execute("update hat.files set sha256_client = null, integrity_status = 'awaiting'")
    assert validate(database, store)["valid"] == 1
    assert rows(database, "sha256_client", "integrity_status") == [(hashlib.sha256(b"second").hexdigest(), "valid")]


def events_without_metadata_get_the_same_answers(
    strict: Webhook, topic: Topic, store: Server, database: psycopg.Connection
) -> None:
    """As AWS sends them. By the time that somebody asks, the object may be gone or be another: that is no missing SHA-256."""
    key = f"{FOLDER}/again.h5ad"
    first, second = put(store, key, b"first"), put(store, key, b"second")
    assert strict.post(topic.message(event(second))).body["inserted"] == 1
    stale = strict.post(topic.message(event(first)))
    assert (stale.status, stale.body) == (200, {"status": "processed", "stale": 1})
    store.client().put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    over = store.client().put_object(Bucket=BUCKET, Key=key, Body=b"over it", Metadata={"source-sha256": "ab" * 32})
    version, etag = over["VersionId"], over["ETag"].strip('"')
    database.execute("truncate hat.files")
    # The null version lies below a real one by now.
    assert strict.post(topic.message(event(second))).body["inserted"] == 1
    assert rows(database, "sha256_client") == [(hashlib.sha256(b"second").hexdigest(),)]
    of_version = record(key, sha256=None, version=version, etag=etag, sequencer=next(_numbers))
    assert strict.post(topic.message(event(of_version))).body["inserted"] == 1
    twice = strict.post(topic.message(event(of_version)))
    assert (twice.status, twice.body) == (200, {"status": "processed", "updated": 1})
    other = strict.post(topic.message(event(record(key, sha256=None, version=version, etag="1" * 32))))
    assert (other.status, other.error[:22]) == (500, "ETag mismatch detected")
    store.client().delete_object(Bucket=BUCKET, Key=key, VersionId=version)
    removed = record(key, version=version, event="ObjectRemoved:Delete", sequencer=next(_numbers))
    assert strict.post(topic.message(event(removed))).body["removed"] == 1
    late = strict.post(topic.message(event(of_version)))
    assert (late.status, late.body) == (200, {"status": "processed", "stale": 1})
    store.client().put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"})
    database.execute("truncate hat.files, hat.removals")


def test_without_the_setting_a_file_without_sha256_is_refused_and_a_store_that_is_away_is_tried_again(
    topic: Topic, store: Server, database: psycopg.Connection, database_url: str, tmp_path: Path
) -> None:
    with files_webhook(database_url, tmp_path, topic.url, **reading(store)) as strict:
        answer = strict.post(topic.message(event(put(store, f"{FOLDER}/a.h5ad", b"abc", None))))
        assert (answer.status, answer.error[:27]) == (400, "SHA256 metadata is required")
        events_without_metadata_get_the_same_answers(strict, topic, store, database)
    away = {**reading(store), "TIDINGS_FILES__S3_ENDPOINT": "http://127.0.0.1:1"}
    with files_webhook(database_url, tmp_path, topic.url, **away) as cut_off:
        answer = cut_off.post(topic.message(event(put(store, f"{FOLDER}/b.h5ad", b"abc"))))
        assert (answer.status, rows(database, "key")) == (500, [])


def test_validation_compares_digests_and_links_source_studies(
    webhook: Webhook, topic: Topic, store: Server, database: psycopg.Connection, database_url: str, tmp_path: Path
) -> None:
    [(study,)] = database.execute("insert into hat.source_studies (doi) values ('10.1234/known') returning id")
    add_atlas(database)
    integrated = "gut/gut-v1/integrated-objects/i.h5ad"
    records = [
        put(store, f"{FOLDER}/broken.h5ad", b"not HDF5"),
        put(store, f"{FOLDER}/odd.h5ad", odd_h5ad()),
        put(store, f"{FOLDER}/invalid.h5ad", b"other bytes", "ab" * 32),
        put(store, f"{FOLDER}/known.h5ad", h5ad(doi="https://doi.org/10.1234/KNOWN")),
        put(store, f"{FOLDER}/large.bin", b"x" * 3_000_000),
        put(store, f"{FOLDER}/unknown.h5ad", h5ad(doi="10.1234/unknown")),
        put(store, integrated, h5ad(doi="10.1234/known")),
        put(store, f"{FOLDER}/gone.h5ad", b"gone"),
    ]
    assert webhook.post(topic.message(event(*records))).body["inserted"] == 8
    store.client().delete_object(Bucket=BUCKET, Key=f"{FOLDER}/gone.h5ad")
    validated = command(database_url, store, tmp_path)
    assert validated.status == 1, "something is wrong with some of them"
    assert validated.done == {"files": 8, "valid": 6, "invalid": 1, "error": 1, "linked": 1, "unknown_doi": 1, "stopped": 0}
    found = {key.rpartition("/")[2]: rest for key, *rest in rows(database, "key", "integrity_status", "source_study_id")}
    assert found == {
        "broken.h5ad": ["valid", None],
        "gone.h5ad": ["error", None],
        "i.h5ad": ["valid", None],
        "invalid.h5ad": ["invalid", None],
        "known.h5ad": ["valid", study],
        "large.bin": ["valid", None],
        "odd.h5ad": ["valid", None],
        "unknown.h5ad": ["valid", None],
    }
    assert database.execute("select from hat.files where integrity_checked_at is null").rowcount == 0
    assert (
        database.execute("select from hat.files where (integrity_error is null) <> (integrity_status = 'valid')").rowcount == 0
    )
    assert validate(database, store)["files"] == 0
    assert validate(database, store, again=True)["files"] == 1


def test_hostile_files_are_as_valid_as_their_digests_and_the_next_file_is_linked(
    webhook: Webhook, topic: Topic, store: Server, database: psycopg.Connection, database_url: str, tmp_path: Path
) -> None:
    """One becomes 3 GiB, one says it is 4 GiB, HDF5 loops over one and crashes over another; one has a NUL in its DOI."""
    [(study,)] = database.execute("insert into hat.source_studies (doi) values (%s) returning id", [hostile_hdf5.DOI])
    known = {each.name: each.body for each in hostile_hdf5.known()}
    assert len(known["deflate-twice"]) < 12_000
    stopped = {
        "deflate-twice": "uns/doi has the same filter more than once",
        "string-of-4-gib": "it wants more than 268435456 bytes of memory (TIDINGS_FILES__H5AD_MEMORY_BYTES)",
        "heap-object-size-loop": "it takes more than 2 s of processor time (TIDINGS_FILES__H5AD_PROCESSOR_SECONDS)",
        "chunk-of-0-bytes": "HDF5 crashed over it",
    }
    bodies = {name: known[name] for name in (*stopped, "nul-in-doi")} | {"next": hostile_hdf5.good()}
    records = [put(store, f"{FOLDER}/{name}.h5ad", body) for name, body in bodies.items()]
    assert webhook.post(topic.message(event(*records))).body["inserted"] == len(bodies)
    validated = command(database_url, store, tmp_path)
    assert validated.peak_bytes < 600 << 20
    assert validated.status == 0
    assert validated.done == {"files": 6, "valid": 6, "invalid": 0, "error": 0, "linked": 1, "unknown_doi": 1, "stopped": 4}
    found = dict(
        database.execute("select split_part(key, '/', 4), source_study_id from hat.files where sha256_server is not null")
    )
    assert found == {f"{name}.h5ad": study if name == "next" else None for name in bodies}
    for name, words in stopped.items():
        assert f"{BUCKET}/{FOLDER}/{name}.h5ad has no DOI that can be read: {words}" in validated.log
