"""What a rule is: which events, which keys, which destination. A value of these types is always a valid one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, NamedTuple

from tidings.errors import CallerError
from tidings.events.arn import Address
from tidings.events.profiles import AWS, Profile
from tidings.rules.problems import refuse

MAX_FILTER = 1024
MAX_ID = 255

_DERIVED_ID = 16
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# What XML 1.0 has no way to write: a filter with it could be stored and never be shown again.
_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Which keys: literal text at the start, at the end, or both. Empty means not set (seed 000, "Filter Handling")."""

    prefix: str = ""
    suffix: str = ""

    def __post_init__(self) -> None:
        refuse(list(filter_problems(self.prefix, self.suffix)))


@dataclass(frozen=True, slots=True)
class Rule:
    """One notification configuration. `events` stay as the tenant wrote them, wildcards included."""

    config_id: str
    destination: Address
    events: tuple[str, ...]
    filter: KeyFilter = field(default_factory=KeyFilter)

    def __post_init__(self) -> None:
        refuse([*id_problems(self.config_id), *event_problems(self.events)])


class Eventing(NamedTuple):
    """What is known of a bucket's rules before an operation on it begins."""

    recorded: bool = True
    """Whether the project has eventing: of others no change is kept."""
    profile: Profile = AWS
    source: Literal["database", "cache", "unread"] = "database"
    """Where the operation looks for the rules; unread if nowhere."""
    cached: str | None = None


def derived_id(destination: Address, events: Sequence[str], filter: KeyFilter) -> str:
    """The id of a configuration that came without one: made of its content, so that the same document keeps its id."""
    content = json.dumps([destination.arn, *events, {"prefix": filter.prefix, "suffix": filter.suffix}])
    return sha256(content.encode()).hexdigest()[:_DERIVED_ID]


def id_problems(config_id: str) -> Iterator[CallerError]:
    if not 1 <= len(config_id) <= MAX_ID:
        sentence = f"The Id has {len(config_id)} characters. Use 1 to {MAX_ID}, or leave it out to have one made."
        yield invalid("Id", config_id, sentence)
    if _CONTROL.search(config_id):
        yield invalid("Id", config_id, f"The Id {config_id[:MAX_ID]!r} has a control character in it. Leave it out.")


def event_problems(events: Sequence[str], profile: Profile = AWS) -> Iterator[CallerError]:
    supported = ", ".join(sorted(profile.subscribable))
    if not events:
        yield invalid("Event", "", f"No event is named. Name at least one of {supported}.")
    for event in dict.fromkeys(events):
        if event not in profile.subscribable:
            yield invalid("Event", event, f"The event {event[:200]!r} is not supported. Use any of {supported}.")


def filter_problems(prefix: str, suffix: str) -> Iterator[CallerError]:
    for name, value in (("prefix", prefix), ("suffix", suffix)):
        if len(value) > MAX_FILTER:
            sentence = f"The {name} filter has {len(value)} characters. Use {MAX_FILTER} at most."
            yield invalid(name, value, sentence)
        if found := _NOT_IN_XML.search(value):
            sentence = f"The {name} filter has the character {found[0]!r} in it, which XML cannot write."
            yield invalid(name, value, f"{sentence} Write it as in the key of an event: percent-encoded.")


def invalid(name: str, value: str, sentence: str) -> CallerError:
    return CallerError("InvalidArgument", sentence, ArgumentName=name, ArgumentValue=value[:200])
