"""A Spark standalone cluster on this machine: a master and workers as processes of their own, from the pyspark package.

To try what a cluster does, and for tests. Everything listens on loopback, for whoever is on this machine.

    python -m tidings.local.spark_cluster --workers 2 --cores 3
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tidings.errors import OperatorError
from tidings.local.processes import die_with_parent, end, free_port

_HOST = "127.0.0.1"
_START_SECONDS = 300.0
_STOP_SECONDS = 20.0
_LOOK_SECONDS = 0.2


class SparkCluster:
    """`folder` takes logs and what the executors leave. Each worker has so many cores to give and so much memory."""

    def __init__(self, folder: Path, workers: int = 2, cores: int = 3, memory: str = "2g") -> None:
        self.folder = folder.resolve()
        self.url = f"spark://{_HOST}:{free_port()}"
        self.pages = [f"http://{_HOST}:{free_port()}" for _ in range(1 + workers)]
        """The master's web page, then those of the workers."""
        self.master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes] | None] = [None] * workers
        self._cores = cores
        self._memory = memory

    @property
    def settings(self) -> dict[str, str]:
        """For the environment of `tidings stream` or `tidings up`: executors with room for a few workers of Python."""
        conf = {"spark.driver.host": _HOST, "spark.driver.bindAddress": _HOST, "spark.executor.memory": "512m"}
        return {"TIDINGS_SPARK__MASTER": self.url, "TIDINGS_SPARK__CONF": json.dumps(conf)}

    def start(self) -> None:
        """Returns when all workers have registered; if one does not, none is left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            port = self.url.rpartition(":")[2]
            self.master = self._run("master.Master", "master", "--port", port, "--webui-port", _port(self.pages[0]))
            for number in range(len(self.workers)):
                self.start_worker(number)
            self._wait()
        except BaseException:
            self.stop()
            raise

    def start_worker(self, number: int) -> None:
        """Also one that has died."""
        name = f"worker-{number}"
        place = ("--webui-port", _port(self.pages[1 + number]), "--work-dir", str(self.folder / name))
        room = ("--cores", str(self._cores), "--memory", self._memory)
        self.workers[number] = self._run("worker.Worker", name, *place, *room, self.url)

    def _run(self, role: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        package = find_spec("pyspark")
        assert package is not None
        assert package.origin is not None
        home = Path(package.origin).parent
        # Nothing of ours: a cluster knows no Tidings until the stream brings it along.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDINGS_", "PYTHONPATH"))}
        ours = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": _HOST,  # its pages listen there
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # a second way in, on a fixed port
        }
        with (self.folder / f"{name}.log").open("ab") as out:
            return subprocess.Popen(
                [home / "bin" / "spark-class", f"org.apache.spark.deploy.{role}", "--host", _HOST, *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**kept, **ours},
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while self.state().get("aliveworkers", 0) < len(self.workers):
            running = (self.master, *self.workers)
            if time.monotonic() > deadline or any(process is None or process.poll() is not None for process in running):
                raise OperatorError(f"The Spark cluster did not start: see the logs in {self.folder}.")
            time.sleep(_LOOK_SECONDS)

    def state(self) -> dict[str, Any]:
        """What the master says of its workers and applications; nothing, if it does not answer, or not yet in full."""
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(f"{self.pages[0]}/json/", timeout=5) as answer,  # noqa: S310 a master that we have started
        ):
            said: dict[str, Any] = json.load(answer)
            return said
        return {}

    def stop(self) -> None:
        """Workers first: they end their executors."""
        for process in (*self.workers, self.master):
            end(process, _STOP_SECONDS)


def _port(page: str) -> str:
    return page.rpartition(":")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description="A Spark standalone cluster on this machine, until Ctrl-C.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cores", type=int, default=3, help="of each worker")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidings-spark-") as folder:
        cluster = SparkCluster(Path(folder), asked.workers, asked.cores)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            cluster.start()
            print(f"the master's page is at {cluster.pages[0]}, logs are in {folder}; Ctrl-C stops it", file=sys.stderr)
            for name, value in cluster.settings.items():
                print(f"export {name}='{value}'", flush=True)
            signal.pause()
        except KeyboardInterrupt:
            pass
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
