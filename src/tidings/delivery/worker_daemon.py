"""The process that Spark forks its Python workers from, with everything loaded that they use.

Spark's own loads nothing, and each worker then takes 1.5 seconds of a core and 150 MB for itself, in place of 0.25 s and 60 MB:
whoever is delivered to while a lane falls behind would wait for the workers of its catch-up. Threads do not survive a fork, so
none that does anything may run here: clients are loaded, not made.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from importlib import import_module


def load() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # it would start a thread for each core
    import_module("pyspark.worker")
    import_module("tidings.delivery.pipeline")
    from tidings.delivery import publishers

    publishers.load_clients()
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate())
        print(f"tidings: threads that workers will not have were started by an import: {names}", file=sys.stderr)
    gc.collect()
    gc.freeze()  # pages that no collection touches stay shared


if __name__ == "__main__":
    from pyspark.daemon import manager

    spark = os.dup(1)
    os.dup2(2, 1)  # the first words to Spark are the port, not what some import has to say
    load()
    os.dup2(spark, 1)
    os.close(spark)
    manager()
