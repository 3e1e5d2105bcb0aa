"""Which expressions Spark's columns can stand for, because both mean the same (`delivery/cel_columns.py`)."""

from __future__ import annotations

import re
from functools import cache

from tidings.cel.expression import parse
from tidings.cel.tree import Call, Constant, Items, Macro, Node, Variable

_COMPARED = ("==", "!=", "<", "<=", ">", ">=")
_ASKED = ("startsWith", "endsWith", "contains")
_KINDS = ("bool", "int", "string", "list")
_SMALL = 2**31


class Untranslatable(Exception):
    """Why an expression is evaluated by CEL itself."""


def why_not(text: str) -> str | None:
    """Why an expression cannot be columns; None if it can."""
    try:
        _check(parse(text))
    except Untranslatable as reason:
        return str(reason)
    return None


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
                _check(each)
        case Macro(name=name, over=over, condition=condition):
            if name not in ("exists", "all") or condition is None:
                raise Untranslatable(f"the macro {name}")
            _check(over)
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
        as_java(str(operands[1].value))
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


# One character as both libraries see it: as it is, escaped, or a class of such; then how often. Groups may not be repeated:
# what RE2 does in one pass, Java may try in more ways than there is time for.
_ONE = r"(?:[\w/ :,@~=&%#;<>\"'!-]|\\[dw.\-/+*?()\[\]{}|^$\\]|\.|\[\^?(?:[\w./ :@-]|\\[.\-])+\])"
_PIECE = re.compile(rf"{_ONE}(?:[*+?]|\{{\d{{1,2}}(?:,\d{{0,2}})?\}})?|\((?:\?:)?|\)(?![*+?{{])|\|")


@cache
def as_java(pattern: str) -> str:
    """A pattern of RE2 that means the same to Java's library."""
    body, begin, end = pattern, "", ""
    if body.startswith("^"):
        body, begin = body[1:], "^"
    if body.endswith("$") and not body.endswith("\\$"):
        body, end = body[:-1], r"\z"
    at = quantified = depth = 0
    while at < len(body):
        piece = _PIECE.match(body, at)
        if piece is None or not body.isascii():
            raise Untranslatable(f"the pattern {pattern!r}: Java's library may see it otherwise")
        depth += piece[0].startswith("(") - (piece[0] == ")")
        if piece[0] == "|" and depth == 0 and (begin or end):
            raise Untranslatable(f"the pattern {pattern!r}: an alternative beside an anchor")
        quantified += piece[0][-1] in "*+}" and len(piece[0]) > 1 and piece[0][0] != "\\"
        at = piece.end()
    if quantified > 3:  # each one multiplies the ways that Java may try
        raise Untranslatable(f"the pattern {pattern!r}: too many repetitions")
    return f"(?d){begin}{body}{end}"
