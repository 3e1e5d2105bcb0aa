"""What an operator is told of destinations that several projects share."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.delivery.settings import KafkaSettings
from tidings.external import ExternalSettings
from tidings.rules.reaching import left_open
from tidings.settings import Settings

KEYS = {"access_key_id": "AKIA", "secret": "s"}


@pytest.mark.parametrize(("projects", "told"), [("", False), ("one", False), ("one, two", True), ("*", True)])
def test_an_account_of_several_projects_is_named(projects: str, told: bool) -> None:
    accounts: dict[str, Any] = {"123456789012": {**KEYS, "projects": projects}}
    found = list(left_open(Settings(external=ExternalSettings(accounts=accounts))))
    assert any("external.accounts.123456789012.projects" in each for each in found) == told


@pytest.mark.parametrize(
    ("other", "same"),
    [
        *(
            (each, True)
            for each in ("Kafka-1:9092", "kafka-1.:9092", "kafka-1", "PLAINTEXT://kafka-1:9092", "x:1,kafka-1:9092")
        ),
        *((each, False) for each in ("kafka-1:9093", "kafka-11:9092", "kafka:9092")),
    ],
)
def test_brokers_are_the_same_however_they_are_written(other: str, same: bool) -> None:
    clusters: dict[str, Any] = {"main": {"bootstrap": "kafka-1:9092"}, "other": {"bootstrap": other}}
    assert KafkaSettings(clusters=clusters).beside("main") == (["main", "other"] if same else ["main"])
