"""What others read with: AWS Lambda Powertools' models for the S3 record, the CloudEvents SDK for events in both modes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aws_lambda_powertools.utilities.parser.models import S3Model
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from pydantic import ValidationError
from pyspark.sql import SparkSession

from change_rows import change, routed, spoken
from tidings.events.keys import form_encoded
from tidings.events.names import NAMES
from tidings.events.profiles import AWS, STORJ
from tidings.formats import Context

GOLDEN = Path(__file__).parent.parent / "golden"
KEYS = ["photos/lake.jpg", 'straße/a b+"c"\\.txt', "100%", "\U0001f4e6\u0085\ufffe"]
AT = datetime(2026, 1, 17, 10, 30, 0, 123000, tzinfo=UTC)


def changes() -> list[dict[str, Any]]:
    """Every event name with every key."""
    return [
        change(seq=number, key=key, event=event, version_id="v1", **({} if "Created" in event else {"size": None}))
        for number, (event, key) in enumerate(((event, key) for event in NAMES for key in KEYS), 1)
    ]


@pytest.mark.parametrize("file", sorted((GOLDEN / "s3").glob("*.json")), ids=lambda path: path.stem)
def test_a_golden_record_is_one_to_powertools_if_it_says_that_it_comes_from_aws(file: Path) -> None:
    text = file.read_text()
    if "storj:s3" in text:
        with pytest.raises(ValidationError, match="eventSource"):
            S3Model.model_validate_json(text)
        text = text.replace("storj:s3", "aws:s3")  # nothing else stands in its way
    [record] = S3Model.model_validate_json(text).Records
    assert record.eventTime == AT


def test_every_rendered_record_is_one_to_powertools(spark: SparkSession) -> None:
    rows = changes()
    for row, said in zip(rows, spoken("s3", Context("us-east-1", AWS), routed(spark, *rows)), strict=True):
        [record] = S3Model.model_validate_json(said.body).Records
        assert record.eventName == row["event"]
        assert record.s3.object is not None
        about = (record.s3.object.key, record.s3.object.size, record.s3.object.eTag, record.s3.object.versionId)
        assert about == (form_encoded(row["key"]), row["size"], row["etag"], "v1")


@pytest.mark.parametrize("profile", [AWS, STORJ], ids=lambda profile: profile.name)
@pytest.mark.parametrize("binary", [False, True])
def test_every_event_is_one_to_the_cloudevents_sdk(spark: SparkSession, profile: Any, binary: bool) -> None:
    rows = changes()
    context = Context("us-east-1", profile, binary=binary)
    records = [json.loads(said.body)["Records"][0] for said in spoken("s3", context, routed(spark, *rows))]
    messages = spoken("cloudevents", context, routed(spark, *rows))
    for row, record, said in zip(rows, records, messages, strict=True):
        event = from_http(HTTPMessage(json.loads(said.attributes or ""), said.body.encode()), JSONFormat())
        assert event.get_attributes() == {
            "specversion": "1.0",
            "id": f"{row['id']}.1",
            "source": f"{profile.event_source}.us-east-1.my-bucket",
            "type": f"com.amazonaws.s3.{row['event']}",
            "subject": form_encoded(row["key"]),
            "time": AT,
            "sequence": f"{row['seq']:016X}",
            "datacontenttype": "application/json",
        }
        assert event.get_data() == record
