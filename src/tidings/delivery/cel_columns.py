"""CEL expressions as Spark columns, as far as both mean the same.

Where CEL has no answer (an index out of range), Spark has null; and as in CEL `false && …` is false and `true || …` is true
whatever the other side is, three-valued logic gives the same end: what is not true in the end is a no. What Spark means
otherwise is not translated (regular expressions beyond a plain subset, arithmetic, which may overflow, maps): such
expressions are evaluated by CEL itself over Arrow batches (`cel_batches.py`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings.cel.expression import parse
from tidings.cel.tree import Call, Constant, Items, Macro, Node, Variable
from tidings.formats import nessie

log = logging.getLogger(__name__)

NEEDS = ("catalog", "metadata")
"""Columns of a change that the variables are made of, besides those that are always read."""

_SAID = "said"
_JSON = """
    hashBefore string, hashAfter string, contentType string, contentKey struct<elements: array<string>>,
    content struct<id: string>, commitMeta struct<message: string, committer: string, authors: array<string>>,
    sourceReference struct<name: string>
"""
"""Of an event's JSON what the change's other columns do not say."""


class Untranslatable(Exception):
    """Why an expression is evaluated by CEL itself."""


def why_not(text: str) -> str | None:
    """Why an expression cannot be columns; None if it can."""
    try:
        _check(parse(text))
    except Untranslatable as reason:
        return str(reason)
    return None


def works(spark: SparkSession, text: str) -> bool:
    """Whether Spark takes the columns of an expression. Tried on a row of nothing: a plan that fails would stop everybody."""
    names = ("event", "bucket", "key", "principal", "catalog", "metadata", "filter")
    row = spark.createDataFrame([("", "", "", "", "{}", None, text)], ", ".join(f"{name} string" for name in names))
    try:
        matches(row, [text]).collect()
    except PySparkException as error:
        log.warning("the filter %r is evaluated over batches: %s", text, str(error).split("\n")[0])
        return False
    return True


def matches(changes: DataFrame, filters: Iterable[str]) -> DataFrame:
    """The changes that their `filter` wants, if it is one of these; a change without one is wanted."""
    wanted = F.col("filter").isNull()
    for text in filters:
        wanted = F.when(F.col("filter") == text, column(text)).otherwise(wanted)
    return with_variables(changes).where(wanted).drop(_SAID)


def with_variables(changes: DataFrame) -> DataFrame:
    """Changes with what the columns of expressions are made of."""
    return changes.withColumn(_SAID, F.from_json("catalog", _JSON))


def column(text: str) -> Column:
    """True or false, never null."""
    return F.coalesce(_Translation({}).of(parse(text)), F.lit(False))


def _text(value: Column) -> Column:
    return F.coalesce(value, F.lit(""))


def _said(path: str) -> Column:
    return F.col(f"{_SAID}.{path}")


def _elements() -> Column:
    return F.coalesce(_said("contentKey.elements"), F.array().cast("array<string>"))


def _all_but_last(elements: Column) -> Column:
    return F.slice(elements, F.lit(1), F.greatest(F.size(elements) - 1, F.lit(0)))


_VARIABLES: dict[str, Callable[[], Column]] = {
    "type": nessie.event_type,
    "repository": lambda: F.col("bucket"),
    "reference": nessie.reference,
    "fullReference": lambda: F.col("key"),
    "referenceType": lambda: F.when(F.startswith(F.col("key"), F.lit("/refs/tags/")), F.lit("TAG")).otherwise(F.lit("BRANCH")),
    "createdBy": lambda: F.col("principal"),
    "hashBefore": lambda: _text(_said("hashBefore")),
    "hashAfter": lambda: _text(_said("hashAfter")),
    "contentName": lambda: F.array_join(_elements(), "."),
    "contentNamespace": lambda: F.array_join(_all_but_last(_elements()), "."),
    "contentType": lambda: _text(_said("contentType")),
    "contentId": lambda: _text(_said("content.id")),
    "message": lambda: _text(_said("commitMeta.message")),
    "author": lambda: _text(F.get(_said("commitMeta.authors"), 0)),
    "committer": lambda: _text(_said("commitMeta.committer")),
    "sourceReference": lambda: _text(_said("sourceReference.name")),
    "roles": lambda: F.coalesce(F.from_json("metadata", "array<string>"), F.array().cast("array<string>")),
    "contentKey": _elements,
}

_COMPARED: dict[str, Callable[[Column, Column], Column]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_ASKED: dict[str, Callable[[Column, Column], Column]] = {
    "startsWith": F.startswith,
    "endsWith": F.endswith,
    "contains": F.contains,
}
_KINDS = ("bool", "int", "string", "list")
_SMALL = 2**31


class _Translation:
    """One expression, with the variables of the macros around a node."""

    def __init__(self, bound: Mapping[str, Column]) -> None:
        self._bound = bound

    def of(self, node: Node) -> Column:
        match node:
            case Constant(value=value):
                return F.lit(value)
            case Variable(name=name, bound=bound):
                return self._bound[name] if bound else _VARIABLES[name]()
            case Items(elements=elements):
                return F.array(*map(self.of, elements)) if elements else F.array().cast("array<string>")
            case Macro(name=name, over=over, variable=variable, condition=condition):
                assert condition is not None
                loop = F.exists if name == "exists" else F.forall
                return loop(self.of(over), lambda each: _Translation({**self._bound, variable: each}).of(condition))
            case Call(function=function, operands=operands):
                return self._call(function, operands)
        raise AssertionError(node)

    def _call(self, function: str, operands: tuple[Node, ...]) -> Column:
        if function == "matches":
            assert isinstance(operands[1], Constant)
            return F.rlike(self.of(operands[0]), F.lit(_as_java(str(operands[1].value))))
        columns = [self.of(operand) for operand in operands]
        if function in _COMPARED:
            return _COMPARED[function](*columns)
        if function in _ASKED:
            return _ASKED[function](*columns)
        match function:
            case "&&":
                return columns[0] & columns[1]
            case "||":
                return columns[0] | columns[1]
            case "!":
                return ~columns[0]
            case "?:":
                return F.when(columns[0], columns[1]).when(~columns[0], columns[2])
            case "in":
                return F.array_contains(columns[1], columns[0])
            case "[]":
                return F.get(columns[0], columns[1])
            case "size":
                return F.length(columns[0]) if operands[0].gives == "string" else F.size(columns[0])
            case "+" | "-":
                if operands[0].gives == "string":
                    return F.concat(*columns)
                return columns[0] + columns[1] if function == "+" else columns[0] - columns[1]
        raise AssertionError(function)


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
        _as_java(str(operands[1].value))
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
def _as_java(pattern: str) -> str:
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
