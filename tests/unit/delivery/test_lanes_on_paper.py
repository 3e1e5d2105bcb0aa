"""Random interleavings of the lane rules (`lane_model`): the rules hold, and each rule that is broken is found out.

A failure prints its seed and its steps; the same run alone, again:

    TIDINGS_SEED=<seed> TIDINGS_LANE_RUNS=1 pytest tests/unit/delivery/test_lanes_on_paper.py -k no_interleaving -m "not chaos"
"""

import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from lane_model import MOST_PROCESSES, Process, Rules, World

from conftest import Say

SEED = int(os.environ.get("TIDINGS_SEED", "20250601"))
RUNS, MANY = int(os.environ.get("TIDINGS_LANE_RUNS", "3000")), 10_000
ENOUGH = 200  # runs; from here on, everything that may happen must have happened, and often
TURNS = 300  # of stormy weather, before a run settles
PATIENCE = 4000  # turns in which a healthy stream must come to rest; a few hundred are enough


class Storm(World):
    """Who moves next, what breaks, and when: all of it chance, all of it from the seed."""

    def run(self) -> None:
        self.open_lane()
        for _ in range(TURNS):
            self.turn()
        self.settle()

    def turn(self) -> None:
        roll = self.rng.random()
        if roll < 0.08:
            self.write()
        elif roll < 0.09:
            self.open_lane()
        elif roll < 0.095:
            self.subscribe()
        elif roll < 0.11 or not self.processes:
            self.start()
        elif roll < 0.12:
            self.crash(self.rng.choice(self.processes))
        elif roll < 0.16:
            self.freeze_or_thaw(self.rng.choice(self.processes))
        elif roll < 0.165:
            self.pause_or_resume(self.rng.randrange(len(self.db.lanes)))
        elif roll < 0.20 and self.air:
            self.land(self.rng.choice(self.air))
        else:
            self.move(self.rng.choice(self.processes))

    def crash(self, process: Process) -> None:
        self.processes.remove(process)
        self.seen["crashes"] += 1
        self.note("epoch", process.epoch, "crashes")

    def freeze_or_thaw(self, process: Process) -> None:
        process.frozen = not process.frozen
        self.seen["zombies"] += not process.frozen and process.epoch != self.db.epoch
        self.note("epoch", process.epoch, "freezes" if process.frozen else "thaws")

    def settle(self) -> None:
        """The weather clears and a new stream runs until it is at rest, among whatever old ones are left."""
        self.note("the weather clears")
        self.failing = self.giving_up = 0.0
        for lane, read in self.db.lanes.items():
            if read.state == "paused":
                self.pause_or_resume(lane)
        if len(self.processes) == MOST_PROCESSES:
            self.crash(self.processes[0])
        old, new = self.processes.copy(), self.start()
        for process in old:
            process.frozen = self.rng.random() < 0.5
        for _ in range(PATIENCE):
            if self.at_rest():
                break
            if new not in self.processes:  # it was refused, stopped, and is started again
                new = self.start()
            self.move(new if new and self.rng.random() < 0.7 else self.rng.choice(self.processes))
        # What old processes still hold comes out now, when the new stream believes that all is done.
        for process in old:
            process.frozen = False
            for _ in range(40):
                if process in self.processes:
                    self.move(process)
        while self.air:
            self.land(self.rng.choice(self.air))
        self.audit_the_end()


def explore(rules: Rules, runs: int = MANY) -> Iterator[World]:
    for seed in range(SEED, SEED + runs):
        world = Storm(rules, seed)
        world.run()
        yield world


def steps_of(world: World) -> str:
    """The run again, written down."""
    trace: list[str] = []
    Storm(world.rules, world.seed, trace).run()
    lines = "\n".join(f"{number:5} {line}" for number, line in enumerate(trace, 1))
    return f"seed {world.seed}, {dict(world.faults)}:\n{lines}"


def hold(rules: Rules, runs: int, say: Say) -> Counter[str]:
    began, seen = time.perf_counter(), Counter[str]()
    for world in explore(rules, runs):
        if world.faults:
            pytest.fail(steps_of(world), pytrace=False)
        seen.update(world.seen)
    figures = ", ".join(f"{count:,} {what}" for what, count in sorted(seen.items()))
    say(f"seed {SEED}: {runs:,} runs in {time.perf_counter() - began:.1f} s, {figures}")
    return seen


def find_out(rules: Rules, fault: str, say: Say, *, alone: bool = False) -> None:
    for number, world in enumerate(explore(rules), 1):
        if world.faults[fault] and not (alone and len(world.faults) > 1):
            say(f"{fault!r} found in run {number:,}, seed {world.seed}")
            return
    pytest.fail(f"seed {SEED}: {MANY:,} runs did not find {fault!r} with {rules}", pytrace=False)


@pytest.mark.parametrize("runs", [RUNS, pytest.param(MANY, marks=pytest.mark.chaos)])
def test_no_interleaving_loses_or_reorders(say: Say, runs: int) -> None:
    seen = hold(Rules(), runs, say)
    if runs >= ENOUGH:
        needed = ["crashes", "zombies", "refused", "unconfirmed", "rejoined", "duplicates"]
        needed += ["first deliveries by old epochs", "pauses", "subscriptions to what is written"]
        mild = [what for what in needed if seen[what] < runs / 10]
        assert not mild, "the storm is too mild to prove anything"


def test_rejoining_at_the_committed_position_is_found_out(say: Say) -> None:
    find_out(Rules(rejoin_at_own_cursor=False), "lost", say)


@pytest.mark.parametrize("fault", ["lost", "went back"])
def test_moving_position_and_failed_lanes_in_two_transactions_is_found_out(fault: str, say: Say) -> None:
    find_out(Rules(one_end_transaction=False), fault, say)


def test_several_messages_of_a_key_in_flight_are_found_out(say: Say) -> None:
    find_out(Rules(one_in_flight_per_key=False), "reordered", say)


@pytest.mark.parametrize("fault", ["lost", "reordered", "went back"])
def test_counting_the_transactions_of_zombies_is_found_out(fault: str, say: Say) -> None:
    find_out(Rules(check_epoch=False, check_position=False, check_lanes=False), fault, say)


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        pytest.param(Rules(check_epoch=False), "lost", id="epoch"),
        pytest.param(Rules(check_epoch=False, check_position=False), "lost", id="epoch and position"),
        # The position keeps zombies' rounds out; it is their chunks that put a lane back.
        pytest.param(Rules(check_epoch=False, check_lanes=False), "went back", id="epoch and lanes"),
    ],
)
def test_without_the_epoch_a_zombie_is_found_out(rules: Rules, fault: str, say: Say) -> None:
    find_out(rules, fault, say)


def test_moving_a_lane_that_an_operator_has_moved_is_found_out(say: Say) -> None:
    find_out(Rules(check_lanes=False), "went back", say)


def test_a_subscription_whose_lane_begins_live_is_found_out(say: Say) -> None:
    find_out(Rules(subscribers_begin_behind=False), "lost", say)


def test_sending_to_a_lane_that_the_round_has_not_seen_is_found_out(say: Say) -> None:
    find_out(Rules(serve_only_lanes_seen=False), "reordered", say)


def test_reading_the_lanes_before_the_end_is_fixed_is_found_out(say: Say) -> None:
    find_out(Rules(end_before_lanes=False), "lost", say)


def test_reading_the_start_after_the_lanes_is_found_out(say: Say) -> None:
    # Alone: every transaction was in order, or refused. The messages were out by then.
    find_out(Rules(start_before_lanes=False), "reordered", say, alone=True)


def test_leaving_a_ready_lane_to_the_next_writer_is_found_out(say: Say) -> None:
    find_out(Rules(round_for_ready_lanes=False), "lost", say)


def test_the_same_seed_is_the_same_run() -> None:
    world = next(explore(Rules(one_in_flight_per_key=False)))
    assert steps_of(world) == steps_of(world)
