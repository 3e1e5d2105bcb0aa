"""A rule that nobody has set yet, and what it would share with a rule that is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidings.events.keys import form_encoded
from tidings.rules.model import event_problems, filter_problems
from tidings.rules.problems import refuse


class Wants(Protocol):
    """Which changes a rule wants: what every kind of rule has."""

    @property
    def events(self) -> Sequence[str]: ...
    @property
    def prefix(self) -> str: ...
    @property
    def suffix(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Draft:
    """A rule without a destination. Like a rule, a draft is always a valid one."""

    events: tuple[str, ...]
    prefix: str = ""
    suffix: str = ""

    def __post_init__(self) -> None:
        refuse([*event_problems(self.events), *filter_problems(self.prefix, self.suffix)])


def shared(one: Wants, other: Wants) -> list[str]:
    """The events that both want of keys that both want; empty where no change can match both.

    A filter may be meant for the literal key or for the encoded one (see `match`), so `my file` and `my+file` want the
    same keys. The comparison errs on one side only: it may name a rule too many, never one too few.
    """
    forms = ((one.prefix, one.suffix), (other.prefix, other.suffix))
    encoded = tuple((form_encoded(prefix), form_encoded(suffix)) for prefix, suffix in forms)
    if not any(_meet(*pair) for pair in (forms, (encoded[0], forms[1]), (forms[0], encoded[1]))):
        return []
    return sorted({event for mine in one.events for theirs in other.events for event in _both(mine, theirs)})


def _meet(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """One prefix begins with the other and one suffix ends with the other: then a key with the longer of each has both."""
    (prefix, suffix), (their_prefix, their_suffix) = one, other
    begin = prefix.startswith(their_prefix) or their_prefix.startswith(prefix)
    return begin and (suffix.endswith(their_suffix) or their_suffix.endswith(suffix))


def _both(one: str, other: str) -> Iterator[str]:
    """The narrower of the two events, if it is among what the wider one stands for."""
    for wide, narrow in ((one, other), (other, one)):
        if wide == narrow or (wide.endswith(":*") and narrow.startswith(wide[:-1])):
            yield narrow
