"""The catalog's front, request by request: who may, what comes in pages, and what is refused without a trace."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from s3_server import Server, s3_server

import canary
from catalog_changes import Told, table
from conftest import fresh_database
from tidings.access import api_keys
from tidings.access.macaroons import Caveat, Macaroon
from tidings.access.permissions import ACTIONS, READ_CATALOG, WRITE_CATALOG
from tidings.local.postgres import Postgres

ANYBODY = "the-open-project"


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    url = fresh_database(postgres, "catalog_api")
    settings = {"TIDINGS_API__WORKERS": "1", "TIDINGS_CATALOG__ANONYMOUS_PROJECT": ANYBODY, "TIDINGS_CATALOG__SENT_BY": "here"}
    with s3_server(url, tmp_path_factory.mktemp("catalog_api"), **settings) as running:
        running.query("insert into projects (name, public_id) values ('open', %s) returning 1", ANYBODY)
        yield running


@dataclass
class Client:
    server: Server
    key: str | None
    project: str = ""
    who: str = ""

    def __call__(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            sent = {"authorization": f"Bearer {self.key}"} if self.key else {}
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, f"/-/catalog/api/v1{path}", content, sent | (headers or {}))
            response = connection.getresponse()
            data = response.read()
            canary.answered({name.lower(): value for name, value in response.getheaders()}, data)
            return response.status, json.loads(data) if data else None
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, document = self("GET", path)
        assert status == 200, document
        return document

    def commit(self, *keys: str, branch: str = "main", **meta: Any) -> str:
        puts = [{"type": "PUT", "key": {"elements": each.split(".")}, "content": table(each)} for each in keys]
        status, made = self("POST", f"/trees/branch/{quote(branch, '')}/commit", {"commitMeta": meta, "operations": puts})
        assert status == 200, made
        found: str = made["hash"]
        return found


def client_of(server: Server, name: str, **options: Any) -> Client:
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        row = connection.execute(
            "insert into projects (name) values (%s) on conflict (name) do update set name = excluded.name returning public_id",
            [name],
        ).fetchone()
        assert row is not None
        made = api_keys.create(connection, row[0], **options)
    canary.plant(server.database_url)
    return Client(server, made.api_key, row[0], made.access_key_id)


@pytest.fixture
def client(server: Server, request: pytest.FixtureRequest) -> Client:
    return client_of(server, request.node.name)


@pytest.fixture
def told(server: Server) -> Iterator[Told]:
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        found = Told(connection)
        found.rows()
        yield found


def everything(server: Server) -> list[Any]:
    tables = ("references", "commits", "contents", "lines", "merges")
    return [server.query(f"select * from catalog_{name} order by 1, 2, 3") for name in tables] + [
        server.query("select * from changes order by seq")
    ]


def test_a_request_needs_a_key_that_allows_it(server: Server, client: Client, told: Told) -> None:
    client.get("/trees/tree")
    told.rows()
    before = everything(server)
    name = "keys"
    reading = client_of(server, name, actions=[READ_CATALOG])
    writing = client_of(server, name, actions=[WRITE_CATALOG])
    neither = client_of(server, name, actions=[each for each in ACTIONS if "Catalog" not in each])
    limited = client_of(server, name, limit=Caveat(buckets=frozenset({"b"})))
    over = client_of(server, name, limit=Caveat(not_after=1))
    put = ("POST", "/trees/tree", {"type": "BRANCH", "name": "new"})
    for who, method_and_path in (
        (Client(server, "tdk1-nonsense"), ("GET", "/trees")),
        (Client(server, ""), ("GET", "/trees")),
    ):
        headers = {"authorization": "Basic YTpi"} if not who.key else None
        status, refusal = who(*method_and_path, headers=headers)
        assert (status, refusal["status"], refusal["reason"]) == (401, 401, "Unauthorized")
    for who, call in ((reading, put), (writing, ("GET", "/trees")), (neither, put), (limited, put), (over, put)):
        status, refusal = who(*call)
        assert (status, refusal["errorCode"]) == (403, "FORBIDDEN")
    assert everything(server) == before
    assert writing(*put)[0] == 200
    assert reading("GET", "/trees")[0] == 200


def test_who_calls_is_told_with_their_roles(server: Server, told: Told) -> None:
    client = client_of(server, "roles", roles=["analyst", "team/a"])
    client.commit("a")
    rows = told.rows()
    assert {row["principal"] for row in rows} == {client.who}
    assert {row["metadata"] for row in rows} == {'["analyst", "team/a"]'}
    assert {row["source_ip"] for row in rows} == {"127.0.0.1"}
    assert all(row["catalog"]["sentBy"] == "here" for row in rows)
    # A key that was narrowed elsewhere speaks for the one that it was made of.
    assert client.key is not None
    narrowed = str(Macaroon.parse(client.key).restricted(Caveat(actions=frozenset({WRITE_CATALOG}))))
    Client(server, narrowed).commit("b")
    assert {(row["principal"], row["metadata"]) for row in told.rows()} == {(client.who, '["analyst", "team/a"]')}


def test_anybody_may_where_the_operator_allows_it(server: Server, told: Told) -> None:
    anybody = Client(server, None)
    anybody.commit("a", message="from nobody")
    events = told.events()
    assert {event["repositoryId"] for event in events} == {ANYBODY}
    assert {event["eventInitiator"] for event in events} == {""}
    commit = next(event for event in events if event["type"] == "COMMIT")
    assert (commit["commitMeta"]["committer"], commit["commitMeta"]["authors"]) == ("", [])
    # With a key that is wrong nobody becomes anybody.
    assert Client(server, "wrong")("GET", "/trees")[0] == 401


def test_projects_do_not_see_each_other(server: Server, client: Client) -> None:
    other = client_of(server, "another")
    hash = client.commit("a")
    for path in (f"/trees/tree/DETACHED/log?endHash={hash}", f"/contents/a?ref=DETACHED&hashOnRef={hash}"):
        assert client("GET", path)[0] == 200
        assert other("GET", path)[1]["errorCode"] == "REFERENCE_NOT_FOUND"
    assert other("GET", "/contents/a")[1]["errorCode"] == "CONTENT_NOT_FOUND"
    body = {"type": "BRANCH", "name": "stolen", "hash": hash}
    assert other("POST", "/trees/tree", body)[1]["errorCode"] == "REFERENCE_NOT_FOUND"


def test_listings_come_in_pages(client: Client) -> None:
    keys = [f"n{place % 3}.t{place:02}" for place in range(23)]
    for key in keys:
        client.commit(key, message=key, author="ann" if key.startswith("n0") else "bob")
    for place in range(7):
        assert client("POST", "/trees/tree?sourceRefName=main", {"type": "TAG", "name": f"tag/{place}"})[0] == 200

    def pages(path: str, name: str, size: int) -> list[Any]:
        found: list[Any] = []
        token = ""
        while True:
            page = client.get(f"{path}{'&' if '?' in path else '?'}maxRecords={size}{f'&pageToken={token}' if token else ''}")
            assert len(page[name]) <= size
            found += page[name]
            if not page["hasMore"]:
                assert page["token"] is None
                return found
            assert len(page[name]) == size
            token = quote(page["token"])

    entries = pages("/trees/tree/main/entries", "entries", 5)
    assert [".".join(each["name"]["elements"]) for each in entries] == sorted(keys)
    log = pages("/trees/tree/main/log", "logEntries", 4)
    assert [each["commitMeta"]["message"] for each in log] == keys[::-1]
    references = pages("/trees", "references", 3)
    assert [each["name"] for each in references] == ["main", *(f"tag/{place}" for place in range(7))]
    ours = pages("/trees/tree/main/log?filter=" + quote("commit.author=='ann'"), "logEntries", 2)
    assert [each["commitMeta"]["message"] for each in ours] == [key for key in keys[::-1] if key.startswith("n0")]
    some = pages("/trees/tree/main/entries?filter=" + quote("entry.namespace.startsWith('n1')"), "entries", 3)
    assert len(some) == len([key for key in keys if key.startswith("n1")])
    spaces = pages("/trees/tree/main/entries?namespaceDepth=1", "entries", 2)
    assert spaces == [{"type": "NAMESPACE", "name": {"elements": [f"n{place}"]}} for place in range(3)]
    tags = client.get("/trees?filter=" + quote("ref.type == 'TAG'"))["references"]
    assert len(tags) == 7
    one = client.get(f"/trees/tree/{quote('tag/3', '')}")
    assert one == {"type": "TAG", "name": "tag/3", "hash": log[0]["commitMeta"]["hash"]}
    hashes = [each["commitMeta"]["hash"] for each in log]
    part = client.get(f"/trees/tree/main/log?startHash={hashes[5]}&endHash={hashes[2]}")["logEntries"]
    assert [each["commitMeta"]["hash"] for each in part] == hashes[2:5]


def test_contents_are_found_by_key_and_many_at_once(client: Client) -> None:
    made = client.commit("a.b", "c")
    key = quote("dotted\x1dname", "")
    operation = {
        "type": "PUT",
        "key": {"elements": ["dotted.name"]},
        "content": {"type": "MY_OWN", "anything": [1, {"x": None}]},
    }
    assert client("POST", "/trees/branch/main/commit", {"commitMeta": {}, "operations": [operation]})[0] == 200
    found = client.get(f"/contents/{key}?ref=main")
    assert found == {"type": "MY_OWN", "anything": [1, {"x": None}], "id": found["id"]}
    status, refusal = client("GET", f"/contents/{key}?ref=main&hashOnRef={made}")
    assert (status, refusal["errorCode"]) == (404, "CONTENT_NOT_FOUND")
    wanted = {"requestedKeys": [{"elements": ["a", "b"]}, {"elements": ["none"]}, {"elements": ["c"]}]}
    several = client("POST", "/contents?ref=main", wanted)[1]["contents"]
    assert [each["key"]["elements"] for each in several] == [["a", "b"], ["c"]]
    assert client.get("/config")["defaultBranch"] == "main"


def test_what_only_the_caller_of_a_merge_can_ask_for(client: Client, told: Told) -> None:
    one = client.commit("a")
    client("POST", "/trees/tree?sourceRefName=main", {"type": "BRANCH", "name": "dev"})
    client.commit("x", branch="dev")
    client.commit("y", branch="dev")
    told.rows()
    dry = client("POST", "/trees/branch/main/merge", {"fromRefName": "dev", "dryRun": True})[1]
    assert (dry["wasApplied"], dry["wasSuccessful"], dry["resultantTargetHash"]) == (False, True, one)
    assert len(dry["sourceCommits"]) == 2
    assert told.rows() == []
    kept = client("POST", "/trees/branch/main/merge", {"fromRefName": "dev", "keepIndividualCommits": True})[1]
    assert kept["wasApplied"]
    assert told.types() == ["MERGE", "COMMIT", "CONTENT_STORED", "COMMIT", "CONTENT_STORED"]
    id = client.get("/contents/a")["id"]
    for branch, snapshot in (("main", 7), ("dev", 8)):
        content = {**table("a"), "id": id, "snapshotId": snapshot}
        operation = {"type": "PUT", "key": {"elements": ["a"]}, "content": content}
        body = {"commitMeta": {}, "operations": [operation]}
        assert client("POST", f"/trees/branch/{branch}/commit", body)[0] == 200
    told.rows()
    wish = {"fromRefName": "dev", "returnConflictAsResult": True}
    status, result = client("POST", "/trees/branch/main/merge", wish)
    assert (status, result["wasSuccessful"], result["wasApplied"]) == (200, False, False)
    assert [(each["key"]["elements"], each["conflictType"]) for each in result["details"]] == [(["a"], "UNRESOLVABLE")]
    assert told.rows() == []


PUT_A = {"type": "PUT", "key": {"elements": ["a"]}, "content": table("a")}
COMMIT, MERGE, TRANSPLANT = (f"/trees/branch/main/{each}" for each in ("commit", "merge", "transplant"))
BAD: list[tuple[str, str, Any, int]] = [
    ("GET", "/nothing", None, 404),
    ("GET", "", None, 404),
    ("GET", "/trees/tree/main/other", None, 404),
    ("PATCH", "/trees", None, 404),
    ("POST", COMMIT, b"", 400),
    ("POST", COMMIT, b"{", 400),
    ("POST", COMMIT, b"[]", 400),
    ("POST", COMMIT, b"\xff", 400),
    ("POST", COMMIT, b"[" * 5000, 400),
    ("POST", COMMIT, {"commitMeta": {}, "operations": []}, 400),
    ("POST", COMMIT, {"commitMeta": {}, "operations": [1]}, 400),
    ("POST", COMMIT, {"commitMeta": {}, "operations": [{**PUT_A, "type": "MOVE"}]}, 400),
    ("POST", COMMIT, {"commitMeta": {}, "operations": [{**PUT_A, "key": {"elements": []}}]}, 400),
    ("POST", COMMIT, {"commitMeta": {}, "operations": [{**PUT_A, "key": {"elements": ["a\x1f"]}}]}, 400),
    ("POST", COMMIT, {"commitMeta": {}, "operations": [{**PUT_A, "key": None}]}, 400),
    ("POST", COMMIT, {"commitMeta": {}, "operations": [{**PUT_A, "content": {}}]}, 400),
    ("POST", COMMIT, {"commitMeta": {}, "operations": [{**PUT_A, "content": {"type": "T", "x": "\0"}}]}, 400),
    ("POST", COMMIT, {"commitMeta": {}, "operations": [PUT_A, PUT_A]}, 400),
    ("POST", COMMIT, {"commitMeta": {"committer": "me"}, "operations": [PUT_A]}, 400),
    ("POST", COMMIT, {"commitMeta": {"authorTime": "soon"}, "operations": [PUT_A]}, 400),
    ("POST", COMMIT, {"commitMeta": {"properties": {"a": 1}}, "operations": [PUT_A]}, 400),
    ("POST", COMMIT, {"commitMeta": [], "operations": [PUT_A]}, 400),
    ("POST", f"{COMMIT}?expectedHash=xyz", {"commitMeta": {}, "operations": [PUT_A]}, 400),
    ("POST", f"{COMMIT}?expectedHash={'f' * 64}", {"commitMeta": {}, "operations": [PUT_A]}, 404),
    ("POST", f"{COMMIT}?a=1&a=2", {"commitMeta": {}, "operations": [PUT_A]}, 400),
    ("POST", f"{COMMIT}?a=%ff", {"commitMeta": {}, "operations": [PUT_A]}, 400),
    ("POST", "/trees/branch/%ff/commit", {"commitMeta": {}, "operations": [PUT_A]}, 400),
    ("POST", "/trees/branch/no..name/commit", {"commitMeta": {}, "operations": [PUT_A]}, 400),
    ("POST", "/trees/branch/tagged/commit", {"commitMeta": {}, "operations": [PUT_A]}, 400),
    ("POST", "/trees/branch/nowhere/commit", {"commitMeta": {}, "operations": [PUT_A]}, 404),
    ("POST", MERGE, {}, 400),
    ("POST", MERGE, {"fromRefName": "nowhere"}, 404),
    ("POST", MERGE, {"fromRefName": "tagged", "fromHash": "xyz"}, 400),
    ("POST", MERGE, {"fromRefName": "tagged", "defaultKeyMergeMode": "FORCE"}, 400),
    ("POST", MERGE, {"fromRefName": "tagged", "dryRun": "yes"}, 400),
    ("POST", TRANSPLANT, {"fromRefName": "tagged"}, 400),
    ("POST", TRANSPLANT, {"fromRefName": "tagged", "hashesToTransplant": ["xyz"]}, 400),
    ("POST", TRANSPLANT, {"fromRefName": "tagged", "hashesToTransplant": ["f" * 64]}, 404),
    ("POST", "/trees/tree", {"type": "BRANCH"}, 400),
    ("POST", "/trees/tree", {"type": "OTHER", "name": "x"}, 400),
    ("POST", "/trees/tree", {"type": "TAG", "name": "x"}, 400),
    ("POST", "/trees/tree", {"type": "BRANCH", "name": "deadbeef"}, 400),
    ("POST", "/trees/tree", {"type": "BRANCH", "name": "main"}, 409),
    ("POST", "/trees/tree?sourceRefName=nowhere", {"type": "BRANCH", "name": "x"}, 404),
    ("PUT", "/trees/branch/main", {"type": "TAG", "name": "tagged"}, 400),
    ("PUT", f"/trees/branch/main?expectedHash={'f' * 64}", {"type": "TAG", "name": "tagged"}, 409),
    ("PUT", "/trees/other/main", {"type": "TAG", "name": "tagged"}, 404),
    ("DELETE", "/trees/branch/main", None, 400),
    ("DELETE", "/trees/tag/tagged", None, 400),
    ("DELETE", f"/trees/tag/tagged?expectedHash={'f' * 64}", None, 409),
    ("DELETE", f"/trees/branch/tagged?expectedHash={'f' * 64}", None, 400),
    ("GET", "/trees?maxRecords=many", None, 400),
    ("GET", "/trees?fetch=SOME", None, 400),
    ("GET", "/trees/tree/main/log?filter=commit.author", None, 400),
    ("GET", "/trees/tree/main/log?filter=size(commit.author)%3E1", None, 400),
    ("GET", "/trees/tree/main/entries?pageToken=%C3%A9", None, 400),
    ("GET", "/trees/tree/main/entries?hashOnRef=xyz", None, 400),
    ("GET", "/trees/tree/DETACHED", None, 404),
    ("GET", "/contents/a..b?ref=main", None, 400),
    ("GET", "/contents/a?ref=nowhere", None, 404),
    ("GET", "/diffs/main", None, 400),
    ("GET", "/diffs/main...nowhere", None, 404),
    ("GET", "/diffs/DETACHED...main", None, 400),
]


def test_bad_input_is_refused_clearly_and_changes_nothing(server: Server, client: Client, told: Told) -> None:
    client.commit("first")
    assert client("POST", "/trees/tree?sourceRefName=main", {"type": "TAG", "name": "tagged"})[0] == 200
    told.rows()
    before = everything(server)
    for method, path, body, wanted in BAD:
        status, refusal = client(method, path, body)
        assert status == wanted, (method, path, body, refusal)
        assert set(refusal) == {"status", "reason", "message", "errorCode", "serverStackTrace"}
        assert refusal["status"] == status
        assert refusal["message"]
    assert everything(server) == before
    assert told.rows() == []
    long = b'{"commitMeta": {"message": "' + b"x" * (5 * 1024 * 1024) + b'"}}'
    assert client("POST", COMMIT, long)[0] == 400


def test_calls_are_counted_by_their_names(server: Server, client: Client) -> None:
    client.commit("a")
    client("GET", "/a/path/that/somebody/wrote")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/-/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    assert 'operation="catalog:commit"' in text
    assert "somebody" not in text
