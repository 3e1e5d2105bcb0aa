"""The vocabulary: values that cannot be wrong."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import STATUS, CallerError
from tidings.events import keys, names
from tidings.events.arn import PubSubTopic
from tidings.events.positions import START, Position
from tidings.events.profiles import AWS


def test_an_arn_and_a_topic_name_are_the_same_thing() -> None:
    topic = PubSubTopic.from_arn("arn:gcp:pubsub::my-gcp-project:my-bucket-events")
    assert topic.name == "projects/my-gcp-project/topics/my-bucket-events"
    assert PubSubTopic.from_name(topic.name) == topic


@pytest.mark.parametrize(
    "arn",
    [
        "",
        "arn:aws:sns:us-east-1:123456789012:topic",
        "arn:gcp:pubsub:us:my-project:topic",
        "arn:gcp:pubsub::my-project",
        "arn:gcp:pubsub::my-project:topic:more",
        "arn:gcp:pubsub::My-Project:topic",
        "arn:gcp:pubsub::my-project:to",
        "arn:gcp:pubsub::my-project:google-topic",
        "arn:gcp:pubsub::my-project:a/b/c",
        "arn:gcp:pubsub::my-project:topic\n",
    ],
)
def test_a_wrong_arn_is_refused_with_its_value(arn: str) -> None:
    with pytest.raises(CallerError, match="ARN could not be parsed") as refused:
        PubSubTopic.from_arn(arn)
    assert refused.value.elements["ArgumentValue"] == arn


def test_a_change_is_asked_for_by_its_name_and_by_its_category() -> None:
    assert names.wanted_by("ObjectCreated:Put") == ["s3:ObjectCreated:Put", "s3:ObjectCreated:*"]
    assert all(set(names.wanted_by(name)) <= AWS.subscribable for name in names.NAMES)


@pytest.mark.parametrize(
    ("key", "encoded"),
    [
        ("plain/key.txt", None),
        ("a b", "a+b"),
        ("a+b", "a%2Bb"),
        ("a%b", "a%25b"),
        ("*~?", "%2A~%3F"),
        ("straße/ö", "stra%C3%9Fe/%C3%B6"),
        ("日本", "%E6%97%A5%E6%9C%AC"),
        ('"\\\x01', "%22%5C%01"),
    ],
)
def test_the_golden_table_of_encoded_keys(key: str, encoded: str | None) -> None:
    assert keys.encoded_if_different(key) == encoded


@given(st.text())
def test_an_encoded_key_never_needs_escaping_in_json(key: str) -> None:
    try:
        encoded = keys.form_encoded(key)
    except UnicodeEncodeError:  # a lone surrogate: the store refuses it as a key
        return
    assert encoded.isascii()
    assert encoded.isprintable()
    assert not set(encoded) & set('"\\')


def test_positions_are_ordered_by_window_first() -> None:
    assert START < Position(1, 0) < Position(1, 5) < Position(2, 1)
    assert Position(2, 7).just_before < Position(2, 7)


def test_an_error_survives_the_way_between_processes() -> None:
    error = CallerError("NoSuchBucket", "gone", BucketName="b")
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, again.message, again.elements, again.status) == ("NoSuchBucket", "gone", {"BucketName": "b"}, 404)


def test_every_error_has_a_status_of_its_kind() -> None:
    assert all(400 <= status < 600 for status in STATUS.values())
