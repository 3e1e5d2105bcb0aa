"""A JSON document that a caller sent, read member by member. What is wrong with it is said in a sentence, never a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tidings.api.acts import named
from tidings.errors import CallerError

MAX_DEPTH = 32

Refuse = Callable[[str, str], CallerError]
"""Makes the error of the protocol: from one of the kinds below, and a sentence."""
MISSHAPEN, MISSING, WRONG, UNKNOWN, CHARACTERS = "misshapen", "missing", "wrong", "unknown", "characters"

# PostgreSQL has no NUL in its texts, and half of a surrogate pair is no character.
_UNSPEAKABLE = re.compile("[\0\ud800-\udfff]")


class Document:
    """An object of the document. Names are unique, numbers are finite, texts are Unicode."""

    def __init__(self, values: Mapping[str, Any], refuse: Refuse) -> None:
        self._values = values
        self._refuse = refuse

    @classmethod
    def parse(cls, body: bytes, refuse: Refuse) -> Document:
        try:
            values = json.loads(body.decode() or "{}", object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite)
        except RecursionError:
            raise refuse(MISSHAPEN, f"The document is nested more than {MAX_DEPTH} deep.") from None
        except ValueError as error:
            raise refuse(MISSHAPEN, f"The body is not a JSON document in UTF-8: {str(error)[:200]}.") from None
        if not isinstance(values, dict):
            raise refuse(MISSHAPEN, "The body must be a JSON object.")
        _check(values, refuse, MAX_DEPTH)
        return cls(values, refuse)

    def only(self, names: frozenset[str]) -> None:
        """Refuse a member that is not among these: passed over, it might change what is meant."""
        if unknown := sorted(set(self._values) - names):
            raise self._refuse(UNKNOWN, f"{unknown[0][:100]!r} is not served here: leave it out.")

    def named(self) -> str:
        """What the audit log says of it."""
        return named(self._values)

    def text(self, name: str) -> str:
        found = self.optional_text(name)
        if not found:
            raise self._refuse(MISSING, f"The request must contain the parameter {name}.")
        return found

    def optional_text(self, name: str, otherwise: str = "") -> str:
        found = self._values.get(name)
        if found is None:
            return otherwise
        if not isinstance(found, str):
            raise self._wrong(name, found, "a text")
        return found

    def integer(self, name: str, least: int, most: int) -> int | None:
        found = self._values.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
            raise self._wrong(name, found, f"Must be between {least} and {most}, if provided")
        return found

    def texts(self, name: str) -> list[str]:
        found = self._values.get(name)
        if found is None:
            return []
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise self._wrong(name, found, "a list of texts")
        return list(found)

    def text_by_name(self, name: str) -> dict[str, str]:
        found = self.mapping(name)
        if not all(isinstance(each, str) for each in found.values()):
            raise self._wrong(name, found, "an object of texts")
        return found

    def mapping(self, name: str) -> dict[str, Any]:
        found = self._values.get(name)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise self._wrong(name, found, "an object")
        return found

    def yes(self, name: str, otherwise: bool = False) -> bool:
        found = self._values.get(name)
        if found is None:
            return otherwise
        if not isinstance(found, bool):
            raise self._wrong(name, found, "true or false")
        return found

    def part(self, name: str) -> Document:
        return Document(self.mapping(name), self._refuse)

    def objects(self, name: str) -> list[Document]:
        found = self._values.get(name)
        if found is None:
            return []
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise self._wrong(name, found, "a list of objects")
        return [Document(each, self._refuse) for each in found]

    def _wrong(self, name: str, value: Any, expected: str) -> CallerError:
        shown = json.dumps(value)[:100]
        return self._refuse(WRONG, f"Value {shown} for parameter {name} is invalid. Reason: expected {expected}.")


def _check(value: Any, refuse: Refuse, depth: int) -> None:
    if isinstance(value, str):
        if found := _UNSPEAKABLE.search(value):
            raise refuse(CHARACTERS, f"A text has the character {found[0]!r} in it, which cannot be kept.")
        return
    if not isinstance(value, dict | list):
        return
    if depth == 0:
        raise refuse(MISSHAPEN, f"The document is nested more than {MAX_DEPTH} deep.")
    for each in (*value, *value.values()) if isinstance(value, dict) else value:
        _check(each, refuse, depth - 1)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice in one object")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is too large")
    return value
