"""route and render: from changes to messages, without streaming."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.testing import assertDataFrameEqual

from change_rows import change
from tidings.delivery.render import MESSAGE, render
from tidings.delivery.route import Routes, expand, numbers_in, route
from tidings.delivery.route import routed as routed_schema
from tidings.events.keys import form_encoded
from tidings.events.profiles import AWS, STORJ, Profile
from tidings.events.schema import CHANGE, DETAILS
from tidings.formats import Context

GOLDEN = Path(__file__).parent.parent / "golden" / "s3"


def rule(**given_values: Any) -> dict[str, Any]:
    return {
        "rule": "1",
        "lane": 10,
        "format": "s3",
        "config_json": '"MyNotificationConfig"',
        "events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"],
        "prefix": None,
        "suffix": None,
    } | given_values


def routed(
    spark: SparkSession, rows: Sequence[dict[str, Any]], rules: Sequence[dict[str, Any]], literal: bool = False
) -> DataFrame:
    """The changes, each where it goes by these rules: multiplied as a worker does it, then judged by Spark."""
    table = pa.Table.from_batches([multiplied(rows, rules)])
    return spark.createDataFrame(table, schema=routed_schema(DETAILS)).transform(route, literal)


def multiplied(rows: Sequence[dict[str, Any]], rules: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist(list(rows), schema=to_arrow_schema(CHANGE, timezone="UTC"))
    routes = Routes()
    routes.learn(numbers_in(batch), rules)
    return expand(batch, routes)


def rendered(frame: DataFrame, *formats: str, profile: Profile = AWS) -> DataFrame:
    return frame.transform(render, formats or ("s3",), Context("us-east-1", profile))


def bodies(
    spark: SparkSession, *rows: dict[str, Any], config_json: str = '"MyNotificationConfig"', profile: Profile = AWS
) -> list[str]:
    frame = rendered(routed(spark, rows, [rule(config_json=config_json)]), profile=profile)
    return [row.body for row in frame.orderBy("window", "seq").collect()]


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("put.json", {}),
        ("put-odd-key.json", {"key": 'straße/a b+"c".txt', "size": 0}),
        ("delete.json", {"event": "ObjectRemoved:Delete", "size": None, "etag": None}),
        ("delete-marker.json", {"event": "ObjectRemoved:DeleteMarkerCreated", "size": None, "version_id": "v2"}),
    ],
)
def test_the_record_is_the_golden_one(spark: SparkSession, file: str, values: dict[str, Any]) -> None:
    [body] = bodies(spark, change(**values))
    assert json.loads(body) == json.loads((GOLDEN / file).read_text())
    assert body == json.dumps(json.loads(body), separators=(",", ":"))


def test_the_record_of_the_other_profile_names_another_source(spark: SparkSession) -> None:
    [body] = bodies(spark, change(), profile=STORJ)
    assert json.loads(body) == json.loads((GOLDEN / "put-storj.json").read_text())


def test_a_message_carries_its_lane_its_position_and_an_id_that_never_changes(spark: SparkSession) -> None:
    found = rendered(routed(spark, [change()], [rule()]))
    assert found.schema.fieldNames() == MESSAGE.fieldNames()
    expected = spark.createDataFrame([(10, 3, 255, change()["id"] + ".1")], "lane long, window long, seq long, id string")
    assertDataFrameEqual(found.select("lane", "window", "seq", "id"), expected)


def test_a_change_goes_to_every_rule_that_matched_and_still_wants_it(spark: SparkSession) -> None:
    now = [
        rule(),
        rule(rule="2", lane=20, prefix="photos/"),
        rule(rule="3", lane=30, prefix="edited/"),
        rule(rule="5", lane=50),
    ]
    found = routed(spark, [change(rules="1,2,3,4")], now)
    assert sorted(row.lane or 0 for row in found.select("lane").collect()) == [0, 10, 20]


def test_a_rule_with_several_lanes_sends_to_each_and_one_with_none_to_nobody(spark: SparkSession) -> None:
    now = [rule(), rule(rule="2", lane=20), rule(rule="2", lane=21), rule(rule="3", lane=None)]
    rows = [change(seq=1, rules="1"), change(seq=2, rules="2,1"), change(seq=3, rules="3"), change(seq=4, rules="4,2")]
    found = [(row.seq, row.rule, row.lane) for row in routed(spark, rows, now).collect()]
    assert found == [(1, "1", 10), (2, "2", 20), (2, "2", 21), (2, "1", 10), (4, "4", None), (4, "2", 20), (4, "2", 21)]


def test_what_a_subscription_to_a_catalog_cannot_want_is_not_multiplied() -> None:
    everything = ["s3:nessie:*"]
    now = [
        rule(events=everything, filter=None),
        rule(rule="2", lane=20, events=["s3:nessie:COMMIT"], filter=None),
        rule(rule="3", lane=30, events=everything, filter="type == 'MERGE' && message == ''"),
        rule(rule="3", lane=31, events=everything, filter="type == 'MERGE' && message == ''"),
        rule(rule="4", lane=40, events=["s3:ObjectRemoved:*"], filter=None),
    ]
    rows = [
        change(seq=1, event="nessie:COMMIT", rules="1,2,3"),
        change(seq=2, event="nessie:MERGE", rules="3,2,1,9"),
        change(seq=3, rules="4"),  # is for Spark to say
        change(seq=4, event="nessie:MERGE", rules="2"),
    ]
    found = multiplied(rows, now).to_pylist()
    assert [(row["seq"], row["rule"], row["lane"]) for row in found] == [
        (1, "1", 10),
        (1, "2", 20),
        (2, "3", 30),
        (2, "3", 31),
        (2, "1", 10),
        (2, "9", None),
        (3, "4", 40),
    ]


def test_a_format_that_the_plan_does_not_have_gives_no_body(spark: SparkSession) -> None:
    rows = rendered(routed(spark, [change()], [rule(), rule(lane=11, format="new")])).collect()
    assert [(row.lane, row.body is None) for row in rows] == [(10, False), (11, True)]


def test_a_change_for_a_rule_that_is_gone_is_left_without_a_lane_and_names_its_bucket(spark: SparkSession) -> None:
    [row] = rendered(routed(spark, [change(rules="4")], [rule()])).collect()
    assert (row.lane, row.body) == (None, "50adea63-48b7-420e-b549-643fd90a5189/my-bucket")


def test_only_the_literal_key_counts_where_the_profile_says_so(spark: SparkSession) -> None:
    now = [rule(prefix="a+b"), rule(rule="2", lane=20, prefix="a b")]
    for literal, lanes in ((False, [10, 20]), (True, [20])):
        found = routed(spark, [change(key="a b", rules="1,2")], now, literal)
        assert sorted(row.lane for row in found.select("lane").collect()) == lanes


def test_a_rule_never_gets_a_change_that_it_did_not_match_when_it_was_written(spark: SparkSession) -> None:
    found = routed(spark, [change(rules="2")], [rule(), rule(rule="2", lane=20)])
    assert [row.lane for row in found.select("lane").collect()] == [20]


def test_messages_of_a_key_share_a_slot_and_others_do_not(spark: SparkSession) -> None:
    rows = [change(seq=1), change(seq=2), change(seq=3, key="other"), change(seq=4, bucket="other-bucket")]
    slots = [row.slot for row in rendered(routed(spark, rows, [rule()])).orderBy("seq").collect()]
    assert slots[0] == slots[1]
    assert len(set(slots)) == 3


KEYS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"), min_size=1, max_size=30)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.lists(KEYS, min_size=40, max_size=40), config_id=st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
)
def test_what_is_put_together_by_hand_is_always_the_json_of_the_record(
    spark: SparkSession, keys: list[str], config_id: str
) -> None:
    rows = [change(seq=i + 1, key=key, size=i if i % 3 else None) for i, key in enumerate(keys)]
    written = bodies(spark, *rows, config_json=json.dumps(config_id, ensure_ascii=False))
    for row, body in zip(rows, written, strict=True):
        [record] = json.loads(body)["Records"]
        assert record["s3"]["configurationId"] == config_id
        assert record["s3"]["object"]["key"] == form_encoded(row["key"])
        assert record["s3"]["object"].get("size") == row["size"]
        assert record["s3"]["object"]["sequencer"] == f"{row['seq']:016X}"


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def attributes(spark: SparkSession, trace: str | None, format_: str, traced: bool) -> dict[str, str] | None:
    frame = routed(spark, [change(trace=trace)], [rule(format=format_)])
    [row] = frame.transform(render, (format_,), Context("us-east-1", AWS), traced).collect()
    found: dict[str, str] | None = None if row.attributes is None else json.loads(row.attributes)
    return found


@pytest.mark.parametrize("format_", ["s3", "cloudevents", "cloudevents+headers"])
def test_a_trace_is_among_the_attributes_of_a_message_only_where_traces_are_on(spark: SparkSession, format_: str) -> None:
    without = attributes(spark, None, format_, False)
    assert attributes(spark, None, format_, True) == without
    assert attributes(spark, TRACEPARENT, format_, False) == without
    assert attributes(spark, TRACEPARENT, format_, True) == {"traceparent": TRACEPARENT, **(without or {})}
    state = 'a=1,b="{odd}\\ value"}'
    both = {"traceparent": TRACEPARENT, "tracestate": state}
    assert attributes(spark, f"{TRACEPARENT} {state}", format_, True) == {**both, **(without or {})}
