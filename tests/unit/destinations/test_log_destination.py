"""The log as a destination, in a process that logs nothing else, as Spark's workers."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import asyncio
from tidings import destinations, settings
from tidings.events.messages import Message
log = destinations.connect("arn:tidings:log:::my-log", settings.load())
sent = [Message("1", b'{"a": 1}', {"id": "1", "sequencer": "0A"}, b"key"), Message("2", bytes([255]), {"id": "2"})]
print(*asyncio.run(log.send(sent, 1.0)))
"""


def test_each_message_is_one_line_of_the_log_with_its_parts_as_fields(monkeypatch) -> None:
    monkeypatch.setenv("TIDINGS_LOG__FORMAT", "json")
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.count("sent") == 2
    first, second = (json.loads(line) for line in ended.stderr.splitlines())
    assert (first["level"], first["logger"], first["destination"]) == ("INFO", "tidings.destinations.log", "my-log")
    assert (first["message_id"], first["key"], first["body"]) == ("1", "key", '{"a": 1}')
    assert first["attributes"] == {"id": "1", "sequencer": "0A"}
    assert second["body"] == "\N{REPLACEMENT CHARACTER}"
