"""An event as one listener gets it: a copy, so that whatever it does to it nobody else sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidings.events.catalog import CatalogEvent, Reference


def copy(event: CatalogEvent) -> CatalogEvent:
    """Several times as fast as `deepcopy`, for what events are made of: values, references, and what JSON can say."""
    made = object.__new__(type(event))
    vars(made).update({name: _copied(value) for name, value in vars(event).items()})
    return made


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return replace(value) if isinstance(value, Reference) else value
