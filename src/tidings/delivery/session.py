"""The Spark session of the stream."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from tidings.delivery import shipping, slots
from tidings.errors import OperatorError
from tidings.settings import Settings

T = TypeVar("T")

FOR_CATCH_UP = 3
"""Task slots that rounds leave to catch-up's three groups. Local masters get them on top; a cluster must have them."""

_JAVA = "Spark needs Java 17 or newer: install a JDK or JRE (for example `apt install openjdk-17-jre-headless`)"


# Arrow's Java side checks the bounds of every single value unless it is told that its buffers are sound. Ours come from
# Spark's own worker over a private socket. A sixth off the JVM's work.
_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

# Spark remembers what its web pages would show, also where there are none: a thousand jobs, and the plan of each.
_FORGETTING = {
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
}

# Executors may run where temporary folders are deep in a tree, as on YARN, and the path of a socket ends at 107 characters.
_ELSEWHERE = {
    "spark.python.unix.domain.socket.dir": "/tmp",  # noqa: S108 a socket's path must be short; its name is random
    "spark.executor.syncLogLevel.enabled": "true",  # otherwise executors write ten lines for every task
}


def check_java() -> None:
    """One clear sentence where Java is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.access(java, os.X_OK):
        raise OperatorError(f"{_JAVA}{f'; JAVA_HOME names {home}, which has no bin/java' if home else ''}.")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = said.split('"')[1] if said.count('"') >= 2 else ""
    major = version.split(".")[0].split("-")[0]
    if not major.isdigit() or int(major) < 17:
        raise OperatorError(f"{_JAVA}; {java} is {version or 'of an unknown version'}.")


def start(settings: Settings, on_top: int = FOR_CATCH_UP) -> SparkSession:
    """`on_top` is the number of task slots that are needed beyond one."""
    check_java()
    python = settings.spark.conf.get("spark.pyspark.python", sys.executable)  # Spark itself looks at the variable alone
    os.environ.setdefault("PYSPARK_PYTHON", python)
    local = settings.spark.master.startswith("local")
    builder = SparkSession.builder.master(_master(settings.spark.master, on_top)).appName("tidings")
    scratch = _scratch()
    conf = {
        "spark.sql.warehouse.dir": scratch,
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} {_ARROW}",
        "spark.executor.extraJavaOptions": _ARROW,
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_FORGETTING,
        "spark.speculation": "false",  # a second attempt beside the first would send out of order
        "spark.sql.adaptive.enabled": "false",  # one stage: there is nothing to adapt, and it costs time in every round
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.hadoop.fs.permissions.umask-mode": "077",  # Hadoop sets modes itself, whatever our umask is
        "spark.scheduler.mode": "FAIR",  # catch-up must not keep the stream waiting
        "spark.python.unix.domain.socket.enabled": "true",  # a third off the time of a small round
        **(_local(scratch) if local else _ELSEWHERE),
        "spark.executor.processTreeMetrics.enabled": "false",
        **settings.spark.conf,
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate() if local else _on_cluster(builder, settings.spark.master)
    spark.sparkContext.setLogLevel("ERROR")
    shipping.ship_settings(spark, settings)
    if not local:
        try:
            shipping.ship_code(spark, Path(scratch))
            slots.gather(spark, 1 + on_top)
            slots.watch(spark, 1 + on_top)
        except BaseException:
            spark.stop()
            raise
    return spark


def _on_cluster(builder: SparkSession.Builder, master: str) -> SparkSession:
    try:
        return builder.getOrCreate()
    except Exception as error:  # whatever the JVM said: it has told its log
        raise OperatorError(
            f"Spark did not start on {master}: does it answer there, and reach this machine? Spark's own words are above."
        ) from error


@contextmanager
def hushed() -> Iterator[None]:
    """Around `start`, for a command whose stderr is for people: the JVM's words are shown only where it does not start."""
    with tempfile.TemporaryFile() as said:
        kept = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        except Exception:
            said.seek(0)
            os.write(kept, said.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def aside(work: Callable[[], T]) -> T:
    """Run in a thread that nobody has to wait for: Ctrl-C ends the wait at once.

    In the main thread it would hit a call to the JVM half-way, which then prints its stack; and a JVM whose start is
    interrupted stays for ever.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result()


def _scratch() -> str:
    """A folder for whatever Spark writes, which goes when the process ends. Short: socket paths end at 107 characters."""
    folder = tempfile.mkdtemp(prefix="tidings-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def lives(spark: SparkSession) -> bool:
    """Whether there is still a JVM behind the session."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # py4j raises whatever its socket raised
        return False


def _master(master: str, on_top: int) -> str:
    """Catch-up waits for destinations and holds threads without using a core: local masters get those on top."""
    asked = re.fullmatch(r"local\[(\d+|\*)\]|local", master)
    if not asked:
        return master
    threads = (os.cpu_count() or 1) if asked[1] == "*" else int(asked[1] or 1)
    return f"local[{threads + on_top}]"


def _local(scratch: str) -> dict[str, str]:
    """Nothing listens beyond this machine, and everything that is written goes with the process."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": scratch,
        "spark.python.daemon.module": "tidings.delivery.worker_daemon",  # a cluster's workers get our code with their tasks
        "spark.python.unix.domain.socket.dir": scratch,
    }
