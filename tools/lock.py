"""Writes `requirements.lock`: every distribution of production at the version of constraints.txt, with the hashes of its files.

    python -m tools.lock

What is needed is read from what is installed, so nothing is resolved or downloaded here: pip's own collector, with
whatever index pip is configured for, says which files there are and what their SHA-256 is. The lock names no index.
"""

from __future__ import annotations

import tomllib
from itertools import chain
from typing import Any

from packaging.utils import parse_sdist_filename, parse_wheel_filename
from pip._internal.commands import create_command
from pip._internal.index.collector import LinkCollector, parse_links
from pip._internal.models.link import Link

from tools.dependencies import LOCK, ROOT, anywhere, find, needed, pinned

_HEAD = """\
# Made by `make lock` from pyproject.toml and constraints.txt. Use: pip install --require-hashes -r requirements.lock
"""


def locked() -> dict[str, str]:
    """Name to version of what production needs, on any system for which it is installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tested = pinned((ROOT / "constraints.txt").read_text())
    names = {name for name in needed(project["dependencies"], anywhere) if find(name) is not None}
    if missing := sorted(names - tested.keys()):
        raise SystemExit(f"constraints.txt has no version of {', '.join(missing)}: add what was tested.")
    return {name: tested[name] for name in sorted(names)}


def _version(file: str) -> str:
    """Of a wheel or a source distribution; empty for what is neither."""
    try:
        return str(parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1])
    except ValueError:
        return ""


def _links(collector: LinkCollector, name: str) -> list[Link]:
    """All files of a distribution that the index has, for all systems: a finder would leave out what does not run here."""
    found: list[Link] = []

    def read(page: Link) -> list[Any]:
        content = collector.fetch_response(page)
        found.extend(parse_links(content) if content is not None else ())
        return []

    for source in chain(*collector.collect_sources(name, read)):
        if source is not None:
            list(source.page_candidates())
    return found


def main() -> None:
    command = create_command("install")
    options, _ = command.parse_args([])
    lines = [_HEAD]
    with command.main_context():
        collector = LinkCollector.create(command.get_default_session(options), options)  # type: ignore[attr-defined]
        for name, version in locked().items():
            links = [link for link in _links(collector, name) if _version(link.filename) == version]
            hashes = sorted({link.hash for link in links if link.hash_name == "sha256" and link.hash})
            if not hashes:
                raise SystemExit(f"The index knows no SHA-256 for a file of {name}=={version}.")
            lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{each}" for each in hashes)]) + "\n")
    LOCK.write_text("".join(lines))
    print(f"{LOCK.name}: {len(lines) - 1} distributions")


if __name__ == "__main__":
    main()
