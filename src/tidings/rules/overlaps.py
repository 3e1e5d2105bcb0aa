"""What the rules of one bucket must not be together: too many, of the same name, or after the same change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, islice

from tidings.errors import CallerError
from tidings.events.profiles import Profile
from tidings.rules.model import Rule, invalid
from tidings.rules.problems import MOST_NAMED


def overlap(one: Rule, other: Rule) -> bool:
    """Whether there can be a change that both want: an event in common, and filters that one key can satisfy both of."""
    mine, theirs = ((rule.filter.prefix, rule.filter.suffix) for rule in (one, other))
    return meet(mine, theirs) and bool(in_common(one.events, other.events))


def meet(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """One prefix begins with the other and one suffix ends with the other: then a key with the longer of each has both."""
    (prefix, suffix), (their_prefix, their_suffix) = one, other
    begin = prefix.startswith(their_prefix) or their_prefix.startswith(prefix)
    return begin and (suffix.endswith(their_suffix) or their_suffix.endswith(suffix))


def in_common(ones: Sequence[str], others: Sequence[str]) -> set[str]:
    """The events that both ask for, by the narrower of the two names where one is a wildcard."""
    return {event for mine in set(ones) for theirs in set(others) for event in _both(mine, theirs)}


def _both(one: str, other: str) -> Iterator[str]:
    for wide, narrow in ((one, other), (other, one)):
        if wide == narrow or (wide.endswith(":*") and narrow.startswith(wide[:-1])):
            yield narrow


def problems_together(rules: Sequence[Rule], profile: Profile) -> Iterator[CallerError]:
    """What is wrong with rules of which each by itself is a good one."""
    if len(rules) > profile.most_rules:
        sentence = f"There are {len(rules)} configurations. A bucket has {profile.most_rules} at most."
        yield invalid("NotificationConfiguration", str(len(rules)), sentence)
        return  # pairs of all of them would be the work of seconds
    for config_id, times in Counter(rule.config_id for rule in rules).items():
        if times > 1:
            sentence = (
                f"Same ID used for multiple configurations. IDs must be unique: {config_id[:200]!r} is there {times} times."
            )
            yield invalid("Id", config_id, sentence)
    met = (pair for pair in combinations(rules, 2) if overlap(*pair))
    for one, other in islice(met, MOST_NAMED):
        yield invalid(
            "TopicConfiguration",
            f"{one.config_id}, {other.config_id}",
            "Configuration is ambiguously defined. Cannot have overlapping suffixes in two rules if the prefixes are"
            f" overlapping for the same event type: {one.config_id[:100]!r} and {other.config_id[:100]!r} do.",
        )
