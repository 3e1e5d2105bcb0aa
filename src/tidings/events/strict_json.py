"""JSON from strangers: two readers of one text must not find two things in it, and nobody is kept busy by its depth."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 32


def read(text: str) -> Any:
    """What the text says. A key that comes twice, NaN, and what is deeper than MAX_DEPTH are a ValueError."""
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is too deep") from None
    if _depth(value) > MAX_DEPTH:
        raise ValueError("it is too deep")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [child for each in inner for child in (each.values() if isinstance(each, dict) else each)]
    return depth
