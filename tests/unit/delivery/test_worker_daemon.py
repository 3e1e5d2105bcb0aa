"""What Spark's workers are forked from has loaded everything, and runs nothing that a fork would break."""

from __future__ import annotations

import json
import subprocess
import sys

_LOOK = """
import json, os, sys, threading
from tidings.delivery import worker_daemon
worker_daemon.load()
native = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
sockets = [each for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")
           and os.readlink(f"/proc/self/fd/{each}").startswith("socket:")]
loaded = [name for name in ("pyspark.worker", "pyarrow", "google.cloud.pubsub_v1", "confluent_kafka") if name in sys.modules]
print(json.dumps({"threads": threading.active_count(), "native": native, "sockets": sockets, "loaded": loaded}))
"""


def test_clients_are_loaded_and_nothing_is_started() -> None:
    done = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["threads"] == 1, done.stderr
    # Of the native ones jemalloc's cleans up after Arrow, where that uses it, and may be missing in a worker.
    assert len([name for name in found["native"] if name != "jemalloc_bg_thd"]) == 1, found["native"]
    assert found["sockets"] == []
    assert "confluent_kafka" in found["loaded"]
    assert {"pyspark.worker", "pyarrow"} <= {*found["loaded"]}
