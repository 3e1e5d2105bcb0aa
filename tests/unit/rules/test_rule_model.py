from __future__ import annotations

import re
from dataclasses import FrozenInstanceError

import pytest

from tidings.errors import CallerError
from tidings.events.arn import PubSubTopic
from tidings.events.profiles import AWS
from tidings.rules.model import KeyFilter, Rule, derived_id

TOPIC = PubSubTopic("my-gcp-project", "my-bucket-events")


@pytest.mark.parametrize("name", ["prefix", "suffix"])
def test_a_filter_holds_1024_characters_and_not_one_more(name: str) -> None:
    assert KeyFilter(**{name: "ž" * 1024})
    with pytest.raises(CallerError, match=f"The {name} filter has 1025 characters. Use 1024 at most.") as refused:
        KeyFilter(**{name: "ž" * 1025})
    assert (refused.value.code, refused.value.elements["ArgumentName"]) == ("InvalidArgument", name)


@pytest.mark.parametrize("character", ["\x00", "\x01", "\x1f", "\ud800", "\ufffe", "\uffff"])
def test_a_filter_has_no_character_that_the_configuration_could_not_be_shown_with(character: str) -> None:
    with pytest.raises(CallerError, match=r"which XML cannot write. Write it .* percent-encoded") as refused:
        KeyFilter(suffix=f"a{character}")
    assert refused.value.code == "InvalidArgument"


def test_both_halves_of_a_filter_are_named_when_both_are_wrong() -> None:
    with pytest.raises(CallerError, match=r"2 problems: \(1\) The prefix .* \(2\) The suffix "):
        KeyFilter("p" * 1025, "s" * 1025)


@pytest.mark.parametrize("event", sorted(AWS.subscribable))
def test_a_rule_takes_every_event_that_can_be_asked_for(event: str) -> None:
    assert Rule("id", TOPIC, (event,)).events == (event,)


@pytest.mark.parametrize(
    "event", ["", "s3:*", "ObjectCreated:Put", "s3:ObjectCreated", "s3:objectcreated:put", "s3:ObjectCreated:Put "]
)
def test_an_event_that_is_not_supported_is_named_beside_those_that_are(event: str) -> None:
    with pytest.raises(CallerError) as refused:
        Rule("id", TOPIC, ("s3:ObjectCreated:Put", event))
    assert refused.value.code == "InvalidArgument"
    assert refused.value.elements == {"ArgumentName": "Event", "ArgumentValue": event}
    assert f"The event {event!r} is not supported." in refused.value.message
    assert all(supported in refused.value.message for supported in AWS.subscribable)


def test_a_rule_without_events_is_refused() -> None:
    with pytest.raises(CallerError, match=r"InvalidArgument: No event is named. Name at least one of s3:"):
        Rule("id", TOPIC, ())


@pytest.mark.parametrize("config_id", ["", "x" * 256, "a\nb", "a\x00b", "a\x7fb", "a\x85b", "a\ud800"])
def test_an_id_is_1_to_255_characters_and_none_of_them_controls_anything(config_id: str) -> None:
    assert Rule("ž" * 255, TOPIC, ("s3:ObjectCreated:*",))
    with pytest.raises(CallerError, match="InvalidArgument: The Id "):
        Rule(config_id, TOPIC, ("s3:ObjectCreated:*",))


def test_a_derived_id_is_the_same_for_the_same_content_and_different_for_any_other() -> None:
    put, everything, logs = ("s3:ObjectCreated:Put",), ("s3:ObjectCreated:*", "s3:ObjectRemoved:*"), KeyFilter("logs/")
    other = PubSubTopic("my-gcp-project", "other-events")
    contents = [
        (TOPIC, put, KeyFilter()),
        (other, put, KeyFilter()),
        (TOPIC, everything, KeyFilter()),
        (TOPIC, tuple(reversed(everything)), KeyFilter()),
        (TOPIC, put, logs),
        (TOPIC, put, KeyFilter(suffix="logs/")),
    ]
    assert len({derived_id(*content) for content in contents}) == len(contents)
    assert derived_id(TOPIC, list(put), KeyFilter()) == derived_id(TOPIC, put, KeyFilter())
    # written down: were it to change, every configuration without an Id would become another one
    assert derived_id(*contents[0]) == "0935603077e19a64"
    assert all(re.fullmatch("[0-9a-f]{16}", derived_id(*content)) for content in contents)


def test_a_rule_cannot_be_changed_into_a_wrong_one() -> None:
    rule = Rule("id", TOPIC, ("s3:ObjectCreated:*",))
    with pytest.raises(FrozenInstanceError):
        rule.events = ()  # type: ignore[misc]
