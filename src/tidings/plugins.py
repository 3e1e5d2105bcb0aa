"""Plugins are files: `formats/s3.py` is the format `s3`, `destinations/pubsub.py` the destination `pubsub`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def names(package: str) -> list[str]:
    """What there is in `tidings.{package}`: one name for each file."""
    folder = import_module(f"tidings.{package}")
    return sorted(module.name for module in iter_modules(folder.__path__))


def load(package: str, name: str) -> ModuleType:
    """The plugin called `name`, imported on first use. Raises KeyError where there is none."""
    if name not in names(package):
        raise KeyError(f"there is no {name!r} in tidings.{package}; there are: {', '.join(names(package))}")
    return import_module(f"tidings.{package}.{name}")
