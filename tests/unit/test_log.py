"""A log line is one line, as text or as JSON, whatever is in it; and no secret is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

URL = "postgresql://me:hush-hush@db.internal/tidings"
SAYING = """
import logging, os, sys, threading
from pydantic import SecretStr
from tidings import log, settings
from tidings.events.positions import Position
loaded = settings.load()
log.to_stderr(loaded)
log.to_stderr(loaded)  # a forked process does so again
say = logging.getLogger("tests.saying")
{body}
"""


def said(body: str, **environment: str) -> tuple[int, list[str]]:
    """What a process writes that logs as the settings say. All its lines: also those of others that share its stderr."""
    variables = {**os.environ, "TIDINGS_DATABASE__URL": URL, **environment}
    done = subprocess.run([sys.executable, "-c", SAYING.format(body=body)], env=variables, capture_output=True, check=False)
    assert done.stdout == b""
    return done.returncode, done.stderr.decode().split("\n")[:-1]


def said_in_json(body: str, **environment: str) -> tuple[int, list[dict[str, Any]]]:
    status, lines = said(body, TIDINGS_LOG__FORMAT="json", **environment)
    assert all(len(line.splitlines()) == 1 for line in lines), "no character that some reader takes for a line's end"
    return status, [json.loads(line) for line in lines]


NASTY = r"a\nb\r\nc\x0bd\x0ce\x1cf\x85g\u2028h\u2029i\x00j\x1b[31m\ud800 \"quoted\" {}"


def test_a_line_of_json_has_its_time_level_logger_message_and_fields() -> None:
    _, [line] = said_in_json(
        "say.warning('lane %s', 3, extra={'lane': 3, 'cursor': Position(7, 1), 'late': False, 'share': 0.5, 'level': 'mine'})"
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "WARNING",
        "logger": "tests.saying",
        "message": "lane 3",
        "lane": 3,
        "cursor": "7/1",
        "late": False,
        "share": 0.5,
    }


def test_a_line_stays_one_line_whatever_is_in_it() -> None:
    message = NASTY.encode().decode("unicode_escape")
    _, lines = said_in_json(f'say.info("{NASTY}"); say.info("x", extra={{"key": "{NASTY}", "odd": float("nan")}})')
    assert [line["message"] for line in lines] == [message, "x"]
    assert (lines[1]["key"], lines[1]["odd"]) == (message, "nan")
    _, texts = said(f'say.info("{NASTY}"); say.info("x", extra={{"key": "{NASTY}"}})')
    assert [len(text.splitlines()) for text in texts] == [1, 1]
    assert "\x1b" not in "".join(texts), "nor can it colour the terminal"


def test_an_exception_is_in_its_line() -> None:
    _, [line] = said_in_json("try:\n    1 / 0\nexcept ZeroDivisionError:\n    say.exception('it failed')")
    assert line["message"] == "it failed"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ZeroDivisionError: division by zero")


def test_arguments_that_do_not_fit_cost_neither_the_line_nor_its_form() -> None:
    _, [line] = said_in_json("say.info('%d lanes', 'many')")
    assert "many" in line["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("raise ValueError('the end')", 1),
        ("threading.Thread(target=lambda: 1 / 0).start()", 0),
        ("import warnings; warnings.warn('beware')", 0),
        ("print('by hand', file=sys.stderr)", 0),
        ("os.write(2, b'from a library in C\\nERROR without an end of line')", 0),
        ("import subprocess; subprocess.run(['sh', '-c', 'echo of another program >&2'])", 0),
        ("import subprocess; subprocess.run(['sh', '-c', 'echo {} >&2'])", 0),
        ("if os.fork() == 0:\n    say.info('of a child'); os.write(2, b'stray of a child'); os._exit(0)\nos.wait()", 0),
    ],
)
def test_what_others_write_to_stderr_is_json_as_well(body: str, status: int) -> None:
    seen, lines = said_in_json(body)
    assert seen == status
    assert lines


def test_a_process_that_is_started_by_another_keeps_its_own_lines() -> None:
    inner = SAYING.format(body="say.info('inner', extra={'lane': 1})")
    _, [line] = said_in_json(f"import subprocess; subprocess.run([sys.executable, '-c', {inner!r}])")
    assert (line["message"], line["lane"]) == ("inner", 1)


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_is_shown(form: str) -> None:
    body = """
say.info("%s %r", loaded.database.url, loaded)
say.info("x", extra={"url": loaded.database.url, "all": loaded, "inner": {"urls": [loaded.database.url]}})
say.info("to %s", loaded.database_url, extra={"url": loaded.database_url})
try:
    raise ValueError("cannot connect to " + loaded.database_url)
except ValueError:
    say.exception("it failed")
"""
    _, lines = said(body, TIDINGS_LOG__FORMAT=form)
    assert len(lines) >= 4
    assert "hush" not in "".join(lines)
    assert "**********" in lines[2]


def test_text_shows_the_fields_behind_the_message() -> None:
    _, [line] = said("say.warning('it fell behind', extra={'lane': 3, 'why': 'no answer', 'cursor': Position(7, 1)})")
    assert re.fullmatch(
        r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING tests.saying: it fell behind lane=3 why="no answer" cursor=7/1', line
    )


def test_the_level_is_a_setting() -> None:
    body = "say.debug('a'); say.info('b'); say.error('c')"
    assert [line["message"] for line in said_in_json(body, TIDINGS_LOG__LEVEL="ERROR")[1]] == ["c"]
    assert [line["message"] for line in said_in_json(body, TIDINGS_LOG__LEVEL="DEBUG")[1]] == ["a", "b", "c"]
