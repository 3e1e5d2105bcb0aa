"""What a notification says, and what an upload is called, as functions of text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.consumers.uploads.errors import UploadError
from tidings.consumers.uploads.labels import Upload, key_of, labelled, metadata, named
from tidings.consumers.uploads.notification import Created, NotANotification, read

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "r2"
TEST_EVENT = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-01-17T10:30:00.123Z", "Bucket": "uploads"}


@pytest.mark.parametrize(
    ("golden", "key"),
    [
        ("put", "photos/lake.jpg"),
        ("put-odd-key", 'straße/a b+"c"\\.txt'),
        ("copy", "photos/lake.jpg"),
        ("multipart", "photos/lake.jpg"),
        ("post", "photos/lake.jpg"),
    ],
)
def test_whatever_creates_an_object_is_read_as_its_place(golden: str, key: str) -> None:
    assert read((GOLDEN / f"{golden}.json").read_text()) == Created("my-bucket", key)


@pytest.mark.parametrize("golden", ["delete", "delete-marker"])
def test_whatever_removes_an_object_is_nothing_to_do(golden: str) -> None:
    assert read((GOLDEN / f"{golden}.json").read_text()) is None


@pytest.mark.parametrize("document", [TEST_EVENT, {"action": "LifecycleDeletion"}, {"action": "SomethingNew", "object": 1}])
def test_the_test_event_and_actions_that_create_nothing_are_nothing_to_do(document: object) -> None:
    assert read(json.dumps(document)) is None


@pytest.mark.parametrize(
    "body",
    [
        *("", "text", "[]", "1", "null", "{}", "[" * 100_000, '{"action": 1}', '{"Records": []}', '{"Event": "s3:Other"}'),
        '{"action": "PutObject"}',
        '{"action": "PutObject", "bucket": "b", "object": []}',
        '{"action": "PutObject", "bucket": "b", "object": {"key": ""}}',
        '{"action": "PutObject", "bucket": "b", "object": {"key": 1}}',
        '{"action": "PutObject", "bucket": "", "object": {"key": "k"}}',
        '{"action": "PutObject", "bucket": "b", "object": {"key": "a\\u0000b"}}',
        '{"action": "PutObject", "bucket": "b", "object": {"key": "\\ud800"}}',
        json.dumps({"action": "PutObject", "bucket": "b", "object": {"key": "x" * 1025}}),
    ],
)
def test_a_message_of_which_nothing_can_be_made_says_so(body: str) -> None:
    with pytest.raises(NotANotification):
        read(body)


NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"), min_size=1, max_size=100)


@given(NAMES, NAMES)
def test_every_name_comes_back_from_metadata_that_is_ascii_and_no_header_changes(organisation: str, name: str) -> None:
    carried = metadata(Upload(organisation, name))
    for value in carried.values():
        assert value.isascii()
        assert value == " ".join(value.split()), "whoever trims a header must not change it"
    assert labelled({label.lower(): value for label, value in carried.items()}) == Upload(organisation, name)


def test_a_plain_name_is_plain_in_metadata() -> None:
    assert metadata(Upload("org_abc", "my report-1.pdf")) == {"organizationId": "org_abc", "name": "my report-1.pdf"}
    assert metadata(Upload("org_abc", "Übersicht"))["name"] == "=?UTF-8?B?w5xiZXJzaWNodA==?="


@pytest.mark.parametrize(
    "found",
    [
        *({}, {"organizationid": "o"}, {"name": "n"}, {"organizationid": "", "name": "n"}, {"organizationid": "o", "name": ""}),
        {"organizationid": "o", "name": "=?UTF-8?B?AA==?="},  # NUL
        {"organizationid": "o", "name": "x" * 1025},
    ],
)
def test_an_object_whose_metadata_names_no_upload_is_none(found: dict[str, str]) -> None:
    assert labelled(found) is None


def test_what_only_looks_like_an_encoded_word_is_taken_as_it_is() -> None:
    for text in ("=?UTF-8?B?w5?=", "=?UTF-8?B?/w==?=", "=?latin1?Q?x?="):
        assert labelled({"organizationid": "o", "name": text}) == Upload("o", text)


@pytest.mark.parametrize("name", ["a", "my-report", "folder/a b.pdf", "größe", "..a", "x" * 1020])
def test_a_name_is_a_part_of_a_key(name: str) -> None:
    assert key_of(named("org", name)) == f"org/{name}"


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\nb", "a\0", "x" * 1021, "ö" * 511])
def test_a_name_that_no_key_can_have_is_refused_and_named(name: str) -> None:
    with pytest.raises(UploadError, match="cannot be the name of an upload") as refused:
        named("org", name)
    assert refused.value.status == 400
