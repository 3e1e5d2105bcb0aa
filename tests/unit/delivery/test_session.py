"""What Spark's workers are given: the settings of the stream and the code that it runs, all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidings import plugins, settings
from tidings.delivery import shipping

OURS = settings.Settings(
    database={"url": "postgresql://me:hush@host/db"},
    bucket_eventing={
        "service_account": "bucket-eventing@operator.iam.gserviceaccount.com",
        "projects": "*",
        "redis_url": "redis://:hush@host/0",
    },
    delivery={"retry_seconds": (0.5, 3)},
    pubsub={"endpoint": "pubsub.internal:443", "credentials_file": "/etc/tidings/google.json"},
    spark={"master": "spark://spark.internal:7077", "conf": {"spark.cores.max": "8"}},
    log={"format": "json"},
)


def test_workers_have_exactly_the_settings_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is set on their machines: a variable there, even a wrong one, changes nothing."""
    monkeypatch.setenv("TIDINGS_PUBSUB__ENDPOINT", "elsewhere")
    monkeypatch.setenv("TIDINGS_SPARK__CONF", '{"spark.cores.max": "2", "spark.task.cpus": "2"}')
    monkeypatch.setenv("TIDINGS_APPI__PORT", "9000")
    monkeypatch.setenv(settings.FILE_VARIABLE, "nowhere.toml")
    monkeypatch.setenv(settings.WORKERS_VARIABLE, settings.for_workers(OURS))
    assert settings.load() == OURS
    assert settings.load().database_url == "postgresql://me:hush@host/db"


def test_the_archive_is_a_whole_tidings(tmp_path: Path) -> None:
    """Plugins and migrations are found in it as they are in a folder."""
    archive = shipping.pack(tmp_path)
    program = (
        "import tidings, tidings.delivery.pipeline; from tidings import plugins; from importlib import resources;"
        "print(tidings.__file__, plugins.names('destinations'), plugins.names('formats'),"
        "any(file.name.startswith('0001') for file in resources.files('tidings.db').joinpath('migrations').iterdir()))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(archive)}, capture_output=True, text=True, check=True
    )
    kinds = f"{plugins.names('destinations')} {plugins.names('formats')}"
    assert said.stdout.strip() == f"{archive}/tidings/__init__.py {kinds} True"
