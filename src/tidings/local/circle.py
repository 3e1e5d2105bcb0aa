"""The second part of the demo, the circle: put with the aws CLI → event → the row that each of three registries has then.

Set up as a tenant does it, with the aws CLI; only atlases are written into the database, for whoever keeps the file registry.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row
from rich.console import Console

from tidings.access import api_keys
from tidings.errors import OperatorError
from tidings.local.consumers import FILES_BUCKET, FILES_TOPIC, inventory_topic
from tidings.local.stack import Stack

_STOCK = "demo-stock"
_ALL = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
_WAIT_SECONDS = 300.0
_COMMAND_SECONDS = 300.0
_LOOK_SECONDS = 0.05


def check_aws() -> str:
    """The aws CLI, of our own environment if it has one; or one sentence."""
    ours = Path(sys.executable).with_name("aws")
    found = str(ours) if ours.exists() else shutil.which("aws")
    if found is None:
        raise OperatorError("The demo uses the aws CLI: install it (`pip install awscli`), or run `make demo`, which does.")
    return found


def show(stack: Stack, err: Console, out: Console) -> int:
    """0 only if each registry has the row of what was put."""
    with psycopg.connect(stack.environment["TIDINGS_DATABASE__URL"], autocommit=True, row_factory=dict_row) as database:
        circle = _Circle(stack, database, out)
        circle.set_up()
        with err.status("waiting for the consumers"):
            circle.await_consumers()
        found = [circle.inventory(), circle.files(), circle.uploads()]
    out.print(f"demo: {len(found)} puts, {sum(found)} rows in the registries, from events alone")
    return 0 if all(found) else 1


class _Circle:
    def __init__(self, stack: Stack, database: psycopg.Connection[dict[str, Any]], out: Console) -> None:
        self._stack = stack
        self._ready = stack.ready()
        self._database = database
        self._out = out
        self._folder = stack.data / "circle"
        self._folder.mkdir()
        self._topic = ""
        self._put_at = 0.0

    # What a tenant and an operator do once.

    def set_up(self) -> None:
        self._aws("s3api", "create-bucket", "--bucket", _STOCK)
        self._send(_STOCK, inventory_topic().arn)
        self._out.print(f"bucket {_STOCK} sends all changes in format cos to {inventory_topic().arn}")

        self._topic = self._aws("sns", "create-topic", "--name", FILES_TOPIC)["TopicArn"]
        hook = self._ready["files"]
        self._aws("sns", "subscribe", "--topic-arn", self._topic, "--protocol", "http", "--notification-endpoint", hook)
        self._aws("s3api", "create-bucket", "--bucket", FILES_BUCKET)
        self._send(FILES_BUCKET, self._topic)
        atlas = json.dumps({"network": "gut", "shortName": "Gut", "version": "1.0"})
        self._database.execute("insert into hat.atlases (overview) values (%s)", [atlas])
        self._out.print(f"bucket {FILES_BUCKET} sends all changes to {self._topic}, which tells {hook}")

        made = _run([sys.executable, "-m", "tidings", "uploads", "init", "--json"], self._stack.environment)
        self._out.print(f"bucket {made['bucket']} sends new objects in format r2 to the queue {made['queue']}")

    def _send(self, bucket: str, topic: str) -> None:
        wanted = json.dumps({"TopicConfigurations": [{"TopicArn": topic, "Events": _ALL}]})
        command = ("put-bucket-notification-configuration", "--bucket", bucket, "--notification-configuration", wanted)
        self._aws("s3api", *command)

    def await_consumers(self) -> None:
        """A rule's test event that was taken tells that somebody listens; a webhook has confirmed."""
        self._until(self._is_confirmed, "files", "the subscription is not confirmed")
        self._until(
            lambda: self._row("select topic from inventory_offsets") is not None, "inventory", "the test event is not read"
        )
        self._until(lambda: self._row("select id from queue_messages") is None, "uploads", "the test event is not taken")

    def _is_confirmed(self) -> bool:
        found = self._aws("sns", "list-subscriptions-by-topic", "--topic-arn", self._topic)["Subscriptions"]
        return [each["SubscriptionArn"].startswith(self._topic) for each in found] == [True]

    # Put → event → row.

    def inventory(self) -> bool:
        body = b'{"bolts": 12, "nuts": 11}\n'
        etag = self._put(_STOCK, "shelf/bolts.json", body)
        return self._appears(
            "inventory",
            "inventory_versions",
            "select key, version_id, is_latest, size, etag from inventory_versions where bucket = %s",
            [_STOCK],
            {"key": "shelf/bolts.json", "is_latest": True, "size": len(body), "etag": etag},
        )

    def files(self) -> bool:
        body = b"file,sha256\n"
        key, sha256 = "gut/gut-v1/manifests/files.csv", hashlib.sha256(body).hexdigest()
        self._put(FILES_BUCKET, key, body, "--metadata", f"source-sha256={sha256}")
        return self._appears(
            "files",
            "hat.files",
            "select key, file_type, a.overview ->> 'shortName' as atlas, is_latest, size_bytes, sha256_client"
            " from hat.files join hat.atlases a on a.id = atlas_id where bucket = %s",
            [FILES_BUCKET],
            {"key": key, "atlas": "Gut", "is_latest": True, "size_bytes": len(body), "sha256_client": sha256},
        )

    def uploads(self) -> bool:
        """Through the registry's own front, as its users do."""
        name, project = "report.txt", self._ready["project"]
        key = api_keys.create(self._database, project, ["write"]).api_key
        self._out.print(f"  → POST {self._ready['uploads']}  name={name}")
        self._put_at = time.monotonic()
        _post(self._ready["uploads"], key, name, b"All is well.\n")
        return self._appears(
            "uploads",
            "upload_registry",
            "select organisation, name, date_trunc('second', created_at)::text as created_at from upload_registry",
            [],
            {"organisation": project, "name": name},
        )

    def _put(self, bucket: str, key: str, body: bytes, *more: str) -> str:
        """Returns the ETag."""
        file = self._folder / key.rpartition("/")[2]
        file.write_bytes(body)
        command = ("s3api", "put-object", "--bucket", bucket, "--key", key, "--body", file.name, *more)
        self._out.print(f"  → aws {_shortened(shlex.join(command))}")
        self._put_at = time.monotonic()
        return str(self._aws(*command)["ETag"]).strip('"')

    def _appears(
        self, role: str, table: str, statement: LiteralString, parameters: list[str], expected: Mapping[str, Any]
    ) -> bool:
        """Shows the row as soon as it is there; says so if there is none, or another."""
        try:
            self._until(lambda: self._row(statement, parameters) is not None, role, f"no row in {table}")
        except OperatorError as error:
            self._out.print(f"demo: {error}")
            return False
        row = self._row(statement, parameters) or {}
        values = _shortened(" ".join(f"{name}={str(value).lower() if value is True else value}" for name, value in row.items()))
        self._out.print(f"  ← {table}: {values}  ({time.monotonic() - self._put_at:.2f} s)")
        wrong = [name for name, value in expected.items() if row.get(name) != value]
        if wrong:
            self._out.print(f"demo: {table} has another {', '.join(wrong)} than what was put")
        return not wrong

    def _row(self, statement: LiteralString, parameters: list[str] | None = None) -> dict[str, Any] | None:
        return self._database.execute(statement, parameters or []).fetchone()

    def _until(self, true: Callable[[], bool], role: str, otherwise: str) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not true():
            if time.monotonic() > deadline:
                raise OperatorError(f"{role}: {otherwise} within {_WAIT_SECONDS:g} s. It said: {self._stack.last_words(role)}")
            time.sleep(_LOOK_SECONDS)

    def _aws(self, *arguments: str) -> dict[str, Any]:
        ours = {
            "AWS_ENDPOINT_URL": self._ready["s3"],
            "AWS_DEFAULT_REGION": self._ready["region"],
            "AWS_ACCESS_KEY_ID": self._ready["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": self._ready["secret_access_key"],
            "AWS_DEFAULT_OUTPUT": "json",
            "AWS_PAGER": "",
            # Nothing of whoever tries the demo: neither their profiles nor their session.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        return _run([check_aws(), *arguments], ours, self._folder)


def _run(command: list[str], environment: Mapping[str, str], folder: Path | None = None) -> dict[str, Any]:
    """What a command prints as JSON."""
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**theirs, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise OperatorError(f"`{shlex.join([Path(command[0]).name, *command[1:]])[:200]}` failed: {said}")
    printed: dict[str, Any] = json.loads(done.stdout or "{}")
    return printed


def _post(url: str, key: str, name: str, body: bytes) -> None:
    """A form with a name and a file."""
    mark = "a-mark-that-no-file-of-ours-has"
    form = (
        f'--{mark}\r\ncontent-disposition: form-data; name="name"\r\n\r\n{name}\r\n'
        f'--{mark}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\ncontent-type: text/plain\r\n\r\n'
    ).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": f"multipart/form-data; boundary={mark}"}
    request = urllib.request.Request(url, form + body + f"\r\n--{mark}--\r\n".encode(), headers)  # noqa: S310 our own front
    try:
        urllib.request.urlopen(request, timeout=_COMMAND_SECONDS).close()  # noqa: S310 our own front
    except OSError as error:
        raise OperatorError(f"{url} did not take the upload: {error}") from None


def _shortened(text: str) -> str:
    """SHA-256 by its beginning."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1…", text)
