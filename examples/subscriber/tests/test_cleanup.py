"""A subscriber is tested without a server: with the dispatcher that the server has."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tidings_cleanup import FILE_VARIABLE, CleanupSubscriber

from tidings.events.catalog import ContentRemoved, Reference
from tidings.subscribers.finding import start_with
from tidings.subscribers.settings import SubscribersSettings


def removed(branch: str, kind: str, *key: str) -> ContentRemoved:
    return ContentRemoved(
        id="1",
        at=datetime.now(UTC),
        sent_by="here",
        created_by="ada",
        repository="r",
        reference=Reference("BRANCH", branch, "cc"),
        hash="cc",
        commit_creation_timestamp="2026-01-01T00:00:00Z",
        content_key=key,
        content_type=kind,
    )


def test_dropped_tables_of_main_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "dropped"))
    subscriber = CleanupSubscriber()
    dispatcher = start_with([("cleanup", lambda: subscriber)], SubscribersSettings())
    dispatcher.publish(
        [
            removed("main", "ICEBERG_TABLE", "sales", "orders"),
            removed("dev", "ICEBERG_TABLE", "sales", "orders"),
            removed("main", "NAMESPACE", "sales"),
        ]
    )
    dispatcher.stop()
    [line] = (tmp_path / "dropped").read_text().splitlines()
    assert json.loads(line) == {"table": "sales.orders", "type": "ICEBERG_TABLE", "commit": "cc", "by": "ada"}
    assert subscriber.subscription.status.filtered == 2
