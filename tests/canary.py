"""Secrets that must not be seen: what the tests plant is noted, and in the end everything that came out is searched for it.

Private project ids must be nowhere outside the database. Keys' secrets and passwords are shown to whoever makes them, and
must be in nothing else: no log of a server, no event, no answer, no metric.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import psycopg
from psycopg.sql import SQL, Identifier

from tidings.access.api_keys import TAIL
from tidings.access.macaroons import Macaroon
from tidings.bootstrap import SEALED
from tidings.secrets import keyring
from tidings.secrets.keyring import Keyring, SealedColumn
from tidings.secrets.master_key import from_file

_FOLDER = "TIDINGS_TEST_CANARY"
_PLANTED, _SEEN = "planted.canary", "seen.canary"
_OUTPUTS = ("*.log", _SEEN)
# It greets whoever starts it with the key that was made for them: that is its purpose.
_GREETING = "up.log"


def begin(folder: Path) -> None:
    """Where this process notes what it plants and sees."""
    os.environ[_FOLDER] = str(folder)


def answered(headers: object, body: bytes) -> None:
    """An answer of the API. What is in an object is its owner's; what we say ourselves is XML or short."""
    seen(str(headers), body if body.startswith(b"<") or len(body) < 1000 else b"")


def seen(*outputs: str | bytes) -> None:
    """Something that came out of Tidings: an event, what a command printed."""
    if folder := os.environ.get(_FOLDER):
        with (Path(folder) / _SEEN).open("ab") as file:
            file.write(b"\n".join(each.encode() if isinstance(each, str) else each for each in outputs) + b"\n")


def watched(client: Any) -> Any:
    """A client of boto3 whose answers are all seen, but for the bodies of objects."""

    def see(http_response: Any, model: Any, **_: Any) -> None:
        answered(http_response.headers, b"" if model.has_streaming_output else http_response.content)

    client.meta.events.register("after-call.s3", see)
    return client


def plant_secret(text: str) -> None:
    """Note one secret that is in no database."""
    if folder := os.environ.get(_FOLDER):
        with (Path(folder) / _PLANTED).open("a") as file:
            file.write(f"secret {text.encode().hex()}\n")


def plant(database_url: str, master_key_file: str | None = None) -> None:
    """Note every secret of a database that a server worked on, with a master key of its own or with that of the tests."""
    folder = os.environ.get(_FOLDER)
    if folder is None:
        return
    try:
        connection = psycopg.connect(database_url)
    except psycopg.OperationalError:  # the test has ended it
        return
    with connection:
        projects = [str(row[0]) for row in connection.execute("select id from projects")]
        ring = Keyring(from_file(Path(master_key_file), "")) if master_key_file else keyring.of_process()
        opened = {column.column: unsealed(connection, column, ring) for column in SEALED}
        secrets = [secret.decode() for secret in opened["sealed_secret"]]
        secrets += [secret.decode().splitlines()[5] for secret in opened["sealed_key"]]
        secrets += [text for secret in opened["sealed_secrets"] for text in secret.decode().split()]
        roots = [secret.hex() for secret in (*opened["sealed_root"], *opened["sealed_tail"])]
        keys = connection.execute("select access_key_id, head, caveats, sealed_tail from access_keys where head is not null")
        for id_, head, caveats, sealed in keys.fetchall():
            tail = ring.open(connection, TAIL, id_, sealed)
            secrets.append(str(Macaroon(head, tuple(caveats), tail)))
    password = urlsplit(database_url).password or ""
    lines = [f"project {uuid.UUID(each).hex}" for each in projects]
    lines += [f"secret {each.encode().hex()}" for each in (*secrets, password) if each]
    lines += [f"secret {each}" for each in roots]
    with (Path(folder) / _PLANTED).open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def unsealed(connection: psycopg.Connection, column: SealedColumn, ring: Keyring | None = None) -> list[bytes]:
    """Every secret of a column, in clear."""
    ring = ring or keyring.of_process()
    names = {"id": Identifier(column.id), "column": Identifier(column.column), "table": Identifier(column.table)}
    rows = connection.execute(SQL("select {id}, {column} from {table} where {column} is not null").format(**names)).fetchall()
    return [ring.open(connection, column, row, sealed) for row, sealed in rows]


def forms(secret: bytes, project: bool) -> set[bytes]:
    """The ways in which it could be written down: as it is, in hex, in base64 of either alphabet, percent-encoded."""
    texts = [str(uuid.UUID(bytes=secret)).encode(), secret] if project else [secret]
    found: set[bytes] = set()
    for text in texts:
        found |= {text, text.hex().encode(), text.hex().upper().encode(), quote(text, safe="").encode()}
        # Inside a longer text, base64 depends on where it begins: cut off what its neighbours could change.
        for before in range(3):
            padded = base64.b64encode(b"\0" * before + text)
            middle = padded[(0, 2, 3)[before] :].rstrip(b"=")[:-1]
            found |= {middle, middle.replace(b"+", b"-").replace(b"/", b"_")}
    if project:
        found |= {texts[0].upper(), texts[0].replace(b"-", b"")}
    return {form for form in found if len(form) >= 12}


def leaks(root: Path) -> tuple[int, list[str]]:
    """How many secrets were looked for below a folder, and where any was found."""
    planted = {line for file in root.rglob(_PLANTED) for line in file.read_text().splitlines()}
    wanted = {
        form: kind
        for kind, _, text in (line.partition(" ") for line in planted)
        for form in forms(bytes.fromhex(text), kind == "project")
    }
    return len(planted), sorted(set(_found(root, wanted)))


def _found(root: Path, wanted: dict[bytes, str]) -> Iterator[str]:
    for file in _outputs(root):
        content = file.read_bytes()
        for form in _likely(content, wanted):
            kind = wanted[form]
            if form in content and not (kind == "secret" and file.name == _GREETING):
                at = content.index(form)
                around = content[max(0, at - 60) : at].decode("ascii", "replace")
                yield f"a {kind} is in {file.relative_to(root)}, after {around!r}"


def _likely(content: bytes, forms: Collection[bytes]) -> list[bytes]:
    """Those whose first eight bytes are somewhere in the content: to look for each of thousands would take minutes."""
    starts = {form: int.from_bytes(form[:8], "little") for form in forms}
    wanted, seen = np.array(sorted({*starts.values()}), "<u8"), set[int]()
    for offset in range(min(8, max(0, len(content) - 7))):
        words = np.frombuffer(content, "<u8", (len(content) - offset) // 8, offset)
        seen.update(words[np.isin(words, wanted)].tolist())
    return [form for form, start in starts.items() if start in seen]


def _outputs(root: Path) -> Iterable[Path]:
    return (file for pattern in _OUTPUTS for file in root.rglob(pattern) if "postgres" not in file.parts)
