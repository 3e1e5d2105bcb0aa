"""A rule that nobody has set yet, and what it would share with a rule that is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidings.events.keys import form_encoded
from tidings.events.profiles import Profile
from tidings.rules.model import event_problems, filter_problems
from tidings.rules.overlaps import in_common, meet
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

    def check(self, profile: Profile) -> None:
        """Refuse what the profile has no name for."""
        refuse(list(event_problems(self.events, profile)))


def shared(one: Wants, other: Wants) -> list[str]:
    """The events that both want of keys that both want; empty where no change can match both.

    A filter may be meant for the literal key or for the encoded one (see `match`), so `my file` and `my+file` want the
    same keys. The comparison errs on one side only: it may name a rule too many, never one too few.
    """
    mine, theirs = (one.prefix, one.suffix), (other.prefix, other.suffix)
    if not any(meet(*pair) for pair in ((mine, theirs), (_encoded(mine), theirs), (mine, _encoded(theirs)))):
        return []
    return sorted(in_common(one.events, other.events))


def _encoded(of: tuple[str, str]) -> tuple[str, str]:
    return form_encoded(of[0]), form_encoded(of[1])
