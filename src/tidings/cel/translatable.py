"""Which expressions Spark's columns can stand for, because both mean the same (`delivery/cel_columns.py`)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple, TypeGuard

from tidings.cel.expression import parse
from tidings.cel.tree import Call, Constant, Items, Macro, Node, Variable, children, walk
from tidings.errors import ExpressionMistake

_COMPARED = ("==", "!=", "<", "<=", ">", ">=")
_ASKED = ("startsWith", "endsWith", "contains")
_KINDS = ("bool", "int", "string", "list")
_SMALL = 2**31
_MOST_PARTS = 200
"""A larger plan costs everybody's rounds."""
_MOST_PARSES = 12
"""Of the event's JSON, which Spark parses once for each reference: 1 to 2 ms each for the largest message."""
_NOT_PARSED = ("type", "repository", "reference", "fullReference", "referenceType", "createdBy")
"""Variables that are columns of a change. The others are in its JSON."""
_PARSES = {"contentNamespace": 2}
"""Of a reference, where it is not one: its column names the JSON more than once."""


class Untranslatable(Exception):
    """Why an expression is evaluated by CEL itself."""


class Evaluation(NamedTuple):
    """How an expression is evaluated: by Spark's columns, by CEL over batches, or never."""

    by: Literal["columns", "batches", "refused"]
    because: str | None = None


@lru_cache(maxsize=10_000)
def evaluation(text: str) -> Evaluation:
    try:
        tree = parse(text)
    except ExpressionMistake as mistake:  # it was registered by a version that took it
        return Evaluation("refused", mistake.summary)
    try:
        _check_size(tree)
        _check(tree)
    except Untranslatable as reason:
        return Evaluation("batches", str(reason))
    return Evaluation("columns")


def why_not(text: str) -> str | None:
    """Why an expression cannot be columns; None if it can."""
    return evaluation(text).because


class _Plan(NamedTuple):
    """How large the columns of an expression are: their parts, and how often they parse the event's JSON."""

    parts: int
    parses: int


def _check_size(tree: Node) -> None:
    plan = _plan(tree)
    if plan.parts > _MOST_PARTS:
        raise Untranslatable(f"more than {_MOST_PARTS} parts")
    if plan.parses > _MOST_PARSES:
        raise Untranslatable(f"more than {_MOST_PARSES} references to variables that are in the event's JSON")


def _plan(node: Node) -> _Plan:
    below = [_plan(each) for each in children(node)]
    if isinstance(node, Call) and node.function == "?:":  # its condition is there twice: for true and for false
        below.append(below[0])
    parses = _PARSES.get(node.name, 1) if _is_parsed(node) else 0
    return _Plan(1 + sum(each.parts for each in below), parses + sum(each.parses for each in below))


def _is_parsed(node: Node) -> TypeGuard[Variable]:
    return isinstance(node, Variable) and not node.bound and node.name not in _NOT_PARSED


def _check(node: Node) -> None:
    """Raises Untranslatable."""
    match node:
        case Constant(gives=gives, value=value):
            if gives not in _KINDS or (gives == "int" and not _is_small(node)):
                raise Untranslatable(f"the constant {value!r} has no equal among columns")
        case Variable():
            pass
        case Items(elements=elements):
            if len({each.gives for each in elements}) > 1:
                raise Untranslatable("a list of different kinds")
            for each in elements:
                if not isinstance(each, Constant | Variable):  # if one has no answer, CEL has none for the list
                    raise Untranslatable("a list of what is not known before")
                _check(each)
        case Macro(name=name, over=over, condition=condition):
            if name not in ("exists", "all") or condition is None:
                raise Untranslatable(f"the macro {name}")
            if not isinstance(over, Variable) or over.bound or any(isinstance(each, Macro) for each in walk(condition)):
                raise Untranslatable("a macro in a macro, or over something else than a variable")
            if (parsed := next(filter(_is_parsed, walk(condition)), None)) is not None:
                raise Untranslatable(f"a macro whose condition names {parsed.name}, which Spark would parse for each element")
            _check(condition)
        case Call(function=function, operands=operands):
            _check_call(function, operands)
        case _:
            raise Untranslatable("a map or a field of one")


def _check_call(function: str, operands: tuple[Node, ...]) -> None:
    for operand in operands:
        _check(operand)
    kinds = {operand.gives for operand in operands}
    if function in _COMPARED:
        if len(kinds) > 1 or not kinds <= {*_KINDS}:
            raise Untranslatable(f"{function} of different kinds")
    elif function == "matches":
        if not isinstance(operands[1], Constant):
            raise Untranslatable("matches with a pattern that is no constant")
        plain_pattern(str(operands[1].value))
    elif function in ("+", "-"):
        if kinds not in ({"int"}, {"string"}) or len(operands) != 2 or (kinds == {"int"} and not all(map(_is_small, operands))):
            raise Untranslatable(f"the arithmetic {function}")
    elif function == "in":
        if operands[1].gives != "list":
            raise Untranslatable("`in` over something that is no list")
    elif function == "[]":
        if operands[0].gives != "list" or operands[1].gives != "int":
            raise Untranslatable("an index of something that is no list")
    elif function not in (*_ASKED, "&&", "||", "!", "?:", "size"):
        raise Untranslatable(f"the function {function}")
    elif function == "size" and not kinds <= {"string", "list"}:
        raise Untranslatable("the size of something that is no list and no text")


def _is_small(node: Node) -> bool:
    """Whether sums of it cannot overflow."""
    if isinstance(node, Constant):
        return isinstance(node.value, int) and abs(node.value) < _SMALL
    return isinstance(node, Call) and node.function == "size"


# A pattern's plain text: characters that stand for themselves, in RE2 as everywhere, and escaped ones.
_PLAIN = re.compile(r"(?:[\w/ :,@~=&%#;<>\"'!-]|\\[.\-/+*?()\[\]{}|^$\\])*", re.ASCII)
_ESCAPED = re.compile(r"\\(.)")


class Plain(NamedTuple):
    """A pattern without anything to look for but a text: at the beginning, at the end, both, or anywhere."""

    text: str
    begins: bool
    ends: bool


@lru_cache(maxsize=1000)
def plain_pattern(pattern: str) -> Plain:
    """Raises Untranslatable for all others: a library that goes back, as Java's does, may need longer than anybody lives."""
    body = pattern
    if begins := body.startswith("^"):
        body = body[1:]
    if ends := body.endswith("$") and not body.endswith("\\$"):
        body = body[:-1]
    if not _PLAIN.fullmatch(body):
        raise Untranslatable(f"the pattern {pattern!r}, which is more than a text")
    return Plain(_ESCAPED.sub(r"\1", body), begins, ends)
