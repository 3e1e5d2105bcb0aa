"""The example that users copy: installed as pip installs it, found by its entry point, and called."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

SERVER = """
from catalog_events import commit
from tidings import settings
from tidings.events.catalog import ContentRemoved
from tidings.subscribers import finding

dispatcher = finding.start(settings.load())
like = vars(commit())
common = {name: like[name] for name in ("id", "at", "sent_by", "created_by", "repository", "reference")}
own = {"hash": "cc", "commit_creation_timestamp": "", "content_key": ("sales", "orders"), "content_type": "ICEBERG_TABLE"}
dispatcher.publish([commit(), ContentRemoved(**common, **own)])
dispatcher.stop()
print([(feed.name, feed.status.delivered, feed.status.filtered) for feed in dispatcher.feeds])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, so that nothing is built in the tree; and without an index, for whatever it needs is there."""
    copied = tmp_path_factory.mktemp("example") / "subscriber"
    shutil.copytree(ROOT / "examples" / "subscriber", copied)
    target = copied.parent / "target"
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(copied)], check=True, timeout=240)
    return target


def test_it_is_found_and_called(installed: Path, tmp_path: Path) -> None:
    noted = tmp_path / "dropped.jsonl"
    run = run_python(installed, tmp_path, "-c", SERVER, CLEANUP_FILE=str(noted))
    assert run.stdout == "[('cleanup', 1, 1)]\n", run.stderr
    assert json.loads(noted.read_text()) == {"table": "sales.orders", "type": "ICEBERG_TABLE", "commit": "cc", "by": "ada"}


def test_its_own_tests_pass(installed: Path, tmp_path: Path) -> None:
    tests = installed.parent / "subscriber" / "tests"
    run = run_python(
        installed, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/t", str(tests)
    )
    assert run.returncode == 0, run.stdout
    assert "1 passed" in run.stdout


def run_python(installed: Path, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = [str(installed), str(ROOT / "src"), str(ROOT / "tests")]
    env = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=240)
