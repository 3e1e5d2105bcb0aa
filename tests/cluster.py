"""The Spark cluster that tests run on if TIDINGS_TEST_MASTER is `cluster`: one for the whole run, started when it is needed.

Without it Spark runs in the driver (`local[*]`), and only the tests of `test_cluster` have a cluster, of their own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil

from tidings.local.spark_cluster import SparkCluster

# Whoever shares the cluster takes no more, so that several stacks run beside the session of the tests.
CORES_OF_ONE = 6
_MOST_AT_ONCE = 5

_folder = Path()
_running: list[SparkCluster] = []


def begin(folder: Path) -> None:
    """Where its logs go."""
    global _folder
    _folder = folder


def wanted() -> bool:
    return os.environ.get("TIDINGS_TEST_MASTER") == "cluster"


def environment() -> dict[str, str]:
    """What a stack or a session is started with; nothing, where Spark is local."""
    if not wanted():
        return {}
    if not _running:
        _running.append(SparkCluster(_folder, cores=_MOST_AT_ONCE * CORES_OF_ONE // 2, memory="4g"))
        _running[0].start()
    return settings(_running[0])


def settings(cluster: SparkCluster, **conf: str) -> dict[str, str]:
    """A small share of the cluster."""
    theirs = cluster.settings
    conf = {**json.loads(theirs["TIDINGS_SPARK__CONF"]), "spark.cores.max": str(CORES_OF_ONE), **conf}
    return {**theirs, "TIDINGS_SPARK__CONF": json.dumps(conf)}


def below(driver: int) -> list[psutil.Process]:
    """The processes of a stream on the cluster: its executors, whose command line says whom they work for, and theirs."""
    heard = {
        f"@{each.laddr.ip.removeprefix('::ffff:')}:{each.laddr.port}"
        for process in psutil.Process(driver).children(recursive=True)
        for each in _connections(process)
        if each.status == psutil.CONN_LISTEN
    }
    workers = [psutil.Process(worker.pid) for cluster in _running for worker in cluster.workers if worker]
    executors = [child for worker in workers for child in worker.children() if any(map(_command(child).count, heard))]
    return [process for executor in executors for process in (executor, *executor.children(recursive=True))]


def _connections(process: psutil.Process) -> list[Any]:
    try:
        return list(process.net_connections("tcp"))
    except psutil.Error:  # it has just ended
        return []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def stop() -> None:
    while _running:
        _running.pop().stop()
