"""`make demo`, once, as a user runs it: it does what it says, and the README shows what it prints."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from traffic import tidings

README = Path(__file__).parent.parent.parent / "README.md"
# What is another at every run: ids, keys, ports, sequencers, seconds and the time of day.
VARYING = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|AKIA[A-Z2-7]{16}|127\.0\.0\.1:\d+|(?<=sequencer )[0-9A-F]+|[\d.]+(?= s\b)"
    r"|(?<=created_at=)[\d:+ -]+\d"
)
TABLES = ("inventory_versions", "hat.files", "upload_registry")


def shown() -> list[str]:
    """The lines that the README shows, without those that stand for others."""
    [block] = re.findall(r"```console\n\$ make demo\n(.*?)```", README.read_text(), re.DOTALL)
    return [line for line in block.splitlines() if line.strip() != "..."]


def in_general(line: str) -> re.Pattern[str]:
    return re.compile(".+".join(map(re.escape, VARYING.split(line))))


@pytest.mark.chaos  # a stack and two more JVMs, for which make test has no time
@pytest.mark.timeout(600)
def test_the_demo_shows_every_event_and_the_row_of_each_registry_as_in_the_readme() -> None:
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        done = tidings("demo", clear=["TIDINGS_SECRETS__MASTER_KEY"], TMPDIR=folder)
        assert not list(Path(folder).glob("tidings-demo-*")), "it leaves nothing behind"
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.splitlines()
    for table in TABLES:
        assert [line.split(":")[0] for line in printed].count(f"  ← {table}") == 1, done.stdout
    for line in shown():
        assert any(in_general(line).fullmatch(each) for each in printed), f"the README shows {line!r}:\n{done.stdout}"
