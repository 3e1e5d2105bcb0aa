"""route and render: from changes to messages, without streaming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from change_rows import change
from tidings.delivery.render import MESSAGE, render
from tidings.delivery.route import RULE, route
from tidings.events.keys import form_encoded
from tidings.events.profiles import AWS, STORJ, Profile
from tidings.events.schema import CHANGE
from tidings.formats import Context

GOLDEN = Path(__file__).parent.parent / "golden" / "s3"


def rule(**given_values: Any) -> dict[str, Any]:
    return {
        "rule": "1",
        "lane": 10,
        "config_json": '"MyNotificationConfig"',
        "events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"],
        "prefix": None,
        "suffix": None,
    } | given_values


def changes(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return spark.createDataFrame([tuple(row[name] for name in CHANGE.fieldNames()) for row in rows], CHANGE)


def rules(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return spark.createDataFrame([tuple(row[name] for name in RULE.fieldNames()) for row in rows], RULE)


def bodies(
    spark: SparkSession, *rows: dict[str, Any], config_json: str = '"MyNotificationConfig"', profile: Profile = AWS
) -> list[str]:
    routed = changes(spark, *rows).transform(route, rules(spark, rule(config_json=config_json)))
    return [
        row.body for row in routed.transform(render, "s3", Context("us-east-1", profile)).orderBy("window", "seq").collect()
    ]


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
    routed = changes(spark, change()).transform(route, rules(spark, rule()))
    rendered = routed.transform(render, "s3", Context("us-east-1", AWS))
    assert rendered.schema.fieldNames() == MESSAGE.fieldNames()
    expected = spark.createDataFrame([(10, 3, 255, change()["id"] + ".1")], "lane long, window long, seq long, id string")
    assertDataFrameEqual(rendered.select("lane", "window", "seq", "id"), expected)


def test_a_change_goes_to_every_rule_that_matched_and_still_wants_it(spark: SparkSession) -> None:
    now = rules(
        spark,
        rule(),
        rule(rule="2", lane=20, prefix="photos/"),
        rule(rule="3", lane=30, prefix="edited/"),
        rule(rule="5", lane=50),
    )
    routed = changes(spark, change(rules="1,2,3,4")).transform(route, now)
    assert sorted(row.lane or 0 for row in routed.select("lane").collect()) == [0, 10, 20]


def test_a_change_for_a_rule_that_is_gone_is_left_without_a_lane_and_names_its_bucket(spark: SparkSession) -> None:
    routed = changes(spark, change(rules="4")).transform(route, rules(spark, rule()))
    [row] = routed.transform(render, "s3", Context("us-east-1", AWS)).collect()
    assert (row.lane, row.body) == (None, "50adea63-48b7-420e-b549-643fd90a5189/my-bucket")


def test_only_the_literal_key_counts_where_the_profile_says_so(spark: SparkSession) -> None:
    now = rules(spark, rule(prefix="a+b"), rule(rule="2", lane=20, prefix="a b"))
    for literal, lanes in ((False, [10, 20]), (True, [20])):
        routed = changes(spark, change(key="a b", rules="1,2")).transform(route, now, literal)
        assert sorted(row.lane for row in routed.select("lane").collect()) == lanes


def test_a_rule_never_gets_a_change_that_it_did_not_match_when_it_was_written(spark: SparkSession) -> None:
    routed = changes(spark, change(rules="2")).transform(route, rules(spark, rule(), rule(rule="2", lane=20)))
    assert [row.lane for row in routed.select("lane").collect()] == [20]


def test_messages_of_a_key_share_a_slot_and_others_do_not(spark: SparkSession) -> None:
    rows = [change(seq=1), change(seq=2), change(seq=3, key="other"), change(seq=4, bucket="other-bucket")]
    routed = changes(spark, *rows).transform(route, rules(spark, rule())).transform(render, "s3", Context("us-east-1", AWS))
    slots = [row.slot for row in routed.orderBy("seq").collect()]
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
