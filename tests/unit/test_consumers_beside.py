"""The settings of the consumers beside a local stack."""

from __future__ import annotations

import pytest

from tidings import settings
from tidings.errors import OperatorError
from tidings.local.consumers import Consumers

PROJECT = "12e9f7fe-0e0a-48a8-b16b-870baac1441b"
CREDENTIALS = {"project": PROJECT, "access_key_id": "AKIA", "secret_access_key": "secret"}


def test_what_the_operator_names_is_taken_beside_what_the_stack_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_API__REGION", "eu-west-1")
    monkeypatch.setenv("TIDINGS_FILES__S3_BUCKETS", '["theirs"]')
    monkeypatch.setenv("TIDINGS_INVENTORY__TOPICS", '["theirs"]')
    for name, value in Consumers().environment("http://127.0.0.1:9000", CREDENTIALS).items():
        monkeypatch.setenv(name, value)
    loaded = settings.load()
    assert loaded.files.sns_topics == (f"arn:aws:sns:eu-west-1:{PROJECT}:files",)
    assert loaded.files.s3_buckets == ("theirs", "atlas-files")
    assert loaded.files.trusted == ("http://127.0.0.1:9000",)
    assert loaded.inventory.topics == ("theirs", "inventory")
    assert (loaded.uploads.endpoint, loaded.uploads.secret.get_secret_value()) == ("http://127.0.0.1:9000", "secret")


def test_without_a_way_to_them_one_sentence_says_which_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_BUCKET_EVENTING__DESTINATIONS", '["pubsub", "kafka"]')
    with pytest.raises(OperatorError, match=r"DESTINATIONS lacks sns, queue\."):
        Consumers()
