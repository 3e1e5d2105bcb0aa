"""The parse tree that translators read, and that it says all that the text says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import catalog_events
from tidings.cel import variables
from tidings.cel.expression import Expression, parse
from tidings.cel.tree import Call, Constant, Entries, Field, Items, Macro, Node, Position, TypeName, Variable, walk
from tidings.events.catalog import CatalogEvent


def test_a_comparison_is_a_call_of_its_operator() -> None:
    assert parse("type ==\n 'COMMIT'") == Call(
        "==",
        (
            Variable("type", False, "string", Position(1, 1)),
            Constant("COMMIT", "string", Position(2, 2)),
        ),
        "bool",
        Position(1, 6),
    )


@pytest.mark.parametrize(
    ("text", "function"),
    [
        *((f"type {operator} 'a'", operator) for operator in ("==", "!=", "<", "<=", ">", ">=")),
        *((f"true {operator} false", operator) for operator in ("&&", "||")),
        *((f"type.{name}('a')", name) for name in ("startsWith", "endsWith", "contains", "matches")),
        ("type in roles", "in"),
        ("!true", "!"),
        ("true ? true : false", "?:"),
    ],
)
def test_each_operator_and_function_has_its_own_name(text: str, function: str) -> None:
    tree = parse(text)
    assert isinstance(tree, Call)
    assert tree.function == function
    assert len(tree.operands) == {"!": 1, "?:": 3}.get(function, 2)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("roles.exists(r, r == 'a')", "exists"),
        ("roles.all(r, r == 'a')", "all"),
        ("roles.exists_one(r, r == 'a')", "exists_one"),
    ],
)
def test_a_quantifier_is_a_macro_with_a_bound_variable(text: str, name: str) -> None:
    tree = parse(text)
    assert isinstance(tree, Macro)
    assert (tree.name, tree.variable, tree.element) == (name, "r", None)
    assert isinstance(tree.over, Variable)
    assert not tree.over.bound
    assert [node.bound for node in walk(tree) if isinstance(node, Variable) and node.name == "r"] == [True]


def test_lists_that_are_made_of_lists_are_macros_too() -> None:
    filtered, mapped, both = (
        next(node for node in walk(parse(f"size(roles.{text}) > 0")) if isinstance(node, Macro))
        for text in ("filter(r, r == 'a')", "map(r, r + 'x')", "map(r, r != 'b', r + 'x')")
    )
    assert (filtered.name, mapped.name, both.name) == ("filter", "map", "map")
    assert (mapped.condition, filtered.element) == (None, None)
    assert both.condition is not None
    assert both.element is not None


def test_a_macro_s_variable_may_hide_one_of_ours() -> None:
    tree = parse("roles.exists(type, type == 'a') && type == 'b'")
    assert [node.bound for node in walk(tree) if isinstance(node, Variable) and node.name == "type"] == [True, False]


def test_a_map_and_a_field_of_one_are_read_with_what_is_in_them() -> None:
    [entries] = [node for node in walk(parse("{'a': type, message: 'b'}['a'] == 'b'")) if isinstance(node, Entries)]
    assert [type(each) for each in (*entries.keys, *entries.values)] == [Constant, Variable, Variable, Constant]
    [field] = [node for node in walk(parse("has({'a': type}.a)")) if isinstance(node, Field)]
    assert (field.name, type(field.over)) == ("a", Entries)
    assert any(isinstance(node, TypeName) for node in walk(parse("type(1) == int")))


def plain(node: Node, values: dict[str, Any]) -> Any:
    """The tree evaluated by hand, for the part of CEL whose meaning is Python's as well."""
    match node:
        case Constant():
            return node.value
        case Variable():
            return values[node.name]
        case Items():
            return [plain(each, values) for each in node.elements]
        case Macro():
            together = {"exists": any, "all": all, "exists_one": lambda found: sum(found) == 1}[node.name]
            assert node.condition is not None
            return together([plain(node.condition, {**values, node.variable: each}) for each in plain(node.over, values)])
        case Call():
            return _CALLS[node.function](*(plain(each, values) for each in node.operands))
    raise AssertionError(node)


_CALLS: dict[str, Any] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "&&": lambda a, b: a and b,
    "||": lambda a, b: a or b,
    "!": lambda a: not a,
    "?:": lambda c, a, b: a if c else b,
    "in": lambda a, b: a in b,
    "size": len,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": lambda a, b: b in a,
}

_text = st.sampled_from(list(variables.TEXTS)) | catalog_events.words.map(repr)
_atoms = st.one_of(
    st.builds("{} == {}".format, _text, _text),
    st.builds("{}.{}({})".format, _text, st.sampled_from(["startsWith", "endsWith", "contains"]), _text),
    st.builds("{} in {}".format, _text, st.sampled_from(list(variables.LISTS))),
    st.builds("{} in [{}, {}]".format, _text, _text, _text),
    st.builds("size({}) < {}".format, st.sampled_from(variables.NAMES), st.integers(0, 3)),
    st.builds("{}.{}(x, x != {})".format, st.sampled_from(list(variables.LISTS)), st.sampled_from(["exists", "all"]), _text),
    st.builds("{}.exists_one(x, x in roles)".format, st.sampled_from(list(variables.LISTS))),
)
expressions = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    ),
    max_leaves=6,
)


@given(expressions, st.lists(catalog_events.events, min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_the_tree_means_what_the_library_says(text: str, events: list[CatalogEvent]) -> None:
    expression = Expression(text)
    for event in events:
        assert plain(expression.tree, variables.of_event(event)) is expression.matches(event), text
