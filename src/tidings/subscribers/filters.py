"""Which events a listener wants: predicates that are combined with `&`, `|` and `~`, and expressions in CEL.

    filters.types("CONTENT_STORED") & filters.namespaces("sales") & ~filters.references("scratch")
    filters.cel("type == 'CONTENT_STORED' && contentNamespace.startsWith('sales')")

A filter that fails for an event (`FilterFailed`) wants it not, however it is combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidings.events.catalog import TYPES, CatalogEvent

_TYPES = frozenset(kind.type for kind in TYPES)


class FilterFailed(Exception):
    """A filter has no answer for this event."""


class EventFilter:
    """A predicate over events. Its words say what it asks, for logs."""

    __slots__ = ("_wants", "words")

    def __init__(self, wants: Callable[[CatalogEvent], bool], words: str) -> None:
        self._wants = wants
        self.words = words

    def __call__(self, event: CatalogEvent) -> bool:
        return self._wants(event)

    def __and__(self, other: EventFilter) -> EventFilter:
        return EventFilter(lambda event: self(event) and other(event), f"({self.words} & {other.words})")

    def __or__(self, other: EventFilter) -> EventFilter:
        return EventFilter(lambda event: self(event) or other(event), f"({self.words} | {other.words})")

    def __invert__(self) -> EventFilter:
        return EventFilter(lambda event: not self(event), f"~{self.words}")

    def __repr__(self) -> str:
        return self.words


def everything() -> EventFilter:
    return EventFilter(lambda _: True, "everything()")


def nothing() -> EventFilter:
    return EventFilter(lambda _: False, "nothing()")


def types(*names: str) -> EventFilter:
    """Events of these types: COMMIT, MERGE, …"""
    if wrong := sorted(set(names) - _TYPES):
        raise ValueError(f"there is no event type {', '.join(wrong)}; there are {', '.join(sorted(_TYPES))}")
    return _one_of("types", names, lambda event: (event.type,))


def references(*names: str) -> EventFilter:
    """Events on these references, by their short names (main) or their full ones (/refs/heads/main)."""
    return _one_of("references", names, lambda event: (event.about.name, event.about.full_name))


def repositories(*ids: str) -> EventFilter:
    return _one_of("repositories", ids, lambda event: (event.repository,))


def roles(*names: str) -> EventFilter:
    """Events of callers who have one of these roles."""
    return _one_of("roles", names, lambda event: event.roles)


def contents(*keys: str | tuple[str, ...]) -> EventFilter:
    """Events of these contents: `sales.eu.orders`, or a tuple where an element has a dot in it."""
    return _one_of("contents", map(_key, keys), lambda event: (_key_of(event),))


def namespaces(*names: str | tuple[str, ...]) -> EventFilter:
    """Events of contents in these namespaces, at any depth: `sales` has sales.orders and sales.eu.orders."""
    return _one_of("namespaces", map(_key, names), lambda event: (_key_of(event)[:n] for n in range(1, len(_key_of(event)))))


def where(wants: Callable[[CatalogEvent], bool]) -> EventFilter:
    """A function of your own. It is called in the listener's thread; one that hangs is treated as a listener that hangs."""
    return EventFilter(lambda event: bool(wants(event)), f"where({getattr(wants, '__name__', wants)!s})")


def cel(text: str) -> EventFilter:
    """An expression over the variables in `tidings.cel.variables`. Raises ExpressionMistake, which says where it is wrong."""
    from tidings.cel.expression import Expression, ExpressionFailed  # which load a large library

    expression = Expression(text)

    def wants(event: CatalogEvent) -> bool:
        try:
            return expression.matches(event)
        except ExpressionFailed as failed:
            raise FilterFailed(f"{text}: {failed}") from None

    return EventFilter(wants, f"cel({text!r})")


def _one_of(name: str, wanted: Iterable[object], of: Callable[[CatalogEvent], Iterable[object]]) -> EventFilter:
    chosen = frozenset(wanted)
    words = ", ".join(sorted(map(repr, chosen)))
    return EventFilter(lambda event: not chosen.isdisjoint(of(event)), f"{name}({words})")


def _key(name: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.split(".")) if isinstance(name, str) else name


def _key_of(event: CatalogEvent) -> tuple[str, ...]:
    key: tuple[str, ...] = getattr(event, "content_key", ())
    return key
