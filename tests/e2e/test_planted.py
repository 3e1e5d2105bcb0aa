"""The fault tests can fail: with each of these mistakes planted in a copy of the program, the short form turns red.

A mistake is a handful of textual replacements, which must fit the program as it is. The tests run in a process of their own,
which finds the copy before the real one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import Say

ROOT = Path(__file__).parents[2]
SEED = "20261115"
KILL = ("tests/e2e/test_kill.py", "a_stream_that_is_killed")
FAULTS = ("tests/e2e/test_faults.py", "in_trouble")

_RUN = "        reports = pipeline.run(Round(tuple(pieces), standing.moment, terms), rows)\n"
_MOVE = "        lanes.end_round(connection, epoch, start, end, ready, reports, first_retry, standing.unsettled, failed)\n"
# A batch is known by where it begins, as by a number: one that was begun and not ended has the same after a restart.
_RUN_ONCE = """        connection.execute("create table if not exists batches (win bigint, seq bigint, primary key (win, seq))")
        note = "insert into batches values (%s, %s) on conflict do nothing"
        new = not rows or connection.execute(note, start).rowcount
""" + _RUN.replace(", rows)\n", ", rows) if new else []\n")


@dataclass(frozen=True)
class Mistake:
    file: str
    replaced: tuple[tuple[str, str], ...]
    test: tuple[str, str]
    seen: str
    """What must be counted by the verdict, more than none."""


MISTAKES = {
    "the position moves before anything is sent": Mistake(
        "delivery/stream.py",
        ((_MOVE, ""), (_RUN, _MOVE.replace("reports, first_retry", "[], 1.0").replace(", failed", "") + _RUN)),
        KILL,
        "lost",
    ),
    "what is not permitted is dropped": Mistake(
        "delivery/sending.py",
        (("if outcome.verdict in (Verdict.RETRY, Verdict.WAIT)]", "if outcome.verdict is Verdict.RETRY]"),),
        FAULTS,
        "lost",
    ),
    "changes after the last number instead of windows": Mistake(
        "changestream/windows.py",
        (("    return f\"(xid >= '{previous.xmax}'::xid8{late})\"\n", '    return f"(seq > {previous.hi}{late[:0]})"\n'),),
        KILL,
        "lost",
    ),
    "duplicates are known by their batch only": Mistake(
        "delivery/stream.py",
        ((_RUN, _RUN_ONCE),),
        KILL,
        "lost",
    ),
    "an id for each attempt": Mistake(
        "delivery/render.py",
        (('F.concat_ws(".", "id", "rule").alias("id")', 'F.concat_ws(".", F.expr("uuid()"), "rule").alias("id")'),),
        KILL,
        "phantom",
    ),
}


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_turns_the_fault_tests_red(name: str, tmp_path: Path, say: Say) -> None:
    mistake = MISTAKES[name]
    planted = plant(mistake, tmp_path / "src")
    file, test = mistake.test
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(planted), str(ROOT)]), "SEED": SEED, "KILLS": "3"}
    command = [sys.executable, "-m", "pytest", file, "-k", f"{test} and not chaos", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "not chaos", "--basetemp", str(tmp_path / "run")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    counted = re.findall(rf"seed {SEED}: .*?(\d+) {mistake.seen}", done.stdout)
    assert done.returncode == 1, f"not red: {done.stdout[-2000:]}"
    assert counted, f"red for another reason: {done.stdout[-4000:]}"
    say(f"{name}: {counted[0]} {mistake.seen}")
    assert int(counted[0]) > 0, done.stdout[-4000:]


def plant(mistake: Mistake, folder: Path) -> Path:
    """A copy of the program with the mistake; returns what to import it from."""
    shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "tidings" / mistake.file
    text = file.read_text()
    for old, new in mistake.replaced:
        assert text.count(old) == 1, f"{mistake.file} has changed: {old!r} is not there once; plant the mistake anew"
        text = text.replace(old, new)
    file.write_text(text)
    return folder


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_fits_the_program_as_it_is(name: str, tmp_path: Path) -> None:
    planted = plant(MISTAKES[name], tmp_path / "src") / "tidings" / MISTAKES[name].file
    compile(planted.read_text(), str(planted), "exec")
