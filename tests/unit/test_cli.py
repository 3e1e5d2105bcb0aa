"""The command line as a module."""

from __future__ import annotations

import subprocess
import sys


def imported_by(code: str, *heavy: str) -> list[str]:
    code = f"import sys; {code}; print(*sorted(set(sys.modules) & {set(heavy)!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_nothing_heavy_is_imported_before_a_command_runs() -> None:
    heavy = ("pyspark", "pyarrow", "psycopg", "obstore", "google.cloud.pubsub_v1")
    assert imported_by("import tidings.cli", *heavy) == []


def test_a_command_without_spark_does_not_load_it() -> None:
    """With pandas and Arrow, that takes longer than everything that such a command does."""
    assert imported_by("import tidings.bootstrap", "pyspark", "pandas", "pyarrow") == []
