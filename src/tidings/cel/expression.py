"""An expression: checked when it is made, so that there is no way to hold a wrong one; then evaluated for each event.

CEL itself is Google's own library (ADR 11), which is loaded when the first expression is made. It cannot be stopped while it
evaluates, and what it builds is freed at the end: so an expression is priced before it is ever evaluated (`cost.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError

from tidings.cel import sizes, variables
from tidings.cel.cost import CostLimitExceeded, Price, price
from tidings.cel.tree import PREFIX, Call, Constant, Node, Position, Variable, position, read, walk
from tidings.errors import ExpressionMistake
from tidings.events.catalog import CatalogEvent

MAX_CHARACTERS = 4096
_REASON = 500
"""Characters of why an expression has no answer: of a key that a map does not have the library repeats all."""
NO_MEMORY = "there was no memory left for this event; give the process more memory, or make the filter build less"
_PLACE = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_UNKNOWN = re.compile(r"undeclared reference to '(.*?)' \(in container '.*?'\)")
_END = re.compile(r".*mismatched input '<EOF>' expecting .*")
_DEEP = re.compile(r"recursion (?:limit|depth)")
_CALLED = re.compile(r"\s*\(")


def parse(text: str) -> Node:
    """The tree of an expression that gives a boolean. Raises ExpressionMistake, which says where it is wrong."""
    return Expression(text).tree


class Expression:
    """Text that was found to be right: CEL, with no other variables than ours, certain to give a boolean, and not too dear."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > MAX_CHARACTERS:
            raise _mistake(text, position(text, MAX_CHARACTERS), f"an expression has at most {MAX_CHARACTERS} characters")
        if (lone := re.search("[\ud800-\udfff]", text)) is not None:
            raise _mistake(text, position(text, lone.start()), "half of a pair of surrogates is no character")
        try:
            self._compiled = _environment().compile(text)
        except RuntimeError as error:
            raise _explained(text, str(error)) from None
        gives = self._compiled.return_type().name()
        if gives != "BOOL":
            begin = position(text, len(text) - len(text.lstrip()))
            known = (
                "something that is only known when it is evaluated" if gives == "DYN" else f"a value of type {gives.lower()}"
            )
            raise _mistake(text, begin, f"it must give true or false for every event, but gives {known}")
        try:
            self.tree = read(self._compiled.serialize(), text)
        except DecodeError:  # protobuf reads a hundred levels, and a macro is several
            raise _too_deep(text) from None
        self.price = self._priced()
        """For the largest event."""
        self._check_patterns()
        self.variables = _used(self.tree)
        """The names of the ones that it needs."""

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def matches(self, event: CatalogEvent) -> bool:
        """Raises ExpressionFailed where the expression has no answer for this event: an index that is out of range, or an
        event so large that the expression would cost too much."""
        return self.evaluate(variables.of_event(event, self.variables))

    def evaluate(self, values: Mapping[str, variables.Value]) -> bool:
        """The same over variables (`variables.of_event`, `variables.of_json`): at least those of `self.variables`."""
        self._check_sizes(values)
        data = {PREFIX + name: values[name] for name in self.variables}
        try:
            value = self._compiled.eval(data=data).value()
        except MemoryError:
            raise ExpressionFailed(NO_MEMORY) from None
        except Exception as error:  # a text that is none, or whatever else comes out of the library
            raise ExpressionFailed(_plain(str(error))[:_REASON] or type(error).__name__) from None
        if not isinstance(value, bool):
            raise ExpressionFailed(_plain(str(value))[:_REASON])
        return value

    def _check_sizes(self, values: Mapping[str, variables.Value]) -> None:
        """That an event which is larger than any that the expression was priced for does not cost too much."""
        if sizes.is_larger(values, self.variables):
            if (excess := sizes.excess(values, self.variables)) is not None:
                raise ExpressionFailed(f"this event is too large: {excess}; name fewer variables, or make the event smaller")
            try:
                price(self.tree, sizes.of_values(values, self.variables), "it")
            except CostLimitExceeded as exceeded:
                raise ExpressionFailed(f"this event is too large: {exceeded.words}") from None

    def _priced(self) -> Price:
        try:
            return price(self.tree, sizes.LARGEST)
        except CostLimitExceeded as exceeded:
            raise _mistake(self.text, exceeded.at, exceeded.words) from None

    def _check_patterns(self) -> None:
        for node in walk(self.tree):
            if isinstance(node, Call) and node.function == "matches" and isinstance(pattern := node.operands[-1], Constant):
                asked = _environment().compile("''.matches(type)").eval(data={PREFIX + "type": pattern.value})
                if not isinstance(asked.value(), bool):
                    raise _mistake(self.text, pattern.at, _plain(str(asked.value())))


def _used(tree: Node) -> tuple[str, ...]:
    used = {node.name for node in walk(tree) if isinstance(node, Variable) and not node.bound}
    return tuple(name for name in variables.NAMES if name in used)


class ExpressionFailed(Exception):
    """A right expression has no answer for this event. Whoever filters takes it for a no."""


@lru_cache(maxsize=1)
def _environment() -> Any:
    from cel_expr_python import cel

    text, texts = cel.Type.STRING, cel.Type.List(cel.Type.STRING)
    declared = {PREFIX + name: text for name in variables.TEXTS} | {PREFIX + name: texts for name in variables.LISTS}
    return cel.NewEnv(variables=declared, container=PREFIX.rstrip("."))


def _explained(text: str, said: str) -> ExpressionMistake:
    """The library's first complaint, in our words where its own are about its insides."""
    found = _PLACE.search(said)
    if _DEEP.search(said):
        return _too_deep(text)
    if found is None:
        return _mistake(text, Position(1, 1), _plain(said))
    at = Position(max(1, int(found[1])), max(1, int(found[2])))
    words = _plain(found[3])
    if unknown := _UNKNOWN.search(words):
        words = _not_there(unknown[1], _is_called(text, at))
    elif _END.fullmatch(words):
        words = "something is missing at the end"
    elif words == "reserved identifier: namespace":
        words = "namespace is a reserved word of CEL; the variable is called contentNamespace"
    return _mistake(text, at, words)


def _is_called(text: str, at: Position) -> bool:
    """A function that is not there is complained of where its parenthesis opens."""
    return _CALLED.match(text.split("\n")[at.line - 1][at.column - 1 :]) is not None


def _not_there(name: str, called: bool) -> str:
    if called:
        return f"there is no function {name}"
    near = get_close_matches(name, variables.NAMES, 1)
    return f"there is no variable {name}; " + (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(variables.NAMES)}"
    )


def _plain(said: str) -> str:
    """Without the code of the library's status, before and behind."""
    return re.sub(r"^[A-Z_]+: | \[[A-Z_]+\]$", "", said.strip()).split("\n")[0]


def _too_deep(text: str) -> ExpressionMistake:
    return _mistake(text, Position(1, 1), "it is nested too deeply: CEL takes 32 levels, and fewer of macros")


def _mistake(text: str, at: Position, words: str) -> ExpressionMistake:
    return ExpressionMistake(text, at.line, at.column, words)
