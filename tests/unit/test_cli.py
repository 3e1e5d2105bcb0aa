"""The command line as a module."""

from __future__ import annotations

import subprocess
import sys


def test_nothing_heavy_is_imported_before_a_command_runs() -> None:
    heavy = ("pyspark", "pyarrow", "psycopg", "obstore", "google.cloud.pubsub_v1")
    code = f"import sys, tidings.cli; print(*sorted(set(sys.modules) & {set(heavy)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
