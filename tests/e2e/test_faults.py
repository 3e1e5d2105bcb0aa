"""A destination of each kind in each kind of trouble, under load: its lane falls behind and catches up by itself, and for
everybody else nothing has happened.

The short form has one trouble for each kind. `make chaos` has all twenty, in turn, and holds the others' p99 from commit to
arrival against that of the same ones in the undisturbed times around the troubles: the middle one of five, for a machine has
bad moments.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from arrivals import Collector
from conftest import Running, Say
from places import KINDS, TROUBLES, Outside, Place, Trouble, outside, places, stack_with
from tidings.delivery.alerts import NAME as ALERT
from traffic import Writers, all_arrived, changes, collecting, percentile, seeded, verdict
from waiting import until

WRITES_A_SECOND = 200
THREADS = 10
SHORT_WRITES_A_SECOND = 25
SHORT: tuple[tuple[str, Trouble], ...] = (("kafka", "down"), ("webhook", "hang"), ("pubsub", "refuse"), ("queue", "flap"))
BEHIND_SECONDS = 60
LIVE_SECONDS = 180
RATIO = 1.2


@dataclass(frozen=True)
class Phase:
    """A stretch of time in which one place had one trouble, or none."""

    name: str
    trouble: str
    began: float
    ended: float
    behind: bool = False
    live: float | None = None
    """When its lane ran with the stream again."""

    @property
    def back(self) -> str:
        assert self.behind, f"{self.name} did not fall behind when it had the trouble {self.trouble}"
        assert self.live is not None, f"{self.name} does not run with the stream after the trouble {self.trouble}"
        return f"{self.trouble}, live {self.live - self.ended:.1f} s after"


class Watch:
    """One stack with four places, and writers on all of them."""

    def __init__(self, stack: Running, there: Outside, collector: Collector, prefix: str) -> None:
        self.url = stack.ready["database"]
        self.collector = collector
        self.places = places(stack, there, collector, prefix)
        self.buckets = [place.name for place in self.places.values()]

    def trouble(self, kind: str, trouble: Trouble, seconds: float) -> Phase:
        place = self.places[kind]
        began = time.time()
        with place.troubled(trouble):
            behind = self.comes_to(place, "behind", BEHIND_SECONDS)
            time.sleep(max(0.0, began + seconds - time.time()))
            for bucket in self.buckets:
                if bucket != place.name:
                    until(
                        lambda bucket=bucket: self._since(bucket, began + 2), f"{bucket} goes on while {place.name} {trouble}s"
                    )
            ended = time.time()
        live = self.comes_to(place, "live", LIVE_SECONDS)
        return Phase(place.name, trouble, began, ended, behind, time.time() if live else None)

    def _since(self, bucket: str, at: float) -> bool:
        return any(arrival.at > at for arrival in reversed(self.collector.of(bucket)))

    def warm(self) -> None:
        """Wait until events arrive soon everywhere: at first the JVM is busy with the plans for so many formats."""
        for bucket in self.buckets:
            until(lambda bucket=bucket: self._soon(bucket), f"events arrive soon at {bucket}")

    def _soon(self, bucket: str) -> bool:
        """Whether what was written a second ago and before is there."""
        with psycopg.connect(self.url, autocommit=True) as database:
            before = "at < clock_timestamp() - interval '1 s'"
            written = f"select id from changes where bucket = %s and {before} order by seq desc limit 20"
            ids = {row[0] for row in database.execute(written, [bucket]).fetchall()}
        return len(ids) == 20 and ids <= {arrival.id.partition(".")[0] for arrival in self.collector.of(bucket)[-500:]}

    def comes_to(self, place: Place, state: str, seconds: float) -> bool:
        """Whether the lane is seen in this state in time. What follows from it is judged in the end, with the losses."""
        deadline = time.monotonic() + seconds
        with psycopg.connect(self.url, autocommit=True) as database:
            look = "select from lanes where destination = %s and state = %s"
            while not database.execute(look, [place.lane, state]).rowcount:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
        return True

    def delays(self, phase: Phase, rows: Sequence[Any], first: dict[str, float]) -> list[float]:
        """From commit to arrival, of what the others were owed in that time."""
        return [
            first[f"{row.id}.{row.rules}"] - row.at.timestamp()
            for row in rows
            if row.bucket != phase.name and phase.began <= row.at.timestamp() < phase.ended
        ]


def first_arrivals(collector: Collector) -> dict[str, float]:
    found: dict[str, float] = {}
    for arrival in list(collector.arrivals):
        found.setdefault(arrival.id, arrival.at)
    return found


@pytest.fixture(scope="module")
def there() -> Iterator[Outside]:
    with outside() as made:
        yield made


@pytest.fixture(scope="module")
def alerts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the operator's command writes what it is told."""
    return tmp_path_factory.mktemp("alerts") / "told"


@pytest.fixture(scope="module")
def stack(there: Outside, alerts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With short waits between tries, so that everything takes less time."""
    tell = [sys.executable, "-c", "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')", str(alerts)]
    settings = {
        "TIDINGS_DELIVERY__RETRY_SECONDS": "[0.25, 0.25, 0.5, 1]",
        "TIDINGS_DELIVERY__ALERT_COMMAND": json.dumps(tell),
    }
    with stack_with(there, tmp_path_factory.mktemp("faults"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def collector(stack: Running) -> Iterator[Collector]:
    with collecting(stack) as collector:
        yield collector


@pytest.mark.timeout(900)
def test_whoever_is_in_trouble_holds_up_nobody_else_and_catches_up_by_itself(
    stack: Running, there: Outside, collector: Collector, say: Say
) -> None:
    seed = seeded()
    watch = Watch(stack, there, collector, "short")
    with writing(stack, watch, seed, SHORT_WRITES_A_SECOND) as writers:
        watch.warm()
        phases = [watch.trouble(kind, trouble, 4) for kind, trouble in SHORT]
    judge(watch, writers, seed, say)
    first = first_arrivals(collector)
    rows = changes(watch.url, watch.buckets)
    for phase in phases:
        others = watch.delays(phase, rows, first)
        say(f"{phase.name}: {phase.back}; the others' {figures(others)}")
        for bucket in watch.buckets:
            meanwhile = [each for each in collector.of(bucket) if phase.began + 2 < each.at < phase.ended]
            if bucket != phase.name:
                assert meanwhile, f"nothing arrived at {bucket} while {phase.name} had the trouble {phase.trouble}"
            elif phase.trouble != "flap":
                assert not meanwhile, f"{phase.name} was in no trouble at all"


def writing(stack: Running, watch: Watch, seed: int, a_second: int) -> Any:
    pace = THREADS / a_second
    return Writers(stack.ready, watch.buckets, seed, threads=THREADS, keys=200, pace=pace).writing()


def judge(watch: Watch, writers: Writers, seed: int, say: Say) -> None:
    all_arrived(watch.url, watch.collector, watch.buckets, 180)
    found = verdict(watch.url, watch.collector, writers, watch.buckets, seed)
    times = [write.began for write in writers.acknowledged]
    say(f"{len(times) / (max(times) - min(times)):.0f} writes a second; {found}; by place: {dict(found.duplicates_at)}")
    assert (found.lost, found.phantom, found.inversions) == ([], [], [])
    assert (writers.refused, writers.unanswered) == ([], 0)


def figures(delays: Sequence[float]) -> str:
    return f"p50 {percentile(delays, 0.5):.2f}, p99 {percentile(delays, 0.99):.2f} s of {len(delays)}"


def test_when_the_tries_are_spent_the_log_the_metric_and_the_operator_s_command_say_so_once(
    stack: Running, collector: Collector, there: Outside, alerts: Path
) -> None:
    place = places(stack, there, collector, "alert")["pubsub"]
    alerted = float(metric(stack, "tidings_alerts_total"))
    with place.troubled("down"):
        stack.s3().put_object(Bucket=place.name, Key="key", Body=b"x")
        [told] = until(lambda: told_of(alerts, place), "the operator's command is run")
        assert told | {"lane": 0, "error": ""} == {
            "alert": ALERT,
            "lane": 0,
            "destination": place.lane,
            "attempts": 5,
            "error": "",
        }
        assert "UNAVAILABLE" in told["error"]
        assert float(metric(stack, "tidings_alerts_total")) == alerted + 1
        said = [line for line in (stack.data / "logs" / "stream.log").read_text().splitlines() if ALERT in line]
        assert [line for line in said if place.lane in line], said
        time.sleep(3)  # two more tries
        assert len(told_of(alerts, place)) == 1
    until(lambda: collector.of(place.name), "the event arrives")


def told_of(alerts: Path, place: Place) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in alerts.read_text().splitlines()] if alerts.exists() else []
    return [each for each in told if each["destination"] == place.lane]


def metric(stack: Running, name: str) -> str:
    with urllib.request.urlopen(stack.ready["metrics"], timeout=60) as page:
        lines = page.read().decode().splitlines()
    return next(line.rpartition(" ")[2] for line in lines if line.startswith(name))


# The long form.

UNDISTURBED_SECONDS = 20.0
TROUBLE_SECONDS = 20.0
WARM_SECONDS = 30.0


@pytest.fixture(scope="module")
def patient_stack(there: Outside, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With the settings that everybody has."""
    with stack_with(there, tmp_path_factory.mktemp("patient")) as running:
        yield running


@pytest.fixture(scope="module")
def patient_collector(patient_stack: Running) -> Iterator[Collector]:
    with collecting(patient_stack) as collector:
        yield collector


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_five_troubles_in_turn_leave_the_others_as_quick_as_before(
    patient_stack: Running, there: Outside, patient_collector: Collector, say: Say, kind: str
) -> None:
    seed = seeded()
    watch = Watch(patient_stack, there, patient_collector, f"long-{kind}")
    quiet, phases = [], []
    with writing(patient_stack, watch, seed, WRITES_A_SECOND) as writers:
        watch.warm()
        time.sleep(WARM_SECONDS)
        for trouble in TROUBLES:
            began = time.time()
            time.sleep(UNDISTURBED_SECONDS)
            quiet.append(Phase(watch.places[kind].name, "none", began, time.time()))
            phases.append(watch.trouble(kind, trouble, TROUBLE_SECONDS + (30 if trouble == "slow" else 0)))
    judge(watch, writers, seed, say)
    first, rows = first_arrivals(patient_collector), changes(watch.url, watch.buckets)
    undisturbed = [watch.delays(phase, rows, first) for phase in quiet]
    usual = statistics.median(percentile(delays, 0.99) for delays in undisturbed)
    say(f"undisturbed, in five times: {'; '.join(map(figures, undisturbed))}")
    worst = 0.0
    for phase in phases:
        others = watch.delays(phase, rows, first)
        ratio = percentile(others, 0.99) / usual
        worst = max(worst, ratio)
        say(f"{kind}: {phase.back}; the others' {figures(others)}, {ratio:.2f} x undisturbed")
    assert worst <= RATIO
