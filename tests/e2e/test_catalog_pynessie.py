"""pynessie, the client and its command, unchanged, against the server: each step with its events, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from nessie_client import Failed, Nessie, installed
from s3_server import Server, s3_server

import canary
from catalog_changes import Told, table
from conftest import fresh_database
from tidings.access import api_keys
from tidings.local.postgres import Postgres

CREATED, UPDATED, DELETED = "REFERENCE_CREATED", "REFERENCE_UPDATED", "REFERENCE_DELETED"
STORED, REMOVED = "CONTENT_STORED", "CONTENT_REMOVED"


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pynessie's environment: kept from run to run where pytest has a cache."""
    cache = getattr(request.config, "cache", None)
    return installed(cache.mkdir("pynessie") if cache is not None else tmp_path_factory.mktemp("pynessie"))


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("catalog")
    with s3_server(fresh_database(postgres, "catalog_pynessie"), folder, TIDINGS_API__WORKERS="1") as running:
        yield running


@pytest.fixture
def told(server: Server) -> Iterator[Told]:
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        found = Told(connection)
        found.rows()
        yield found


@pytest.fixture
def nessie(server: Server, programs: Path, tmp_path: Path, told: Told) -> Iterator[Nessie]:
    """A project of its own, with a key that has two roles."""
    assert told
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        row = connection.execute("insert into projects (name) values (%s) returning public_id", [tmp_path.name]).fetchone()
        assert row is not None
        key = api_keys.create(connection, row[0], roles=["analyst", "admin"])
    canary.plant(server.database_url)
    made = Nessie(programs, tmp_path, f"{server.endpoint}/-/catalog/api/v1", key.api_key)
    made.project, made.who = row[0], key.access_key_id  # type: ignore[attr-defined]
    yield made
    made.close()


def head(nessie: Nessie, name: str = "main") -> str:
    found: str = nessie("get_reference", name)["hash"]
    return found


def put(name: str, *elements: str, **more: Any) -> list[Any]:
    return ["put", list(elements), {**table(name), "id": None, **more}]


def test_the_client_does_everything_and_each_step_has_its_events(nessie: Nessie, told: Told) -> None:
    who: str = nessie.who  # type: ignore[attr-defined]
    project: str = nessie.project  # type: ignore[attr-defined]

    # The first call makes the repository: an event for its default branch, and none for a commit.
    default = nessie("get_reference", None)
    assert (default["type"], default["name"]) == ("BRANCH", "main")
    beginning = default["hash"]
    (first,) = told.events()
    assert {name: value for name, value in first.items() if name not in ("id", "eventCreationTimestamp", "sentBy")} == {
        "type": CREATED,
        "repositoryId": project,
        "eventInitiator": who,
        "reference": {"type": "BRANCH", "name": "main", "fullName": "/refs/heads/main", "hash": beginning},
        "hashAfter": beginning,
    }
    assert first["sentBy"].startswith("tidings@")

    one = nessie("commit", "main", beginning, "one", "ann", put("t1", "a", "t1"), put("t2", "a", "t2"))["hash"]
    commit, *stored = told.events()
    assert commit["type"] == "COMMIT"
    assert (commit["hashBefore"], commit["hashAfter"], commit["reference"]["hash"]) == (beginning, one, one)
    meta = commit["commitMeta"]
    assert (meta["hash"], meta["committer"], meta["authors"], meta["message"]) == (one, who, ["ann"], "one")
    assert meta["parentCommitHashes"] == [beginning]
    assert [(each["type"], each["contentKey"]["elements"], each["contentType"], each["hash"]) for each in stored] == [
        (STORED, ["a", "t1"], "ICEBERG_TABLE", one),
        (STORED, ["a", "t2"], "ICEBERG_TABLE", one),
    ]
    content = nessie("get_content", "main", ["key", ["a", "t1"]])
    assert stored[0]["content"] == content == {**table("t1"), "id": content["id"]}
    assert stored[0]["commitCreationTimestamp"] == meta["commitTime"]
    assert told.events() == []  # reading is no event

    nessie("create_branch", "dev", "main", one)
    nessie("create_tag", "v1", "main", one)
    branch, tag = told.events()
    assert (branch["type"], branch["reference"]["fullName"], branch["hashAfter"]) == (CREATED, "/refs/heads/dev", one)
    assert (tag["type"], tag["reference"]["fullName"], tag["hashAfter"]) == (CREATED, "/refs/tags/v1", one)

    dev = nessie("commit", "dev", one, "two", None, put("t3", "a", "t3"), ["delete", ["a", "t2"]])["hash"]
    commit, stored_, removed = told.events()
    assert (commit["type"], stored_["type"]) == ("COMMIT", STORED)
    assert (removed["type"], removed["contentKey"]["elements"], removed["contentType"]) == (
        REMOVED,
        ["a", "t2"],
        "ICEBERG_TABLE",
    )
    assert "content" not in removed

    differences = nessie("get_diff", "main", "dev")["diffs"]
    assert [(each["key"]["elements"], each["from"] is None, each["to"] is None) for each in differences] == [
        (["a", "t2"], False, True),
        (["a", "t3"], True, False),
    ]

    merged = nessie("merge", "dev", "main")
    assert merged["wasApplied"]
    assert merged["wasSuccessful"]
    assert (merged["commonAncestor"], merged["effectiveTargetHash"]) == (one, one)
    after = merged["resultantTargetHash"]
    assert head(nessie) == after
    merge, commit, *rest = told.events()
    assert (merge["type"], merge["sourceReference"]["name"], merge["sourceHash"]) == ("MERGE", "dev", dev)
    assert (merge["targetReference"]["name"], merge["hashBefore"], merge["hashAfter"]) == ("main", one, after)
    assert merge["commonAncestorHash"] == one
    assert (commit["type"], commit["hashAfter"], commit["commitMeta"]["parentCommitHashes"]) == ("COMMIT", after, [one, dev])
    assert [(each["type"], each["hash"]) for each in rest] == [(REMOVED, after), (STORED, after)]

    four = nessie("commit", "dev", dev, "four", None, put("t4", "t4"))["hash"]
    five = nessie("commit", "dev", four, "five", None, put("t5", "t5"))["hash"]
    told.events()
    picked = nessie("cherry_pick", "main", "dev", None, four, five)
    transplant, *rest = told.events()
    assert (transplant["type"], transplant["sourceReference"]["name"], transplant["commitCount"]) == ("TRANSPLANT", "dev", 2)
    assert (transplant["hashBefore"], transplant["hashAfter"]) == (after, picked["resultantTargetHash"])
    assert [each["type"] for each in rest] == ["COMMIT", STORED, "COMMIT", STORED]
    assert rest[0]["hashBefore"] == after
    assert rest[2]["hashAfter"] == picked["resultantTargetHash"]
    assert rest[1]["hash"] == rest[0]["hashAfter"] != rest[3]["hash"]

    log = nessie("get_log", "main", fetch_all=True)
    assert [each["commitMeta"]["message"] for each in log] == ["five", "four", log[2]["commitMeta"]["message"], "one"]
    assert [each["parentCommitHash"] for each in log] == [each["commitMeta"]["hash"] for each in log[1:]] + [beginning]
    assert [operation["type"] for operation in log[3]["operations"]] == ["PUT", "PUT"]
    assert [each["commitMeta"]["message"] for each in nessie("get_log", "main", max_records=2)] == ["five", "four"]

    nessie("assign_branch", "dev", "main")
    nessie("assign_tag", "v1", "main")
    nessie("assign_tag", "v1", "main")  # to where it is: nothing happens
    branch, tag = told.events()
    assert (branch["type"], branch["hashBefore"], branch["hashAfter"]) == (UPDATED, five, head(nessie))
    assert (tag["type"], tag["reference"]["type"], tag["hashBefore"]) == (UPDATED, "TAG", one)

    nessie("delete_branch", "dev", head(nessie))
    nessie("delete_tag", "v1", head(nessie))
    branch, tag = told.events()
    assert (branch["type"], branch["reference"]["name"], branch["hashBefore"]) == (DELETED, "dev", head(nessie))
    assert (tag["type"], tag["reference"]["fullName"]) == (DELETED, "/refs/tags/v1")
    assert [each["name"] for each in nessie("list_references", fetch_all=True)["references"]] == ["main"]


def test_the_client_understands_every_refusal(nessie: Nessie, told: Told) -> None:
    beginning = head(nessie)
    one = nessie("commit", "main", beginning, "one", None, put("t1", "t1"))["hash"]
    told.rows()

    def refused(name: str, *arguments: Any) -> tuple[str, str]:
        with pytest.raises(Failed) as failed:
            nessie(name, *arguments)
        return failed.value.name, failed.value.code

    missing, conflict = "NessieReferenceNotFoundException", "NessieReferenceConflictException"
    assert refused("get_reference", "nowhere") == (missing, "REFERENCE_NOT_FOUND")
    assert refused("create_branch", "main", "main", one) == (
        "NessieReferenceAlreadyExistsException",
        "REFERENCE_ALREADY_EXISTS",
    )
    assert refused("get_content", "main", ["key", ["none"]]) == ("NessieContentNotFoundException", "CONTENT_NOT_FOUND")
    assert refused("commit", "main", beginning, "", None, put("t1", "t1")) == (conflict, "REFERENCE_CONFLICT")
    assert refused("commit", "main", "f" * 64, "", None, put("t1", "t1")) == (missing, "REFERENCE_NOT_FOUND")
    assert refused("commit", "main", one, "", None, ["delete", ["none"]]) == (conflict, "REFERENCE_CONFLICT")
    assert refused("delete_branch", "main", one) == ("NessieException", "BAD_REQUEST")
    assert refused("assign_branch", "main", "main", one, beginning) == (conflict, "REFERENCE_CONFLICT")
    assert told.events() == []


def test_the_command_does_everything(nessie: Nessie, told: Told) -> None:
    def listed(kind: str) -> dict[str, str]:
        return {each["name"]: each["hash"] for each in json.loads(nessie.run("--json", kind))}

    beginning = listed("branch")["main"]
    assert told.types() == [CREATED]
    content = json.dumps({**table("t1"), "id": "id-1"})
    said = nessie.run("content", "commit", "-i", "-m", "one", "--author", "ann", "-c", beginning, "a.t1", input=content)
    assert "committed" in said
    assert told.types() == ["COMMIT", STORED]
    one = listed("branch")["main"]

    nessie.run("branch", "dev")
    nessie.run("tag", "v1", f"main@{beginning}")
    assert told.types() == [CREATED, CREATED]
    assert listed("tag") == {"v1": beginning}

    changed = json.dumps({**table("t1", snapshotId=7), "id": "id-1"})
    nessie.run("content", "commit", "-i", "-r", "dev", "-m", "two", "-c", one, "a.t1", input=changed)
    assert told.types() == ["COMMIT", STORED]
    two = listed("branch")["dev"]
    assert "snapshot-id: 7" in nessie.run("content", "view", "-r", "dev", "a.t1")
    assert "a.t1" in nessie.run("content", "list", "-t", "ICEBERG_TABLE")
    assert nessie.run("content", "list", "--filter", "entry.namespace.startsWith('b')").strip() == ""
    assert "snapshot-id: 7" in nessie.run("diff", "main", "dev")

    assert "Resultant hash" in nessie.run("merge", "-f", "dev")
    assert told.types() == ["MERGE", "COMMIT", STORED]
    nessie.run("content", "commit", "-R", "-r", "dev", "-m", "three", "-c", two, "a.t1")
    three = listed("branch")["dev"]
    told.types()
    assert "Cherry-picked" in nessie.run("cherry-pick", "-f", "-s", "dev", three)
    assert told.types() == ["TRANSPLANT", "COMMIT", REMOVED]

    log = json.loads(nessie.run("--json", "log", "main"))
    assert [each["message"] for each in log] == ["three", log[1]["message"], "one"]
    assert [each["message"] for each in json.loads(nessie.run("--json", "log", "--author", "ann"))] == ["one"]
    until = ["--since", "2001-01-01T00:00:00+00:00", "--until", "2001-01-02T00:00:00+00:00"]
    assert json.loads(nessie.run("--json", "log", *until)) == []
    assert "Put of a.t1" in nessie.run("log", "-x", f"main@{one}")

    nessie.run("tag", "-f", "v1", "main")
    nessie.run("tag", "-d", "v1")
    nessie.run("branch", "-d", "dev")
    assert told.types() == [UPDATED, DELETED, DELETED]
    failed = nessie.tried("branch", "-d", "dev")
    assert failed.returncode == 1
    assert "REFERENCE_NOT_FOUND" in failed.stdout
    assert "total commits: 3" in nessie.run("branch", "-x")
    assert told.types() == []


def test_a_conflict_names_the_keys_and_changes_nothing(nessie: Nessie, told: Told) -> None:
    beginning = head(nessie)
    one = nessie("commit", "main", beginning, "one", None, put("t1", "t1"), put("t2", "t2"))["hash"]
    id = nessie("get_content", "main", ["key", ["t1"]])["id"]
    nessie("create_branch", "dev", "main", one)
    nessie("commit", "dev", one, "dev", None, put("x", "t1", id=id), put("t3", "t3"))
    two = nessie("commit", "main", one, "two", None, put("y", "t1", id=id))["hash"]
    told.rows()
    for call in (("commit", "main", one, "late", None, put("z", "t1", id=id), put("t4", "t4")), ("merge", "dev", "main")):
        with pytest.raises(Failed) as failed:
            nessie(*call)
        assert failed.value.code == "REFERENCE_CONFLICT"
        assert "'t1'" in failed.value.message
        assert "'t3'" not in failed.value.message
    assert head(nessie) == two
    assert told.events() == []
    # Behind the head, but about other keys: no conflict.
    nessie("commit", "main", one, "late", None, put("t4", "t4"))
    assert told.types() == ["COMMIT", STORED]
