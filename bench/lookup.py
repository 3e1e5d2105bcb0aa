"""put_redis_lookup: writes that look for their rules in Redis first, against those that read them in their own statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.measure import Bar, Figure, Progress
from bench.side_by_side import Way, puts

NAMES = ("put_redis_lookup",)


def measure(_names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    redis = Way(environment={"TIDINGS_BUCKET_EVENTING__LOOKUP": "redis"})
    yield puts(NAMES[0], ("database", Way()), ("redis", redis), Bar(">=", 0.8), quick, progress)
