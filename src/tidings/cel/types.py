"""Which types of events an expression can want at all, as far as its text says so: `type == 'COMMIT' && …`."""

from __future__ import annotations

from functools import lru_cache

from tidings.cel.expression import parse
from tidings.cel.tree import Call, Constant, Items, Node, Variable
from tidings.errors import ExpressionMistake


@lru_cache(maxsize=10_000)
def types_of(text: str) -> frozenset[str] | None:
    """An event of another type is certain to be no match. None: nothing is certain."""
    try:
        return _types(parse(text))
    except ExpressionMistake:  # whoever evaluates it says so
        return None


def _types(node: Node) -> frozenset[str] | None:
    """The types for which a node can be true."""
    match node:
        case Call(function="&&", operands=(left, right)):
            one, other = _types(left), _types(right)
            return one & other if one is not None and other is not None else other if one is None else one
        case Call(function="||", operands=(left, right)):
            one, other = _types(left), _types(right)
            return None if one is None or other is None else one | other
        case Call(function="==", operands=(Variable(name="type", bound=False), Constant(value=str(wanted)))):
            return frozenset([wanted])
        case Call(function="==", operands=(Constant(value=str(wanted)), Variable(name="type", bound=False))):
            return frozenset([wanted])
        case Call(function="in", operands=(Variable(name="type", bound=False), Items(elements=elements))):
            known = [each.value for each in elements if isinstance(each, Constant) and isinstance(each.value, str)]
            return frozenset(known) if len(known) == len(elements) else None
    return None
