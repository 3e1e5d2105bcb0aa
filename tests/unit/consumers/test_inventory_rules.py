"""What one notification says about the inventory: each event type in each versioning state, and what is refused."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from csv import reader
from datetime import datetime
from typing import Any

import pytest

from tidings.consumers.inventory.job import figures, words
from tidings.consumers.inventory.merging import COLUMNS
from tidings.consumers.inventory.offsets import Ends, beginning, behind
from tidings.consumers.inventory.rules import DELETE, MARKER, NULL_DELETED, TEST_EVENT, WRITE, Refused, Row, read
from tidings.consumers.inventory.source import from_json, shared_out, to_json
from tidings.consumers.rows_as_csv import as_csv
from tidings.errors import OperatorError

SEQUENCER = "00000000000000FF"
ID = "0199c1de-8a9d-7d48-8214-9ba1bea0db51"


def said(event_type: str, /, **more: Any) -> dict[str, Any]:
    """A payload as seed 001 shows it; a value of None leaves its field out."""
    payload = {
        "format": "2.0",
        "request_id": "1c8b6e0c-9f6a-489d-a177-a9b0ac7d1d3e",
        "request_time": "2018-07-04T17:12:28.030Z",
        "event_type": event_type,
        "bucket_name": "myVault",
        "bucket_uuid": "8b7bbeef-9f6a-192d-d839-a0b9a8c7f00d",
        "system_uuid": "48def817-f0a3-1949-abe2-9193be91de22",
        "object_name": "object.foo",
        "object_length": 123456,
        **({"object_etag": "51252794dea40abc1e5d65a47a5f806f"} if event_type == WRITE else {}),
        **({} if event_type == MARKER else {"content_type": "image/jpg"}),
        **more,
    }
    return {name: value for name, value in payload.items() if value is not None}


def row(payload: dict[str, Any], sequencer: str | None = SEQUENCER) -> Row | Refused:
    found = read(json.dumps(payload).encode(), sequencer)
    assert isinstance(found, Row | Refused)
    return found


OBJECT, GONE, COVER = "an object", "a tombstone", "a delete marker"


@pytest.mark.parametrize(
    ("event_type", "state", "named", "effect", "version"),
    [
        (WRITE, "enabled", ID, OBJECT, ID),
        (WRITE, "suspended", "null", OBJECT, "null"),
        (WRITE, "not enabled", None, OBJECT, "null"),
        (DELETE, "enabled, a version", ID, GONE, ID),
        (DELETE, "enabled, a marker", ID, GONE, ID),
        (DELETE, "suspended, the null version", "null", GONE, "null"),
        (DELETE, "not enabled", None, GONE, "null"),
        (MARKER, "enabled", ID, COVER, ID),
        (MARKER, "suspended, no null version", "null", COVER, "null"),
        (NULL_DELETED, "suspended, a null version or marker", "null", COVER, "null"),
    ],
)
def test_each_event_in_each_state_says_what_becomes_of_one_version(
    event_type: str, state: str, named: str | None, effect: str, version: str
) -> None:
    found = row(said(event_type, object_version=named))
    assert isinstance(found, Row), state
    assert (found.bucket, found.bucket_id) == ("myVault", "8b7bbeef-9f6a-192d-d839-a0b9a8c7f00d")
    assert (found.key, found.version_id, found.sequencer, found.event_type) == ("object.foo", version, SEQUENCER, event_type)
    assert (found.tombstone, found.delete_marker) == (effect == GONE, effect == COVER)
    assert found.event_at == "2018-07-04T17:12:28.030000+00:00"
    if effect == OBJECT:
        assert (found.size, found.etag, found.content_type) == (123456, "51252794dea40abc1e5d65a47a5f806f", "image/jpg")
    else:
        assert found.etag is None
    if effect == COVER:  # what it says of the object that was there is not about the marker
        assert (found.size, found.content_type) == (0, None)


def test_a_null_of_json_is_the_null_version_too() -> None:
    payload = said(NULL_DELETED) | {"object_version": None}
    found = row(payload)
    assert isinstance(found, Row)
    assert found.version_id == "null"


def test_an_object_without_a_content_type_has_none() -> None:
    found = row(said(WRITE, content_type=None))
    assert isinstance(found, Row)
    assert found.content_type is None


@pytest.mark.parametrize("zone", ["+23:00", "-23:59", "+00:00:30"])
def test_a_time_in_any_zone_is_told_in_utc_which_postgresql_takes(zone: str) -> None:
    found = row(said(WRITE, request_time=f"2018-07-04T17:12:28{zone}"))
    assert isinstance(found, Row)
    assert found.event_at.endswith("+00:00")
    assert datetime.fromisoformat(found.event_at) == datetime.fromisoformat(f"2018-07-04T17:12:28{zone}")


def test_a_test_event_is_nothing_to_keep() -> None:
    body = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-01-01T00:00:00.000Z", "Bucket": "my-bucket"}
    assert read(json.dumps(body).encode(), None) is TEST_EVENT


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (said("Object:Restore"), "event type 'Object:Restore' is not known"),
        (said(WRITE, event_type=None), "event type None"),
        (said(WRITE, format="3.0"), "format is '3.0'"),
        (said(WRITE, object_etag=None), "object_etag is None"),
        (said(WRITE, object_name=""), "object_name is ''"),
        (said(WRITE, object_name=5), "object_name is 5"),
        (said(WRITE, object_name="a\x00b"), "object_name holds a NUL"),
        (said(WRITE, object_name="a\ud800b"), "half of a surrogate pair"),
        (said(WRITE, object_name="ß" * 513), "object_name has 1026 bytes"),
        (said(WRITE, object_version="v" * 1025), "object_version has 1025 bytes"),
        (said(WRITE, object_version=7), "object_version is 7"),
        (said(WRITE, bucket_name=None), "bucket_name is None"),
        (said(WRITE, bucket_uuid="b" * 256), "bucket_uuid has 256 bytes"),
        (said(WRITE, object_length=-1), "object_length is -1"),
        (said(WRITE, object_length=True), "object_length is True"),
        (said(WRITE, object_length=1.5), "object_length is 1.5"),
        (said(WRITE, object_length=2**63), "not a number of bytes"),
        (said(WRITE, object_length=None), "object_length is None"),
        (said(WRITE, request_time="yesterday"), "request_time is 'yesterday'"),
        (said(WRITE, request_time="2018-07-04T17:12:28.030"), "with its zone"),
        (said(WRITE, request_time="0001-01-01T00:00:00+05:00"), "request_time"),
        (said(WRITE, request_time=5), "request_time is 5"),
        (said(WRITE, content_type="a\x00b"), "content_type holds a NUL"),
        (said(MARKER), "no object_version"),
        (said(NULL_DELETED), "no object_version"),
        (said(NULL_DELETED, object_version=ID), "not null"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(payload: dict[str, Any], words: str) -> None:
    found = row(payload)
    assert isinstance(found, Refused)
    assert words in found.reason


@pytest.mark.parametrize("sequencer", [None, "", "FF", "00000000000000ff", SEQUENCER + "0", "0000000000000 FF", "\ufffd" * 16])
def test_without_a_sequencer_nobody_knows_what_came_first(sequencer: str | None) -> None:
    found = row(said(WRITE), sequencer)
    assert isinstance(found, Refused)
    assert "sequencer" in found.reason


@pytest.mark.parametrize(
    "body", [None, b"", b"{", b"\xff\xfe\x00", b"[]", b'"text"', b"[" * 100_000, b'{"object_length": NaN}', b"null"]
)
def test_no_body_stops_the_reader(body: bytes | None) -> None:
    assert isinstance(read(body, SEQUENCER), Refused)


def test_rows_written_as_csv_are_the_rows() -> None:
    odd = 'a"b,\nc\\.\r\n\t\\N ß'
    written = row(said(WRITE, object_name=odd, content_type=None))
    deleted = row(said(DELETE, object_version=ID))
    assert isinstance(written, Row)
    assert isinstance(deleted, Row)
    lines = list(reader(io.StringIO(as_csv([written, deleted], COLUMNS).decode(), newline="")))
    shown = [
        ["" if each is None else str(each).lower() if isinstance(each, bool) else str(each) for each in one]
        for one in (written, deleted)
    ]
    assert lines == shown
    assert as_csv([], COLUMNS) == b""


ENDS = {"t": {0: Ends(10, 110), 1: Ends(0, 0), 2: Ends(0, 300)}}


def test_a_limit_is_shared_among_partitions_by_what_they_hold() -> None:
    end = shared_out({"t": {0: 10}}, ENDS, None, 40)
    assert end == {"t": {0: 20, 2: 30}}
    assert shared_out({}, ENDS, None, None) == {"t": {0: 110, 2: 300}}
    assert shared_out({"t": {0: 110, 2: 300}}, ENDS, None, 10) == {"t": {0: 110, 2: 300}}


def test_every_partition_that_holds_something_gets_its_turn() -> None:
    ends = {"t": {0: Ends(0, 1_000_000), 1: Ends(0, 1)}}
    assert shared_out({}, ends, None, 100)["t"][1] == 1


def test_nothing_is_read_behind_the_target() -> None:
    assert shared_out({}, ENDS, {"t": {0: 50}}, None) == {"t": {0: 50}}


def test_offsets_survive_json() -> None:
    offsets = {"t": {0: 5, 11: 2**40}}
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


def test_reading_begins_where_it_ended_and_with_the_oldest_of_a_new_partition() -> None:
    assert beginning({"t": {0: 60}}, ENDS, False) == {"t": {0: 60, 1: 0, 2: 0}}
    assert behind({"t": {0: 60, 2: 300}}, ENDS) == 50


@pytest.fixture(params=[({"t": {0: 9}}, "9 to 9 of t/0 are gone"), ({"t": {2: 301}}, "ends at 300")])
def lost(request: pytest.FixtureRequest) -> Iterator[Any]:
    return request.param


def test_messages_that_are_gone_unread_are_told_and_passed_only_on_demand(lost: Any) -> None:
    stored, words = lost
    with pytest.raises(OperatorError, match=words):
        beginning(stored, ENDS, False)
    assert beginning(stored, ENDS, True) == {"t": {0: 10, 1: 0, 2: 0}}


def test_a_run_is_summed_up_in_a_line() -> None:
    assert words(Counter()) == "0 events, 0 rows changed"
    counts = Counter(events=9, changed=7, tests=1, refused=2)
    assert words(counts) == "9 events, 7 rows changed, 2 could not be used: `tidings inventory rejects` shows why"
    assert figures(Counter(events=9, lag=3)) == {"events": 9, "changed": 0, "tests": 0, "refused": 0}
