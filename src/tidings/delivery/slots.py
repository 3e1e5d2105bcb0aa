"""How many tasks a cluster runs for us at once, and what is said when that is too few."""

from __future__ import annotations

import logging
import threading
import time

from pyspark.sql import SparkSession

from tidings.errors import OperatorError

log = logging.getLogger(__name__)

_WAIT_SECONDS = 60.0
# Executors register one after the other. Parts of a round are made for as many as there are when the stream starts.
_SETTLED_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_WATCH_SECONDS = 5.0


def slots(spark: SparkSession) -> int:
    """Of all executors that are registered now."""
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def gather(spark: SparkSession, needed: int, seconds: float = _WAIT_SECONDS) -> int:
    """Wait until there are enough and no more come; returns how many. Fewer would have rounds wait for slow destinations."""
    deadline = time.monotonic() + seconds
    found, since = 0, time.monotonic()
    while time.monotonic() < deadline:
        if (now := slots(spark)) != found:
            found, since = now, time.monotonic()
        if found >= needed and time.monotonic() - since >= _SETTLED_SECONDS:
            return found
        time.sleep(_LOOK_SECONDS)
    if found >= needed:
        return found
    master = spark.sparkContext.master
    raise OperatorError(
        f"Spark at {master} gives this application {found} task slots, and it needs {needed} at least: give it more cores"
        " (spark.cores.max, spark.executor.instances and spark.executor.cores in TIDINGS_SPARK__CONF), or free some there."
    )


def watch(spark: SparkSession, needed: int, every: float = _WATCH_SECONDS) -> None:
    """Say when executors are lost and too few are left, and when there are enough again. Ends with the session."""

    def look() -> None:
        enough = True
        while True:
            time.sleep(every)
            try:
                found = slots(spark)
            except Exception:  # py4j raises whatever its socket raised: the session is over
                return
            fields = {"slots": found, "needed": needed}
            if enough and found < needed:
                log.warning("Spark has %s task slots left and needs %s: events are late or wait", found, needed, extra=fields)
            elif not enough and found >= needed:
                log.info("Spark has %s task slots again", found, extra=fields)
            enough = found >= needed

    threading.Thread(target=look, name="slots", daemon=True).start()
