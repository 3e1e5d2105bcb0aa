"""Plugins are files: `formats/s3.py` is the format `s3`, `destinations/pubsub.py` the destination `pubsub`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType


def names(package: str) -> list[str]:
    """What there is in `tidings.{package}`: one name for each file. Nothing is imported: formats bring Spark along."""
    found = find_spec(f"tidings.{package}")
    return sorted(module.name for module in iter_modules(found.submodule_search_locations if found else ()))


def load(package: str, name: str) -> ModuleType:
    """The plugin called `name`, imported on first use. Raises KeyError where there is none."""
    if name not in names(package):
        raise KeyError(f"there is no {name!r} in tidings.{package}; there are: {', '.join(names(package))}")
    return import_module(f"tidings.{package}.{name}")
