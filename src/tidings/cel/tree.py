"""What a checked expression is made of, for whoever translates it: to Spark's columns, to words.

The library gives the tree as a `cel.expr.CheckedExpr`, the message that the language's specification defines
(cel-spec, proto/cel/expr). It is read here with just the fields that are needed, and handed on as nine kinds of node. What
is none of the first eight is `Other`: such an expression is refused (`cost.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

PREFIX = "event."
"""The variables are `event.type` and so on to the library: a bare `type` is CEL's own name for types. Nobody writes it."""

Kind = Literal["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null", "other"]
"""What a node gives. `other`: a type, a duration, a moment, or what is only known when it is evaluated."""

OPERATORS = {
    "_==_": "==",
    "_!=_": "!=",
    "_<_": "<",
    "_<=_": "<=",
    "_>_": ">",
    "_>=_": ">=",
    "@in": "in",
    "_&&_": "&&",
    "_||_": "||",
    "!_": "!",
    "_?_:_": "?:",
    "_[_]": "[]",
    "_+_": "+",
    "_-_": "-",
    "_*_": "*",
    "_/_": "/",
    "_%_": "%",
    "-_": "-",
}
"""How calls of operators are named here. `&&` and `||` have two operands each: a chain is a tree of them. `-` has 1 or 2."""
FUNCTIONS = ("startsWith", "endsWith", "contains", "matches", "size")
"""The functions that filters are made of. What else CEL's standard library has (`string`, `int` …) works too."""
MACROS = ("exists", "all", "exists_one", "map", "filter")


@dataclass(frozen=True, slots=True)
class Position:
    """Where something begins in the text. Both count from 1, in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Constant:
    """`'main'`, `3`, `true`, `null`."""

    value: bool | int | float | str | bytes | None
    gives: Kind
    at: Position


@dataclass(frozen=True, slots=True)
class Variable:
    """`type`: one of `variables.NAMES`; or, if it is `bound`, the variable of a macro around it."""

    name: str
    bound: bool
    gives: Kind
    at: Position


@dataclass(frozen=True, slots=True)
class Call:
    """`a == b` is `Call("==", (a, b))`, `a.startsWith(b)` is `Call("startsWith", (a, b))`, `c ? a : b` is
    `Call("?:", (c, a, b))`."""

    function: str
    operands: tuple[Node, ...]
    gives: Kind
    at: Position


@dataclass(frozen=True, slots=True)
class Items:
    """`['a', 'b']`."""

    elements: tuple[Node, ...]
    gives: Kind
    at: Position


@dataclass(frozen=True, slots=True)
class Macro:
    """`over.exists(variable, condition)`, and so `all` and `exists_one`; `over.filter(variable, condition)`;
    `over.map(variable, element)` and `over.map(variable, condition, element)`."""

    name: str
    over: Node
    variable: str
    condition: Node | None
    element: Node | None
    gives: Kind
    at: Position


@dataclass(frozen=True, slots=True)
class Entries:
    """`{'a': 1}`: a map. It can be evaluated, not translated."""

    keys: tuple[Node, ...]
    values: tuple[Node, ...]
    gives: Kind
    at: Position


@dataclass(frozen=True, slots=True)
class Field:
    """`over.name`, and `has(over.name)`: the value of a map's key."""

    over: Node
    name: str
    gives: Kind
    at: Position


@dataclass(frozen=True, slots=True)
class TypeName:
    """`int`, as in `type(1) == int`."""

    name: str
    gives: Kind
    at: Position


@dataclass(frozen=True, slots=True)
class Other:
    """What is CEL, but nothing that a filter needs. `what` is its name in words."""

    what: str
    gives: Kind
    at: Position


Node = Constant | Variable | Call | Items | Macro | Entries | Field | TypeName | Other


def read(serialized: bytes, text: str) -> Node:
    """The tree of an expression that the library has checked and serialized."""
    return _Reader(serialized, text).root()


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    for each in children(node):
        yield from walk(each)


def children(node: Node) -> tuple[Node, ...]:
    """Those that are directly below it."""
    match node:
        case Call():
            return node.operands
        case Items():
            return node.elements
        case Macro():
            return tuple(each for each in (node.over, node.condition, node.element) if each is not None)
        case Entries():
            return (*node.keys, *node.values)
        case Field():
            return (node.over,)
    return ()


class _Reader:
    def __init__(self, serialized: bytes, text: str) -> None:
        wrapped = _messages()["Any"].FromString(serialized)
        self._checked = _messages()["CheckedExpr"].FromString(wrapped.value)
        self._types = {entry.key: entry.value for entry in self._checked.type_map}
        self._offsets = {entry.key: entry.value for entry in self._checked.source_info.positions}
        self._text = text

    def root(self) -> Node:
        return self._node(self._checked.expr, frozenset())

    def _node(self, expr: Any, bound: frozenset[str]) -> Node:
        gives, at = self._kind(expr.id), self._at(expr.id)
        match expr.WhichOneof("kind"):
            case "const_expr":
                return Constant(_value(expr.const_expr), gives, at)
            case "ident_expr":
                return _named(expr.ident_expr.name, bound, gives, at)
            case "call_expr":
                call = expr.call_expr
                operands = [call.target, *call.args] if call.HasField("target") else call.args
                function = OPERATORS.get(call.function, call.function)
                return Call(function, tuple(self._node(each, bound) for each in operands), gives, at)
            case "list_expr":
                return Items(tuple(self._node(each, bound) for each in expr.list_expr.elements), gives, at)
            case "struct_expr" if not expr.struct_expr.message_name:
                entries = expr.struct_expr.entries
                keys = tuple(self._node(each.map_key, bound) for each in entries)
                return Entries(keys, tuple(self._node(each.value, bound) for each in entries), gives, at)
            case "struct_expr":
                return Other(f"a message of type {expr.struct_expr.message_name}", gives, at)
            case "select_expr":
                return Field(self._node(expr.select_expr.operand, bound), expr.select_expr.field, gives, at)
            case "comprehension_expr":
                return self._macro(expr.comprehension_expr, bound, gives, at)
        return Other("an unknown kind of expression", gives, at)

    def _macro(self, loop: Any, bound: frozenset[str], gives: Kind, at: Position) -> Node:
        """The parser has made a loop of it already. Which macro it was, its step tells.

        What the loop collects is read by nothing but its own step: another name for it is an unknown one.
        """
        over = self._node(loop.iter_range, bound)
        variable, collected = loop.iter_var, loop.accu_var
        inside = (bound | {variable}) - {collected}
        step = loop.loop_step.call_expr
        start = loop.accu_init.WhichOneof("kind")
        other = Other("an unknown loop", gives, at)
        if loop.iter_var2 or variable == collected:
            return other
        if step.function in ("_&&_", "_||_") and start == "const_expr" and _is(step.args[0], collected):
            name = "all" if step.function == "_&&_" else "exists"
            return Macro(name, over, variable, self._node(step.args[1], inside), None, gives, at)
        condition = None
        if step.function == "_?_:_":
            condition = self._node(step.args[0], inside)
            if not _is(step.args[2], collected):
                return other
            step = step.args[1].call_expr
            if start == "const_expr" and step.function == "_+_" and step.args[1].WhichOneof("kind") == "const_expr":
                return Macro("exists_one", over, variable, condition, None, gives, at)
        if step.function != "_+_" or start != "list_expr" or not _is(step.args[0], collected):
            return other
        element = self._node(step.args[1].list_expr.elements[0], inside)
        if condition is not None and isinstance(element, Variable) and element.bound and element.name == variable:
            return Macro("filter", over, variable, condition, None, gives, at)
        return Macro("map", over, variable, condition, element, gives, at)

    def _at(self, node: int) -> Position:
        return position(self._text, self._offsets.get(node, 0))

    def _kind(self, node: int) -> Kind:
        known = self._types.get(node)
        which = known.WhichOneof("kind") if known is not None else None
        if known is not None and which == "primitive":
            return _PRIMITIVES.get(known.primitive, "other")
        return _KINDS.get(which or "", "other")


def _named(name: str, bound: frozenset[str], gives: Kind, at: Position) -> Node:
    if name in bound:
        return Variable(name, True, gives, at)
    if name.startswith(PREFIX):
        return Variable(name.removeprefix(PREFIX), False, gives, at)
    return TypeName(name, gives, at) if name in _TYPE_NAMES else Other(f"the name {name}", gives, at)


def _is(expr: Any, name: str) -> bool:
    return expr.WhichOneof("kind") == "ident_expr" and bool(expr.ident_expr.name == name)


def position(text: str, offset: int) -> Position:
    before = text[:offset]
    return Position(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


def _value(constant: Any) -> Any:
    which = constant.WhichOneof("kind")
    return None if which in (None, "null_value") else getattr(constant, which)


_PRIMITIVES: dict[int, Kind] = {1: "bool", 2: "int", 3: "uint", 4: "double", 5: "string", 6: "bytes"}
_TYPE_NAMES = frozenset(
    [
        *("bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"),
        *("google.protobuf.Duration", "google.protobuf.Timestamp"),
    ]
)
_KINDS: dict[str, Kind] = {"list_type": "list", "map_type": "map", "null": "null"}

_FIELDS: dict[str, tuple[tuple[str, int, str], ...]] = {
    "Any": (("type_url", 1, "string"), ("value", 2, "bytes")),
    "CheckedExpr": (("type_map", 3, "*TypeEntry"), ("expr", 4, "Expr"), ("source_info", 5, "SourceInfo")),
    "TypeEntry": (("key", 1, "int64"), ("value", 2, "Type")),
    "Type": (
        *(("null", 2, "|int64"), ("primitive", 3, "|int64")),
        *(("list_type", 6, "|Empty"), ("map_type", 7, "|Empty")),
    ),
    "Empty": (),
    "SourceInfo": (("positions", 4, "*PositionEntry"),),
    "PositionEntry": (("key", 1, "int64"), ("value", 2, "int64")),
    "Expr": (
        *(("id", 2, "int64"), ("const_expr", 3, "|Constant"), ("ident_expr", 4, "|Ident")),
        *(("select_expr", 5, "|Select"), ("call_expr", 6, "|Call"), ("list_expr", 7, "|CreateList")),
        *(("struct_expr", 8, "|CreateStruct"), ("comprehension_expr", 9, "|Comprehension")),
    ),
    "Constant": (
        *(("null_value", 1, "|int64"), ("bool_value", 2, "|bool"), ("int64_value", 3, "|int64")),
        *(("uint64_value", 4, "|uint64"), ("double_value", 5, "|double")),
        *(("string_value", 6, "|string"), ("bytes_value", 7, "|bytes")),
    ),
    "Ident": (("name", 1, "string"),),
    "Call": (("target", 1, "Expr"), ("function", 2, "string"), ("args", 3, "*Expr")),
    "CreateList": (("elements", 1, "*Expr"),),
    "Select": (("operand", 1, "Expr"), ("field", 2, "string")),
    "CreateStruct": (("message_name", 1, "string"), ("entries", 2, "*Entry")),
    "Entry": (("map_key", 3, "Expr"), ("value", 4, "Expr")),
    "Comprehension": (
        *(("iter_var", 1, "string"), ("iter_range", 2, "Expr"), ("accu_var", 3, "string"), ("accu_init", 4, "Expr")),
        *(("loop_step", 6, "Expr"), ("iter_var2", 8, "string")),
    ),
}
"""Of each message the fields that are read: name, number, type. `*` is a list, `|` one of those of which only one is there."""


@cache
def _messages() -> dict[str, Any]:
    """Classes for the messages, in a pool of their own: another library may bring the same messages along."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="tidings/cel.proto", package="tidings.cel", syntax="proto3")
    for name, described in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in described:
            field = message.field.add(name=field_name, number=number)
            field.label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
            if kind.startswith("|"):
                if not message.oneof_decl:
                    message.oneof_decl.add(name="kind")
                field.oneof_index = 0
            plain = kind.lstrip("*|")
            if plain in _FIELDS:
                field.type, field.type_name = field.TYPE_MESSAGE, f".tidings.cel.{plain}"
            else:
                field.type = getattr(field, f"TYPE_{plain.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes: dict[str, Any] = message_factory.GetMessageClassesForFiles([file.name], pool)
    return {name.rpartition(".")[2]: found for name, found in classes.items()}
