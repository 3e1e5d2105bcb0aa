"""How far a Spark job is, for whoever waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import SparkSession

Progress = Callable[[int, int], None]
"""Is told how many tasks are done, and of how many."""

_EVERY_SECONDS = 0.2


@contextmanager
def told(spark: SparkSession, what: str, progress: Progress) -> Iterator[None]:
    """While the block runs jobs, tell about their tasks, from a thread of its own; `what` describes them to Spark."""
    context, group = spark.sparkContext, uuid4().hex  # Spark remembers the jobs of a group: each block has its own
    context.setJobGroup(group, what)
    over = threading.Event()

    def look() -> None:
        while not over.wait(_EVERY_SECONDS):
            progress(*_tasks(context, group))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
        context._jsc.clearJobGroup()
    done, total = _tasks(context, group)
    progress(max(done, total), total)  # Spark counts a moment behind; the block is through


def _tasks(context: SparkContext, group: str) -> tuple[int, int]:
    tracker = context.statusTracker()
    jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
    stages = [stage for job in jobs for id_ in job.stageIds if (stage := tracker.getStageInfo(id_))]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
