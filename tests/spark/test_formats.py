"""What the formats say: golden files for every row of the tables, and every other row against a plain Python rendering."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import catalog_events
import plain_formats
from change_rows import change, routed, spoken
from tidings.events.catalog import Commit, ContentStored
from tidings.events.names import NAMES
from tidings.events.profiles import AWS, STORJ
from tidings.formats import Context

GOLDEN = Path(__file__).parent.parent / "golden"
CONTEXT = Context("us-east-1", AWS, "48def817-f0a3-1949-abe2-9193be91de22", "My Store")
BINARY = Context("us-east-1", AWS, binary=True)

ETAG = "51252794dea40abc1e5d65a47a5f806f"
META = '{"x-amz-meta-foobar": "foobar value", "cache-control": "no-cache", "x-amz-meta-mandm": "green"}'
VERSION = "01a1de8a-9d00-7000-8000-000000000001"
ODD_KEY = 'straße/a b+"c"\\.txt'

TYPED = {"content_type": "image/jpg"}
CONTENT = {"size": 123456, "etag": ETAG, **TYPED}
WRITTEN = {**CONTENT, "metadata": META}
GONE = {"event": "ObjectRemoved:Delete", "size": None, "etag": None, "old_size": 123456, "metadata": META, **TYPED}
EMPTY_ETAG = "d41d8cd98f00b204e9800998ecf8427e"
MARKER = {"event": "ObjectRemoved:DeleteMarkerCreated", "size": None, "etag": EMPTY_ETAG, "metadata": None}
MULTIPART = {**CONTENT, "event": "ObjectCreated:CompleteMultipartUpload", "etag": f"{ETAG}-3"}

COS: dict[str, dict[str, Any]] = {
    "write-enabled": {**WRITTEN, "version_id": VERSION},
    "write-suspended": {**WRITTEN, "version_id": "null"},
    "write-unversioned": WRITTEN,
    "write-bare": {"size": 0, "metadata": '{"x-amz-checksum-crc32": "AAAAAA=="}'},
    "write-odd": {
        "size": 0,
        "key": ODD_KEY,
        "content_type": 'text/plain; charset="utf-8"',
        "metadata": json.dumps({"x-amz-meta-said": '"no"\tand\\or'}),
    },
    "post": {**CONTENT, "event": "ObjectCreated:Post"},
    "copy": {**CONTENT, "event": "ObjectCreated:Copy", "copy_source": "other-bucket/key"},
    "multipart": MULTIPART,
    "delete-enabled": {**MARKER, "version_id": VERSION},
    "delete-suspended-null-version": {**GONE, **MARKER, "metadata": META, "version_id": "null", "replaced": "version"},
    "delete-suspended-null-marker": {**MARKER, "version_id": "null", "old_size": 0, "metadata": "{}", "replaced": "marker"},
    "delete-suspended-no-null-version": {**MARKER, "version_id": "null"},
    "delete-unversioned": GONE,
    "delete-version-enabled": {**GONE, "version_id": VERSION},
    "delete-version-suspended": {**GONE, "version_id": "null"},
    "delete-marker-version": {**GONE, "version_id": VERSION, "old_size": 0, "content_type": None, "metadata": "{}"},
}

R2: dict[str, dict[str, Any]] = {
    "put": CONTENT,
    "put-odd-key": {**CONTENT, "key": ODD_KEY},
    "post": {**CONTENT, "event": "ObjectCreated:Post"},
    "copy": {
        **CONTENT,
        "event": "ObjectCreated:Copy",
        "copy_source": f"other-bucket/stra%C3%9Fe/a%20b%2B%22c%22.txt?versionId={VERSION}",
    },
    "multipart": MULTIPART,
    "delete": {**GONE, "copy_source": "my-bucket/photos/lake.jpg"},  # a move says where it came from in both its changes
    "delete-marker": {**MARKER, "version_id": "v2"},
}

CLOUDEVENTS: dict[str, dict[str, Any]] = {
    "put": {},
    "put-odd-key": {"key": 'straße/a b+"c".txt', "size": 0},
    "delete": {"event": "ObjectRemoved:Delete", "size": None, "etag": None},
    "delete-marker": {"event": "ObjectRemoved:DeleteMarkerCreated", "size": None, "version_id": "v2"},
}

CATALOG: dict[str, dict[str, Any]] = {
    name: {
        "id": event.id,
        "at": event.at,
        "bucket": event.repository,
        "key": event.about.full_name,
        "event": f"nessie:{event.type}",
        "principal": event.created_by,
        "catalog": event.to_text(),
    }
    for name, event in catalog_events.golden().items()
}

CASES = {"cos": COS, "r2": R2, "cloudevents": CLOUDEVENTS, "nessie": CATALOG, "nessie_cloudevents": CATALOG}


def golden(format_name: str, case: str) -> Any:
    return json.loads((GOLDEN / format_name / f"{case}.json").read_text())


@pytest.mark.parametrize("format_name", CASES)
def test_every_golden_file_is_what_is_said(spark: SparkSession, format_name: str) -> None:
    cases = CASES[format_name]
    rows = [change(**values, window=number) for number, values in enumerate(cases.values())]
    for case, said in zip(cases, spoken(format_name, CONTEXT, routed(spark, *rows)), strict=True):
        assert json.loads(said.body) == golden(format_name, case), case
        assert list(json.loads(said.body)) == list(golden(format_name, case)), case
        assert said.body == json.dumps(json.loads(said.body), separators=(",", ":"), ensure_ascii=False), case
    apart = {"key", "put-odd-key-binary", "commit-over-kafka"}
    assert {path.stem for path in (GOLDEN / format_name).iterdir()} - apart == set(cases)


def test_the_key_of_a_notification_is_the_golden_one(spark: SparkSession) -> None:
    [said] = spoken("cos", CONTEXT, routed(spark, change()))
    assert said.key == json.dumps(golden("cos", "key"), separators=(",", ":"))


@pytest.mark.parametrize("format_name", ["nessie", "nessie_cloudevents"])
def test_key_and_headers_of_a_catalog_s_event_are_the_golden_ones(spark: SparkSession, format_name: str) -> None:
    [said] = spoken(format_name, BINARY, routed(spark, change(**CATALOG["commit"])))
    assert {"key": said.key, "headers": json.loads(said.attributes or "")} == golden(format_name, "commit-over-kafka")
    assert json.loads(said.body) == golden("nessie", "commit")


def test_the_times_in_the_headers_are_the_catalog_s_whatever_others_have_written(spark: SparkSession) -> None:
    events = catalog_events.golden()
    lies = dict.fromkeys(("commitCreationTimestamp", "commitTime", "eventCreationTimestamp"), "1970-01-01T00:00:00.000000Z")
    written = "".join(f'"{name}":"{time}"' for name, time in lies.items())
    commit, stored = events["commit"], events["content-stored"]
    assert isinstance(commit, Commit)
    assert isinstance(stored, ContentStored)
    lying = [
        replace(commit, created_by=written, commit_meta={**commit.commit_meta, "message": written, "allProperties": lies}),
        replace(stored, content_key=(written,), content={"type": written, **lies}, sent_by=written),
        replace(events["reference-created"], created_by=written),
    ]
    rows = [
        change(**CATALOG["commit"] | {"event": f"nessie:{event.type}", "catalog": event.to_text(), "window": n})
        for n, event in enumerate(lying)
    ]
    headers = [json.loads(said.attributes or "") for said in spoken("nessie", CONTEXT, routed(spark, *rows))]
    assert {each["event-creation-time"] for each in headers} == {"2026-01-17T10:30:00.123456Z"}
    assert [each.get("commit-creation-time") for each in headers] == [*["2026-01-17T10:30:00.123000Z"] * 2, None]


def test_an_event_in_binary_mode_is_the_golden_one(spark: SparkSession) -> None:
    [said] = spoken("cloudevents", BINARY, routed(spark, change(**CLOUDEVENTS["put-odd-key"])))
    assert {"attributes": json.loads(said.attributes or ""), "body": json.loads(said.body)} == golden(
        "cloudevents", "put-odd-key-binary"
    )


def test_a_store_without_a_name_says_none(spark: SparkSession) -> None:
    [said] = spoken("cos", Context("us-east-1", AWS, "48def817-f0a3-1949-abe2-9193be91de22"), routed(spark, change()))
    assert "system_name" not in json.loads(said.body)
    assert json.loads(said.body)["system_uuid"] == "48def817-f0a3-1949-abe2-9193be91de22"


def test_a_change_of_which_no_request_time_is_known_says_when_it_was_committed(spark: SparkSession) -> None:
    [said] = spoken("cos", CONTEXT, routed(spark, change(request_at=None)))
    assert json.loads(said.body)["request_time"] == "2026-01-17T10:30:00.123Z"


def test_each_notification_has_an_id_of_its_own_and_keeps_it(spark: SparkSession) -> None:
    rows = [change(seq=number, id=f"01a1de8a-9d29-7d48-8214-{number:012}") for number in range(1, 50)]
    first, again = (spoken("cos", CONTEXT, routed(spark, *rows).repartition(parts)) for parts in (1, 3))
    assert first == again
    assert len({json.loads(said.key or "")["notification_id"] for said in first}) == len(rows)


# What a table can hold: no unpaired surrogate, no NUL.
ANYTHING = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
ODD = st.sampled_from(
    ['"', "\\", "\n", "\x1f", "\x7f", "\u2028", "%", "+", "/", "é", "\U0001f4e6", "\uffff", "{", "[", "]", ","]
)
TEXT = st.text(ANYTHING | ODD, max_size=20)
KEYS = st.text(ANYTHING | ODD, min_size=1, max_size=20)
HEADERS = st.sampled_from(["x-amz-meta-a", "x-amz-meta-B", "x-amz-meta-", "cache-control", "x-amz-checksum-crc32"]) | TEXT
METADATA = st.none() | st.builds(json.dumps, st.dictionaries(HEADERS, TEXT, max_size=4), ensure_ascii=st.booleans())
NUMBERS = st.integers(0, 5 * 2**40)
TIMES = st.datetimes(change()["at"].replace(year=1971, tzinfo=None), change()["at"].replace(year=9999, tzinfo=None)).map(
    lambda moment: moment.replace(tzinfo=change()["at"].tzinfo)
)


@st.composite
def changed(draw: st.DrawFn) -> dict[str, Any]:
    event = draw(st.sampled_from(NAMES))
    written, copied = event.startswith("ObjectCreated:"), event == "ObjectCreated:Copy"
    source = f"some-bucket/{quote(draw(KEYS), safe='/')}{draw(st.sampled_from(['', '?versionId=null']))}"
    return change(
        id=str(draw(st.uuids())),
        at=draw(TIMES),
        key=draw(KEYS),
        event=event,
        size=draw(NUMBERS) if written else None,
        etag=None if event == "ObjectRemoved:Delete" else ETAG,
        version_id=draw(st.sampled_from([None, "null", VERSION])),
        old_size=None if written else draw(st.none() | NUMBERS),
        content_type=draw(st.none() | TEXT),
        metadata=draw(METADATA),
        copy_source=source if copied or draw(st.booleans()) else None,
        request_at=draw(st.none() | TIMES),
        replaced=draw(st.sampled_from([None, "version", "marker"])) if event == NAMES[-1] else None,
    )


FORMATS = [
    ("s3", CONTEXT, plain_formats.s3),
    ("s3", Context("eu-west-1", STORJ), plain_formats.s3),
    ("cos", CONTEXT, plain_formats.cos),
    ("r2", CONTEXT, plain_formats.r2),
    ("cloudevents", CONTEXT, plain_formats.cloudevents),
    ("cloudevents", BINARY, plain_formats.cloudevents),
]


@pytest.mark.parametrize(("format_name", "context", "plain"), FORMATS)
# Without shrinking: every try is two Spark jobs.
@settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(rows=st.lists(changed(), min_size=60, max_size=60), config_id=TEXT)
def test_a_body_is_the_json_of_a_plain_rendering_and_the_same_bytes_every_time(
    spark: SparkSession, format_name: str, context: Context, plain: Any, rows: list[dict[str, Any]], config_id: str
) -> None:
    numbered = [row | {"seq": number + 1} for number, row in enumerate(rows)]
    changes = routed(spark, *numbered, config_json=json.dumps(config_id, ensure_ascii=False))
    said = spoken(format_name, context, changes)
    for row, message in zip(numbered, said, strict=True):
        expected = plain(row, context, config_id)
        assert json.loads(message.body) == expected
        assert ordered(message.body) == json.dumps(expected)
        if format_name == "cos":
            assert json.loads(message.key or "") == plain_formats.cos_key(row)
        if format_name == "cloudevents":
            assert json.loads(message.attributes or "") == plain_formats.cloudevents_attributes(row, context)
    assert spoken(format_name, context, changes.repartition(3)) == said


def ordered(body: str) -> str:
    """The members in the order in which they stand, none twice: what json.loads forgives."""
    return json.dumps(json.loads(body, object_pairs_hook=_once))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)
