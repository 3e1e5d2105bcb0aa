"""The search for secrets finds them, in whatever form they come out."""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

import canary
from tidings.access.keys import create_key
from tidings.access.projects import create_project

FORMS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": lambda text: text,
    "in capitals": bytes.upper,
    "in hex": lambda text: text.hex().encode(),
    "in base64": base64.b64encode,
    "in base64 inside a longer text": lambda text: base64.b64encode(b"project=" + text + b"&more"),
    "in base64 for URLs": lambda text: base64.urlsafe_b64encode(b"x" + text),
    "percent-encoded": lambda text: quote(text, safe="").encode(),
    "as bytes of a UUID, in hex": lambda text: uuid.UUID(text.decode()).bytes.hex().encode(),
    "as bytes of a UUID, in base64": lambda text: base64.b64encode(uuid.UUID(text.decode()).bytes),
}


@pytest.fixture
def noting(tmp_path: Path) -> Iterator[Path]:
    before = os.environ.get(canary._FOLDER)
    canary.begin(tmp_path)
    yield tmp_path
    for file in tmp_path.iterdir():  # or the search at the end of the run finds them too
        file.unlink()
    os.environ.pop(canary._FOLDER)
    if before is not None:
        os.environ[canary._FOLDER] = before


@pytest.mark.parametrize("form", FORMS)
def test_a_private_id_is_found_in_every_form(noting: Path, database_url: str, database: psycopg.Connection, form: str) -> None:
    create_project(database, "one")
    [(private,)] = database.execute("select id::text from projects").fetchall()
    canary.plant(database_url)
    (noting / "quiet.log").write_text("nothing to see")
    assert canary.leaks(noting)[1] == []
    (noting / "server.log").write_bytes(b"before " + FORMS[form](private.encode()) + b" after")
    _, [found] = canary.leaks(noting)
    assert "a project is in server.log" in found


def test_a_secret_may_be_in_the_greeting_and_nowhere_else(
    noting: Path, database_url: str, database: psycopg.Connection
) -> None:
    _, secret = create_key(database, create_project(database, "one"))
    canary.plant(database_url)
    (noting / "up.log").write_text(secret)
    assert canary.leaks(noting)[1] == []
    canary.seen(b"an answer with " + secret.encode())
    assert len(canary.leaks(noting)[1]) == 1
