"""Which distributions `tidings` needs, and theirs, as they are installed here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
NAME = "tidings"
_PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)==(\S+)", re.MULTILINE)

Wanted = Callable[[Requirement, frozenset[str]], bool]


def pinned(text: str) -> dict[str, str]:
    """Name to version of the lines NAME==VERSION, in a lock or in constraints."""
    return {canonicalize_name(name): version for name, version in _PINNED.findall(text)}


def here(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether a requirement counts on this Python and system."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""}))


def anywhere(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether it may count on some Python and system: only extras that nobody asks for are left out."""
    asked = re.findall(r"extra\s*==\s*['\"]([^'\"]+)", str(requirement.marker or ""))
    return not asked or bool(extras & set(asked))


def needed(requirements: Iterable[str], wanted: Wanted = here) -> dict[str, list[str]]:
    """By name, what each distribution needs: of all that these requirements lead to. What is not installed needs nothing."""
    found: dict[str, list[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(each) for each in requirements]
    waiting = [each for each in waiting if wanted(each, frozenset())]
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        installed = find(name)
        of_it = [Requirement(each) for each in (installed.requires or ())] if installed else []
        of_it = [each for each in of_it if wanted(each, extras)]
        found[name] = sorted({*found.get(name, ()), *(canonicalize_name(each.name) for each in of_it)})
        waiting += of_it
    return found


def find(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except ModuleNotFoundError:
        return None
