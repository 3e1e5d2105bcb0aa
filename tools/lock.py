"""Writes `requirements.lock`: every distribution of production at the version of constraints.txt, with the hashes of its files.

    python -m tools.lock

What is needed is read from what is installed, so nothing is resolved or downloaded here: pip's own finder, with whatever
index pip is configured for, says which files there are and what their SHA-256 is. The lock names no index.
"""

from __future__ import annotations

import tomllib

from pip._internal.commands import create_command

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


def main() -> None:
    command = create_command("install")
    options, _ = command.parse_args([])
    lines = [_HEAD]
    with command.main_context():
        finder = command._build_package_finder(options, command.get_default_session(options))  # type: ignore[attr-defined]
        finder._ignore_compatibility = True  # the files for all systems, not only for this one
        for name, version in locked().items():
            links = [each.link for each in finder.find_all_candidates(name) if str(each.version) == version]
            hashes = sorted({link.hash for link in links if link.hash_name == "sha256" and link.hash})
            if not hashes:
                raise SystemExit(f"The index knows no SHA-256 for a file of {name}=={version}.")
            lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{each}" for each in hashes)]) + "\n")
    LOCK.write_text("".join(lines))
    print(f"{LOCK.name}: {len(lines) - 1} distributions")


if __name__ == "__main__":
    main()
