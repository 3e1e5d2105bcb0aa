"""CEL expressions as Spark columns, as far as both mean the same.

Where CEL has no answer (an index out of range), Spark has null; and as in CEL `false && …` is false and `true || …` is true
whatever the other side is, three-valued logic gives the same end: what is not true in the end is a no. What Spark means
otherwise is not translated (regular expressions that are more than a text, arithmetic beyond sums of small numbers, maps),
nor what could take Spark long: macros in macros, macros whose condition names a variable of the event's JSON, and more than 12
references to such variables. Spark's optimizer puts the parsing of the JSON where a variable is named, so it would parse for
each element, and it does for each reference. Such expressions are evaluated by CEL itself over Arrow batches
(`cel_batches.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings.cel.expression import parse
from tidings.cel.translatable import plain_pattern
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


def works(spark: SparkSession, text: str) -> bool:
    """Whether Spark takes the columns of an expression. Tried on a row of nothing: a plan that fails would stop everybody."""
    names = ("event", "bucket", "key", "principal", "catalog", "metadata", "filter")
    row = spark.createDataFrame([("", "", "", "", "{}", None, text)], ", ".join(f"{name} string" for name in names))
    try:
        matches(row, [text]).collect()
    except Exception as error:  # whatever it is: if the JVM has died, the next round says so
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


def _found(text: Column, pattern: str) -> Column:
    wanted, begins, ends = plain_pattern(pattern)
    if begins and ends:
        return text == wanted
    return (F.startswith if begins else F.endswith if ends else F.contains)(text, F.lit(wanted))


class _Translation:
    """One expression, with the variables of the macros around a node."""

    def __init__(self, bound: Mapping[str, Column]) -> None:
        self._bound = bound

    def of(self, node: Node) -> Column:
        match node:
            case Constant(value=value, gives=gives):
                return F.lit(value).cast("bigint") if gives == "int" else F.lit(value)
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
            return _found(self.of(operands[0]), str(operands[1].value))
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
                return F.get(columns[0], columns[1].try_cast("int"))
            case "size":
                return (F.length(columns[0]) if operands[0].gives == "string" else F.size(columns[0])).cast("bigint")
            case "+" | "-":
                if operands[0].gives == "string":
                    return F.concat(*columns)
                return columns[0] + columns[1] if function == "+" else columns[0] - columns[1]
        raise AssertionError(function)
