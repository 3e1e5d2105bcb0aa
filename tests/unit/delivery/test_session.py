"""What Spark's workers on other machines are told: they read their settings from the environment that Spark gives them."""

from __future__ import annotations

import pytest

from tidings import settings
from tidings.delivery import session

PREFIX = "spark.executorEnv."


def test_workers_elsewhere_publish_with_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    pubsub = {
        "endpoint": "pubsub.internal:443",
        "credentials_file": "/etc/tidings/google.json",
        "iam_endpoint": "https://iam.internal",
    }
    account = {"service_account": "bucket-eventing@operator.iam.gserviceaccount.com"}
    ours = settings.Settings(database={"url": "postgresql://me:hush@host/db"}, pubsub=pubsub, bucket_eventing=account)
    for name, value in session._elsewhere(ours).items():
        assert name.startswith(PREFIX)
        monkeypatch.setenv(name.removeprefix(PREFIX), value)
    theirs = settings.load()
    assert (theirs.pubsub, theirs.database_url) == (ours.pubsub, ours.database_url)
    assert theirs.bucket_eventing.service_account == account["service_account"]
