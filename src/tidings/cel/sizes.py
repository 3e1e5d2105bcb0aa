"""How large values are: those of an event at most, and those that an expression makes of them.

An expression is priced for the largest event that the catalog's API lets in (`catalog/model.py`). A larger one is priced again
with its own sizes before it is evaluated: a message of 65,536 characters may have four times as many bytes, and nobody limits
how many roles a key has. One that is beyond `MAX_CHARACTERS` or `MAX_ELEMENTS` is not evaluated at all, for the library copies
each variable, however cheap the expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidings.cel.variables import Value

ELEMENT = 32
"""Bytes of an element in a list, besides what it holds."""

MAX_CHARACTERS = 2 * 1024 * 1024
MAX_ELEMENTS = 10_000
"""Of all variables of an event that an expression names, together."""


@dataclass(frozen=True, slots=True)
class Size:
    """At most so many bytes of text, or so many elements; of a map, entries. What is only known later may be both."""

    text: int = 0
    length: int = 0
    item: Size | None = None
    """The largest of the elements; of a map, of keys and values."""
    weight: int = field(init=False)
    """Bytes of all that is in it."""

    def __post_init__(self) -> None:
        below = self.item.weight if self.item is not None else 0
        object.__setattr__(self, "weight", self.text + self.length * (ELEMENT + below))

    def __or__(self, other: Size) -> Size:
        """The size of what is one or the other."""
        return Size(max(self.text, other.text), max(self.length, other.length), either(self.item, other.item))

    def __add__(self, other: Size) -> Size:
        """The size of both, one behind the other."""
        return Size(self.text + other.text, self.length + other.length, either(self.item, other.item))


NOTHING = Size()
"""Of a number, a boolean, a type, a moment."""


def either(one: Size | None, other: Size | None) -> Size | None:
    return one | other if one is not None and other is not None else other if one is None else one


LARGEST: Mapping[str, Size] = {
    "type": Size(128),
    "repository": Size(256),
    "reference": Size(500),
    "fullReference": Size(520),
    "referenceType": Size(64),
    "createdBy": Size(256),
    "hashBefore": Size(256),
    "hashAfter": Size(256),
    "contentName": Size(500),
    "contentNamespace": Size(500),
    "contentType": Size(400),
    "contentId": Size(800),
    "message": Size(65_536),
    "author": Size(1024),
    "committer": Size(256),
    "sourceReference": Size(500),
    "roles": Size(0, 64, Size(100)),
    "contentKey": Size(0, 20, Size(500)),
}
"""Of each variable what an expression is priced for."""
_SHORT = {name: (size.text or (size.item or NOTHING).text) // 4 for name, size in LARGEST.items()}
"""So many characters are no more bytes than that."""


def is_larger(values: Mapping[str, Value], names: Iterable[str]) -> bool:
    """Whether one of these variables is larger than what an expression is priced for."""
    for name in names:  # asked for each event, so what is short is passed over at once
        value = values[name]
        if (len(value) > _SHORT[name] or not isinstance(value, str)) and _exceeds(value, LARGEST[name]):
            return True
    return False


def _exceeds(value: Value, size: Size) -> bool:
    if isinstance(value, str):
        return _is_longer(value, size.text)
    longest = (size.item or NOTHING).text
    return len(value) > size.length or any(_is_longer(each, longest) for each in value if len(each) > longest // 4)


def _is_longer(text: str, most: int) -> bool:
    return len(text) > most or (4 * len(text) > most and not text.isascii() and _bytes(text) > most)


def excess(values: Mapping[str, Value], names: Iterable[str]) -> str | None:
    """What these variables have more of than is ever evaluated; None if they do not."""
    named = [values[name] for name in names]
    lists = [value for value in named if not isinstance(value, str)]
    if (elements := sum(map(len, lists))) > MAX_ELEMENTS:
        return f"its variables have {elements:,} elements, and {MAX_ELEMENTS:,} are the most"
    texts = [value for value in named if isinstance(value, str)]
    characters = sum(map(len, texts)) + sum(len(each) for value in lists for each in value)
    if characters > MAX_CHARACTERS:
        return f"its variables have {characters:,} characters, and {MAX_CHARACTERS:,} are the most"
    return None


def of_values(values: Mapping[str, Value], names: Iterable[str]) -> dict[str, Size]:
    """Their own sizes, not the largest."""
    return {name: _of_value(values[name]) for name in names}


def _of_value(value: Value) -> Size:
    if isinstance(value, str):
        return Size(_bytes(value))
    return Size(0, len(value), Size(max(map(_bytes, value), default=0)))


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
