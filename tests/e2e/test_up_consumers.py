"""`tidings up --consumers`: what it prints can be pasted and reaches the registries, through new brokers as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from conftest import Running, running_stack
from tidings.cli.running import how_to_use, how_to_use_consumers
from waiting import until

pytestmark = pytest.mark.chaos  # a stack and two more JVMs, for which make test has no time

DESTINATIONS = '["pubsub", "kafka", "sns", "queue"]'


def paste(stack: Running, folder: Path) -> None:
    (folder / ".venv").symlink_to(sys.prefix)
    text = how_to_use(stack.ready) + how_to_use_consumers(stack.ready)
    script = "set -e\n" + "\n".join(line[2:] for line in text.splitlines() if line.startswith("  "))
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert '"success":true' in done.stdout


def known(stack: Running, statement: bytes) -> list[str]:
    with psycopg.connect(stack.ready["database"], autocommit=True) as connection:
        return [row[0] for row in connection.execute(statement).fetchall()]


@pytest.mark.timeout(900)
def test_what_is_pasted_reaches_the_registries_also_through_new_brokers(tmp_path: Path) -> None:
    with running_stack(tmp_path, "--consumers", TIDINGS_BUCKET_EVENTING__DESTINATIONS=DESTINATIONS) as stack:
        paste(stack, tmp_path)
        stock = b"select key from inventory_versions where bucket = 'my-stock' order by key"
        until(lambda: known(stack, stock) == ["bolt.txt"], "the inventory knows of it")
        until(lambda: known(stack, b"select name from upload_registry") == ["hello"], "the upload is recorded")
        confirmed = b"select endpoint from subscriptions where lane is not null"
        until(lambda: known(stack, confirmed) == [stack.ready["files"]], "the file registry has confirmed")

        s3, brokers = stack.s3(), stack.ready["kafka"]
        for number in range(20):  # positions that new brokers do not reach
            s3.put_object(Bucket="my-stock", Key=f"before-{number:02}", Body=b"x")
        until(lambda: len(known(stack, stock)) == 21, "the inventory knows of all")
        stack.kill("kafka")
        until(lambda: stack.ready["kafka"] != brokers, "there are new brokers")
        until(lambda: _put(s3, "after"), "the API is back")
        until(lambda: "after" in known(stack, stock), "the inventory reads from the new brokers")


def _put(s3: object, key: str) -> bool:
    try:
        s3.put_object(Bucket="my-stock", Key=key, Body=b"x")  # type: ignore[attr-defined]
    except Exception:
        return False
    return True
