"""The real commands with TIDINGS_LOG__FORMAT=json: every line that they write is one JSON object."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from s3_server import request, s3_server

from conftest import running_stack
from tidings.local import pubsub
from traffic import collecting, send_events, tidings
from waiting import until

JSON = {"TIDINGS_LOG__FORMAT": "json"}


def lines(file: Path) -> list[dict[str, Any]]:
    """What is in a log so far, checked line by line; the last one may still be under way."""
    found = [json.loads(line) for line in file.read_text().split("\n")[:-1]]
    for line in found:
        assert {"time", "level", "logger", "message"} <= set(line), line
        assert line["time"].endswith("Z")
    return found


def test_a_request_that_fails_and_a_process_that_dies_are_objects_with_fields(database_url: str, tmp_path: Path) -> None:
    with s3_server(database_url, tmp_path, TIDINGS_API__WORKERS="2", **JSON) as server:
        log = tmp_path / "server.log"
        assert request(server, "PUT", "/bucket").status == 200
        for child in psutil.Process(server.process.pid).children():
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        answer = request(server, "PUT", "/bucket/a%0Akey", body=bytes(3 << 20))
        assert answer.status in (400, 500)
        answer = request(server, "PUT", "/bucket/key", body=bytes(3 << 20))
        assert answer.status == 500
        [failed] = [line for line in lines(log) if line.get("request_id") == answer.headers["x-amz-request-id"]]
        assert (failed["level"], failed["method"], failed["resource"]) == ("ERROR", "PUT", "/bucket/key")
        assert failed["exception"].startswith("Traceback")
        assert "File too large" in failed["exception"]
        psutil.Process(server.process.pid).children()[0].kill()
        until(lambda: [line for line in lines(log) if "Unexpected exit" in line["message"]], "the server to notice")
        hosts: set[str] = set()  # one that is still starting would not hear that it is to stop
        until(lambda: hosts.add(request(server, "HEAD", "/bucket").headers["x-amz-id-2"]) or len(hosts) == 2, "its successor")
        password = psycopg.conninfo.conninfo_to_dict(database_url)["password"]
        assert str(password) not in log.read_text()


def test_what_only_the_operator_can_mend_is_an_object_too() -> None:
    for command in ("stream", "up"):
        done = tidings(command, JAVA_HOME="/nowhere", TIDINGS_DATABASE__URL="postgresql://me:hush@127.0.0.1:1/x", **JSON)
        [line] = [json.loads(line) for line in done.stderr.splitlines()]
        assert (done.returncode, line["level"], done.stdout) == (2, "CRITICAL", "")
        assert "Java 17" in line["message"]


@pytest.mark.chaos
def test_a_whole_stack_with_spark_in_it_writes_nothing_else(tmp_path: Path) -> None:
    with running_stack(tmp_path, **JSON) as stack, collecting(stack) as collector:
        send_events(stack, collector, "my-bucket")
        [topic] = pubsub.get_stats(stack.ready["pubsub"])
        pubsub.set_fault(stack.ready["pubsub"], topic, "unavailable")
        stack.s3().put_object(Bucket="my-bucket", Key="key", Body=b"x")
        log = stack.data / "logs" / "stream.log"
        [behind] = until(lambda: [each for each in lines(log) if "falls behind" in each["message"]][:1], "a lane behind")
        assert (behind["level"], behind["late"]) == ("WARNING", False)
        retry = until(lambda: [each for each in lines(log) if "attempts" in each], "its next try")[0]
        assert (retry["lane"], retry["cursor"], retry["level"]) == (behind["lane"], behind["cursor"], "WARNING")
        [ours] = [each for each in lines(log) if "the stream is ours" in each["message"]]
        assert ours["epoch"] >= 1
        stack.kill("pubsub")
        up = tmp_path / "up.log"
        until(lambda: [each for each in lines(up) if each.get("part") == "pubsub"], "Pub/Sub to be started again")
        password = psycopg.conninfo.conninfo_to_dict(stack.ready["database"])["password"]
        secrets = [str(password), stack.ready["secret_access_key"]]
    assert [each["message"] for each in lines(up)][-1] == "stopped"
    assert [each["s3"] for each in lines(up) if each["message"] == "ready"]
    assert lines(stack.data / "logs" / "api.log") is not None
    for file in (up, log, stack.data / "logs" / "api.log"):
        assert not [secret for secret in secrets if secret in file.read_text()], file
