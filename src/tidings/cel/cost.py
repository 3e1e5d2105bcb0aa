"""What an expression costs at most, for an event of which it is known how large its variables are at most.

Prices are upper bounds, added up over the checked tree: of a loop it is what the loop does, as often as its list is long; of
`a ? b : c` the dearer of both. What is built counts as built, also where it is dropped at once, for the library frees nothing
before an evaluation ends. Times are those measured with cel-expr-python 0.1.3, rounded up: `tests/hostile_cel.py` holds them
against what evaluations take.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidings.cel import patterns
from tidings.cel.sizes import ELEMENT, NOTHING, Size, either
from tidings.cel.tree import Call, Constant, Entries, Field, Items, Macro, Node, Other, Position, TypeName, Variable

MAX_MICROSECONDS = 25_000
MAX_BYTES = 8 * 1024 * 1024
MAX_ROUNDS = 10_000
"""Of all loops together: the library's own limit."""


class CostLimitExceeded(Exception):
    """An expression costs too much, or its cost is not known. Where, why, and what to do."""

    def __init__(self, at: Position, words: str) -> None:
        super().__init__(words)
        self.at = at
        self.words = words


@dataclass(frozen=True, slots=True)
class Price:
    """At most so long, so many bytes built, and so many rounds of loops."""

    microseconds: float = 0.0
    bytes: int = 0
    rounds: int = 0

    def __add__(self, other: Price) -> Price:
        return Price(self.microseconds + other.microseconds, self.bytes + other.bytes, self.rounds + other.rounds)

    def __or__(self, other: Price) -> Price:
        """Of one of both, nobody knows which."""
        return Price(max(self.microseconds, other.microseconds), max(self.bytes, other.bytes), max(self.rounds, other.rounds))

    def times(self, number: int) -> Price:
        return Price(self.microseconds * number, self.bytes * number, self.rounds * number)


def price(tree: Node, sizes: Mapping[str, Size], event: str = "the largest event") -> Price:
    """Raises CostLimitExceeded, which names the first part that is too much by itself. `event` is what it calls the event."""
    return _Pricing(sizes, event).of(tree, {})[0]


Priced = tuple[Price, Size]
"""What a node costs, with all below it, and how large it can be."""

# Microseconds.
_NODE = 0.15
_ROUND = 0.3
_COMPARED_BYTE = 0.004  # of whatever is below: an element has 32 of them, and takes 0.1
_READ_BYTE = 0.002
_SEARCHED_BYTE = 0.0048
_COMPARED_NEEDLE = 0.000_01  # for each byte of the text
_PARSED_BYTE = 0.01
_BUILT_BYTE = 0.0025  # memory that is used for the first time costs more than what is written to it
_COPIED_ELEMENT = 0.05
_ENTRY = 0.3
_SET = 0.35
_SET_STEP = 0.016
_NFA_BYTE = 0.2
_NFA_STEP = 0.006  # of each byte of the text, once RE2 has stopped keeping sets
_INSTRUCTION = 1.0
_PATTERN = 2.0

_ENTRY_BYTES = 100
_INSTRUCTION_BYTES = 256
_SET_BYTES = 64
_KEPT_SET = 100
_KEPT_STEP = 4
_KEPT = 2_000_000
"""Bytes of sets that RE2 keeps at least."""
_NUMBER = Size(40)
"""Of a number, a moment or a duration as text."""


class _Pricing:
    def __init__(self, sizes: Mapping[str, Size], event: str) -> None:
        self._sizes = sizes
        self._event = event

    def of(self, node: Node, bound: Mapping[str, Size]) -> Priced:
        cost, size = self._of(node, bound)
        _check(node.at, cost, self._event)
        return cost, size

    def _of(self, node: Node, bound: Mapping[str, Size]) -> Priced:
        match node:
            case Constant(value=value):
                return Price(_NODE), _of_constant(value)
            case Variable(name=name, bound=is_bound):
                return Price(_NODE), bound[name] if is_bound else self._sizes[name]
            case TypeName():
                return Price(_NODE), NOTHING
            case Items(elements=elements):
                below, sizes = self._all(elements, bound)
                return below + Price(_NODE + _COPIED_ELEMENT * len(elements), ELEMENT * len(elements)), _list(sizes)
            case Entries(keys=keys, values=values):
                below, sizes = self._all((*keys, *values), bound)
                number = len(keys)
                return below + Price(_NODE + _ENTRY * number, _ENTRY_BYTES * number), Size(0, number, _list(sizes).item)
            case Field(over=over, name=name):
                below, size = self.of(over, bound)
                return below + Price(_NODE + _ENTRY + _READ_BYTE * len(name)), size.item or NOTHING
            case Macro():
                return self._loop(node, bound)
            case Call(function="matches", operands=(text, pattern)):
                return self._match(text, pattern, bound)
            case Call():
                return self._call(node, bound)
            case Other(what=what, at=at):
                raise CostLimitExceeded(at, f"the cost of {what} is not known; use texts, numbers, lists or maps instead")
        raise AssertionError(node)

    def _all(self, nodes: tuple[Node, ...], bound: Mapping[str, Size]) -> tuple[Price, list[Size]]:
        priced = [self.of(each, bound) for each in nodes]
        return sum((cost for cost, _ in priced), Price()), [size for _, size in priced]

    def _loop(self, node: Macro, bound: Mapping[str, Size]) -> Priced:
        below, over = self.of(node.over, bound)
        inside = {**bound, node.variable: over.item or NOTHING}
        condition = self.of(node.condition, inside)[0] if node.condition is not None else Price()
        element, item = self.of(node.element, inside) if node.element is not None else (Price(), over.item)
        step = Price(_ROUND, 0, 1) + condition + element
        if node.name in ("exists", "all", "exists_one"):
            return below + step.times(over.length), NOTHING
        half = over.length // 2 + 1  # the list so far is copied in each round
        copied = Price(_NODE + _COPIED_ELEMENT * half, ELEMENT * (half + 1))
        return below + (step + copied).times(over.length), Size(0, over.length, item)

    def _match(self, text: Node, pattern: Node, bound: Mapping[str, Size]) -> Priced:
        if not isinstance(pattern, Constant) or not isinstance(pattern.value, str):
            words = "the cost of a pattern that is no constant is not known; write it as one text, or use contains"
            raise CostLimitExceeded(pattern.at, words)
        below, size = self.of(text, bound)
        found = patterns.read(pattern.value)
        sets = found.sets(size.text)
        microseconds = (
            _PATTERN + _INSTRUCTION * found.instructions + (_SET + _SET_STEP * found.steps) * sets + _PARSED_BYTE * size.text
        )
        if sets * (_KEPT_SET + _KEPT_STEP * found.steps) > _KEPT:
            microseconds += (_NFA_BYTE + _NFA_STEP * found.steps) * size.text
        return below + Price(microseconds, _INSTRUCTION_BYTES * found.instructions + _SET_BYTES * sets), NOTHING

    def _call(self, node: Call, bound: Mapping[str, Size]) -> Priced:
        if node.function == "?:":
            (if_, _), (then, one), (else_, other) = (self.of(each, bound) for each in node.operands)
            return if_ + (then | else_) + Price(_NODE), one | other
        below, sizes = self._all(node.operands, bound)
        if (known := _CALLS.get(node.function)) is None:
            words = f"the cost of the function {node.function} is not known; use an operator, contains, startsWith or matches"
            raise CostLimitExceeded(node.at, words)
        if node.function in _OF_ZONES and len(node.operands) > 1:
            _check_zone(node.operands[1])
        cost, size = known(sizes)
        return below + Price(_NODE) + cost, size


def _check(at: Position, cost: Price, event: str) -> None:
    for value, most, words, advice in (
        (
            cost.rounds,
            MAX_ROUNDS,
            f"goes round its loops {cost.rounds:,} times, and {MAX_ROUNDS:,} are",
            "nest fewer loops, or use `in` for the inner one",
        ),
        (
            cost.bytes,
            MAX_BYTES,
            f"builds {cost.bytes / 1024**2:,.1f} MiB, and {MAX_BYTES // 1024**2} are",
            "build less, outside of loops",
        ),
        (
            cost.microseconds,
            MAX_MICROSECONDS,
            f"takes {cost.microseconds / 1000:,.1f} ms, and {MAX_MICROSECONDS // 1000} are",
            "take it out of the loop, repeat less in its pattern, or use a shorter variable",
        ),
    ):
        if value > most:
            raise CostLimitExceeded(at, f"for {event} this {words} the most; {advice}")


def _list(sizes: list[Size]) -> Size:
    item = None
    for size in sizes:
        item = either(item, size)
    return Size(0, len(sizes), item)


def _of_constant(value: object) -> Size:
    if isinstance(value, str):
        return Size(len(value.encode(errors="surrogatepass")))
    return Size(len(value)) if isinstance(value, bytes) else NOTHING


# An absolute name, or one with dots, would be opened as a file; one that is a pipe would never answer.
_ZONE = re.compile(r"[+-]?\d\d:\d\d|[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,2}")


def _check_zone(zone: Node) -> None:
    if not isinstance(zone, Constant) or not isinstance(zone.value, str) or not _ZONE.fullmatch(zone.value):
        raise CostLimitExceeded(zone.at, "a time zone must be a constant such as 'Europe/Berlin' or '+02:00'")


def _plain(_sizes: list[Size]) -> Priced:
    return Price(), NOTHING


def _compare(sizes: list[Size]) -> Priced:
    return Price(_COMPARED_BYTE * min(size.weight for size in sizes)), NOTHING


def _search(sizes: list[Size]) -> Priced:
    """The library compares where the first byte fits, and a text that repeats itself makes it compare nearly all."""
    text, wanted = sizes
    return Price(text.text * (_SEARCHED_BYTE + _COMPARED_NEEDLE * wanted.text)), NOTHING


def _member(sizes: list[Size]) -> Priced:
    wanted, among = sizes
    compared = min(wanted.weight * among.length, among.weight)
    return Price(_ENTRY + _COPIED_ELEMENT * among.length + _COMPARED_BYTE * compared), NOTHING


def _index(sizes: list[Size]) -> Priced:
    """Of a key that is not there, the library's complaint has the text."""
    over, at = sizes
    return Price(_ENTRY + _READ_BYTE * at.text), over.item or NOTHING


def _join(sizes: list[Size]) -> Priced:
    """Of texts or of lists; of numbers there is nothing to build."""
    size = sizes[0] + sizes[1]
    built = size.text + ELEMENT * size.length
    return Price(_BUILT_BYTE * size.text + _COPIED_ELEMENT * size.length, built), size


def _to_text(sizes: list[Size]) -> Priced:
    size = Size(sizes[0].text) | _NUMBER
    return Price((_PARSED_BYTE + _BUILT_BYTE) * size.text, size.text), size


def _from_text(sizes: list[Size]) -> Priced:
    return Price(_ENTRY + _PARSED_BYTE * sizes[0].text), NOTHING


def _read(sizes: list[Size]) -> Priced:
    return Price(_READ_BYTE * sizes[0].text), NOTHING


def _same(sizes: list[Size]) -> Priced:
    return Price(), sizes[0]


def _of_moment(_sizes: list[Size]) -> Priced:
    return Price(1.0), NOTHING


_OF_ZONES = (
    *("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear"),
    *("getHours", "getMinutes", "getSeconds", "getMilliseconds"),
)
_CALLS: dict[str, Callable[[list[Size]], Priced]] = {
    **dict.fromkeys(("&&", "||", "!", "-", "*", "/", "%", "type"), _plain),
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "startsWith", "endsWith"), _compare),
    **dict.fromkeys(("int", "uint", "double", "bool", "timestamp", "duration"), _from_text),
    **dict.fromkeys(("string", "bytes"), _to_text),
    **dict.fromkeys(_OF_ZONES, _of_moment),
    "contains": _search,
    "in": _member,
    "[]": _index,
    "+": _join,
    "size": _read,
    "dyn": _same,
}
"""What each function costs, besides what its operands do. There is no price for any other."""
