"""kill -9 of the API under committers: a commit of the log has its events in the stream, and no event is without its commit."""

from __future__ import annotations

import http.client
import json
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
from s3_server import s3_server
from test_sqs_kill import kill_and_start_again

from catalog_changes import Told, table
from conftest import Say, fresh_database
from tidings.access import api_keys
from tidings.local.postgres import Postgres

KILLS, WRITERS = 3, 4
BRANCHES = ("main", "dev")


def test_a_commit_and_its_events_are_there_together_or_not_at_all(tmp_path: Path, postgres: Postgres, say: Say) -> None:
    with s3_server(fresh_database(postgres, "catalog_kill"), tmp_path, TIDINGS_API__WORKERS="1") as server:
        with psycopg.connect(server.database_url, autocommit=True) as connection:
            key = api_keys.create(connection, server.project).api_key

        def call(method: str, path: str, body: Any = None) -> Any:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            try:
                headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
                connection.request(method, f"/-/catalog/api/v1{path}", json.dumps(body) if body else None, headers)
                response = connection.getresponse()
                document = json.loads(response.read() or "{}")
                return document if response.status == 200 else None
            finally:
                connection.close()

        call("POST", "/trees/tree?sourceRefName=main", {"type": "BRANCH", "name": "dev"})
        acknowledged: list[tuple[str, str]] = []
        over = threading.Event()

        def commit(who: int) -> None:
            number, branch = 0, BRANCHES[who % 2]
            while not over.is_set():
                number += 1
                operations = [
                    {"type": "PUT", "key": {"elements": [f"w{who}", f"t{number}-{part}"]}, "content": table(str(number))}
                    for part in range(2)
                ]
                try:
                    made = call("POST", f"/trees/branch/{branch}/commit", {"commitMeta": {}, "operations": operations})
                except (OSError, http.client.HTTPException, ValueError):
                    time.sleep(0.05)
                    continue
                if made is not None:
                    acknowledged.append((branch, made["hash"]))

        threads = [threading.Thread(target=commit, args=(who,)) for who in range(WRITERS)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(KILLS):
                time.sleep(1)
                kill_and_start_again(server)
            time.sleep(0.5)
        finally:
            over.set()
            for thread in threads:
                thread.join(120)

        with psycopg.connect(server.database_url, autocommit=True) as connection:
            events = Told(connection).events()
        logs = {branch: _log(call, branch) for branch in BRANCHES}
    for branch, log in logs.items():
        told = [event for event in events if event["reference"]["name"] == branch and event["type"] != "REFERENCE_CREATED"]
        said = [(event["type"], event.get("hashAfter") or event["hash"]) for event in told]
        assert said == [
            pair for hash in reversed(log) for pair in (("COMMIT", hash), ("CONTENT_STORED", hash), ("CONTENT_STORED", hash))
        ]
        assert {hash for where, hash in acknowledged if where == branch} <= set(log)
    total = sum(len(log) for log in logs.values())
    say(f"{total} commits in the log, {len(acknowledged)} of them acknowledged, {len(events)} events, {KILLS} kills")
    assert len(acknowledged) > 50


def _log(call: Any, branch: str) -> list[str]:
    found: list[str] = []
    token = ""
    while True:
        page = call("GET", f"/trees/tree/{branch}/log?maxRecords=100{f'&pageToken={token}' if token else ''}")
        found += [entry["commitMeta"]["hash"] for entry in page["logEntries"]]
        if not page["hasMore"]:
            return found
        token = page["token"]
