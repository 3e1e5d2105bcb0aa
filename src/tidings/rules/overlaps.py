"""What the rules of one bucket must not be together: too many, of the same name, or after the same change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from tidings.errors import CallerError
from tidings.events.names import expanded
from tidings.events.profiles import Profile
from tidings.rules.model import Rule, invalid


def overlap(one: Rule, other: Rule) -> bool:
    """Whether there can be a change that both want: an event in common, and filters that one key can satisfy both of."""
    prefixes, suffixes = (one.filter.prefix, other.filter.prefix), (one.filter.suffix, other.filter.suffix)
    starts = prefixes[0].startswith(prefixes[1]) or prefixes[1].startswith(prefixes[0])
    ends = suffixes[0].endswith(suffixes[1]) or suffixes[1].endswith(suffixes[0])
    return starts and ends and not expanded(one.events).isdisjoint(expanded(other.events))


def problems_together(rules: Sequence[Rule], profile: Profile) -> Iterator[CallerError]:
    """What is wrong with rules of which each by itself is a good one."""
    if len(rules) > profile.most_rules:
        sentence = f"There are {len(rules)} configurations. A bucket has {profile.most_rules} at most."
        yield invalid("NotificationConfiguration", str(len(rules)), sentence)
    for config_id, times in Counter(rule.config_id for rule in rules).items():
        if times > 1:
            sentence = (
                f"Same ID used for multiple configurations. IDs must be unique: {config_id[:200]!r} is there {times} times."
            )
            yield invalid("Id", config_id, sentence)
    for one, other in combinations(rules, 2):
        if overlap(one, other):
            yield invalid(
                "TopicConfiguration",
                f"{one.config_id}, {other.config_id}",
                "Configuration is ambiguously defined. Cannot have overlapping suffixes in two rules if the prefixes are"
                f" overlapping for the same event type: {one.config_id[:100]!r} and {other.config_id[:100]!r} do.",
            )
