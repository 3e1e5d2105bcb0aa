"""Writes what an installation consists of: `sbom.json`, in CycloneDX 1.6, and `licences.txt`, a line for each distribution.

    python -m tools.sbom FOLDER

Both come from the metadata of what is installed, at the versions of `requirements.lock`. The JARs inside of pyspark are
components too, with their SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from tools.dependencies import LOCK, NAME, ROOT, find, needed, pinned

_JAR = re.compile(r"(.+?)-(\d[\w.+-]*)")
_MAX_LICENCE = 100
UNKNOWN = "unknown"


def licence(of: Distribution) -> str:
    """As its metadata has it: an expression, classifiers, or a short text."""
    metadata = of.metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    classifiers = [each for each in metadata.get_all("Classifier") or () if each.startswith("License ::")]
    if names := [each.rpartition(" :: ")[2] for each in classifiers if each != "License :: OSI Approved"]:
        return " AND ".join(names)
    text = next(iter(metadata.get_all("License") or ()), "").strip().partition("\n")[0]
    return text[:_MAX_LICENCE] or UNKNOWN


def bill(project: dict[str, Any], versions: dict[str, str]) -> dict[str, Any]:
    """The document. Whatever is at another version here than in the lock is refused: it would describe something else."""
    graph = needed(project["dependencies"])
    found = {name: distribution for name in versions if (distribution := find(name)) is not None}
    if other := [name for name, each in found.items() if each.version != versions[name]]:
        raise SystemExit(
            f"{', '.join(other)}: installed at another version than in {LOCK.name}. Run `make lock`, or install it."
        )
    own = {"type": "application", "name": NAME, "version": project["version"], "bom-ref": NAME}
    own["licenses"] = [{"license": {"name": project["license"]}}]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": [*(_component(name, found.get(name), versions[name]) for name in sorted(versions)), *_jars()],
        "dependencies": [
            {"ref": NAME, "dependsOn": sorted(_ref(name, versions) for name in _direct(project) if name in versions)},
            *(
                {
                    "ref": _ref(name, versions),
                    "dependsOn": [_ref(each, versions) for each in graph.get(name, ()) if each in versions],
                }
                for name in sorted(versions)
            ),
        ],
    }


def _direct(project: dict[str, Any]) -> set[str]:
    return {name for each in project["dependencies"] for name in list(needed([each], lambda r, _: r is not None))[:1]}


def _ref(name: str, versions: dict[str, str]) -> str:
    return f"pkg:pypi/{name}@{versions[name]}"


def _component(name: str, of: Distribution | None, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    named = licence(of) if of is not None else UNKNOWN
    return {
        "type": "library",
        "name": name,
        "version": version,
        "bom-ref": purl,
        "purl": purl,
        "licenses": [{"license": {"name": named}}],
    }


def _jars() -> Iterator[dict[str, Any]]:
    spark = find("pyspark")
    folder = Path(str(spark.locate_file("pyspark/jars"))) if spark else Path("none")
    for jar in sorted(folder.glob("*.jar")):
        parts = _JAR.fullmatch(jar.stem)
        name, version = parts.groups() if parts else (jar.stem, "")
        digest = hashlib.file_digest(jar.open("rb"), "sha256").hexdigest()
        yield {
            "type": "library",
            "name": name,
            "version": version,
            "bom-ref": f"jar:{jar.name}",
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }


def main(folder: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    document = bill(project, pinned(LOCK.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sbom.json").write_text(json.dumps(document, indent=1) + "\n")
    python = [each for each in document["components"] if "purl" in each]
    lines = [f"{each['name']:<45} {each['version']:<16} {each['licenses'][0]['license']['name']}" for each in python]
    (folder / "licences.txt").write_text("\n".join(lines) + "\n")
    unknown = sum(line.endswith(UNKNOWN) for line in lines)
    print(
        f"{folder}/sbom.json: {len(document['components'])} components; {folder}/licences.txt: {len(lines)}, {unknown} unknown"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))
