"""Where a chunk of catch-up leaves its lane, and how the rows of several tasks become one report."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.delivery.catchup import Turns, apart, due, next_step, retry_after
from tidings.delivery.deliver import RESULT
from tidings.delivery.lanes import Lane, Standing, Step
from tidings.delivery.lookup import Moment
from tidings.delivery.reports import Report, merge
from tidings.events.positions import Position
from tidings.settings import Settings

SETTINGS = Settings().delivery
CURSOR, REACHED = Position(3, 10), Position(5, 99)


def lane(attempts: int = 0, slow: bool = False) -> Lane:
    return Lane(1, "behind", CURSOR, attempts, slow, due=True)


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 8), (50, 8)])
def test_waits_are_1_2_4_8_and_then_8_for_ever(attempts: int, seconds: float) -> None:
    for _ in range(20):
        assert retry_after(SETTINGS, attempts) == pytest.approx(seconds, rel=0.1)
    assert retry_after(SETTINGS, attempts, asked=60.0) == 60.0
    assert retry_after(SETTINGS, attempts, asked=1e9) == 300.0, "nobody is waited for for ever"


def test_a_chunk_that_arrived_moves_the_cursor() -> None:
    assert next_step(SETTINGS, lane(), Report(1, 5), REACHED, near=False) == Step(REACHED)


def test_near_the_stream_it_is_ready() -> None:
    assert next_step(SETTINGS, lane(), Report(1, 5), REACHED, near=True) == Step(REACHED, ready=True)


def test_a_slow_lane_stays_beside_the_stream_until_it_answers_in_time() -> None:
    late, quick = Report(1, 5, seconds=3.0), Report(1, 5, seconds=0.1)
    assert next_step(SETTINGS, lane(slow=True), late, REACHED, near=True) == Step(REACHED, slow=True)
    assert next_step(SETTINGS, lane(slow=True), quick, REACHED, near=True) == Step(REACHED, ready=True)


def test_running_out_of_time_while_moving_is_no_failure() -> None:
    report = Report(1, 5, Position(4, 1), late=True)
    assert next_step(SETTINGS, lane(), report, REACHED, near=True) == Step(Position(4, 1))


def test_confirmed_messages_that_do_not_move_the_cursor_are_no_progress() -> None:
    report = Report(1, 5, CURSOR, late=True, seconds=1.0)
    assert next_step(SETTINGS, lane(), report, REACHED, near=True) == Step(CURSOR, slow=True)


def test_a_lane_whose_turn_did_not_come_is_not_slow() -> None:
    report = Report(1, 0, CURSOR, late=True)
    assert next_step(SETTINGS, lane(), report, REACHED, near=True) == Step(CURSOR)


def test_no_answer_at_all_is_first_taken_for_slowness_then_for_failure() -> None:
    report = Report(1, 0, CURSOR, late=True, seconds=1.0)
    assert next_step(SETTINGS, lane(), report, REACHED, near=False) == Step(CURSOR, slow=True)
    step = next_step(SETTINGS, lane(1, slow=True), report, REACHED, near=False)
    assert step == Step(CURSOR, slow=True, wait=step.wait, error="no answer", down=True)
    assert step.wait == pytest.approx(2, rel=0.1)


def test_a_refusal_waits_for_the_next_try() -> None:
    report = Report(1, 2, Position(4, 1), error="NOT_FOUND: no topic")
    step = next_step(SETTINGS, lane(), report, REACHED, near=True)
    assert step == Step(Position(4, 1), wait=step.wait, error="NOT_FOUND: no topic", down=True)
    assert step.wait == pytest.approx(1, rel=0.1)


def test_what_waits_for_a_permission_says_nothing_about_its_neighbours() -> None:
    report = Report(1, 0, CURSOR, error="PERMISSION_DENIED", waits=True)
    assert not next_step(SETTINGS, lane(), report, REACHED, near=False).down


def test_a_rate_is_kept_by_waiting_after_a_chunk() -> None:
    step = next_step(SETTINGS, lane(), Report(1, 50), REACHED, near=False, rate=100.0)
    assert step == Step(REACHED, wait=0.5)


def behind(id_: int, attempts: int, peer: str = "a") -> Lane:
    return Lane(id_, "behind", CURSOR, attempts, slow=False, due=True, peer=peer)


def test_one_lane_tries_for_all_that_failed_at_the_same_peer() -> None:
    turns = Turns()
    standing = Standing(Moment(1, "1:1:"), (behind(1, 2), behind(2, 2), behind(3, 0), behind(4, 1, "b"), behind(5, 2)))
    tried = []
    for _ in range(3):
        group = due(standing, "quick", turns)
        turns.served(group)
        tried.append([lane.id for lane in group])
    assert tried == [[3, 1, 4], [3, 2, 4], [3, 5, 4]], "and each of them in its turn"


def test_a_cursor_never_goes_back() -> None:
    report = Report(1, 0, Position(1, 1), error="x")
    assert next_step(SETTINGS, lane(), report, REACHED, near=False).cursor == CURSOR


def test_the_lowest_undelivered_position_of_all_tasks_decides() -> None:
    rows = [
        row(1, 5, window=7, seq=20, seconds=0.2, error="first", delays=[1, 2], delay=0.5),
        row(1, 3, window=6, seq=90, late=True, seconds=0.1, delays=[1, 0], delay=0.25),
        row(2, 4, seconds=0.3),
        row(1, 2, seconds=0.9, after=7.0),
    ]
    assert merge(rows) == [
        Report(1, 10, Position(6, 89), True, 0.9, "first", after=7.0, delays=(2, 2), delay=0.75),
        Report(2, 4, None, False, 0.3, None, delays=(0, 0)),
    ]


def test_a_letter_behind_the_cursor_is_not_dead_yet() -> None:
    letters = json.dumps([{"win": 3, "seq": 10}, {"win": 6, "seq": 89}, {"win": 6, "seq": 91}])
    [report] = merge([row(1, 0, dead=letters), row(1, 0, window=6, seq=90)])
    assert [letter["seq"] for letter in report.dead] == [10, 89]


def row(lane_id: int, sent: int, **values: Any) -> Any:
    nothing = dict.fromkeys(RESULT.fieldNames()) | {"bytes": 0, "late": False, "waits": False, "seconds": 0.0, "after": 0.0}
    nothing |= {"delays": [0, 0], "delay": 0.0}
    return SimpleNamespace(**(nothing | {"lane": lane_id, "sent": sent} | values))


def test_a_lane_that_does_not_get_through_gets_smaller_chunks_and_larger_ones_again_when_it_does() -> None:
    turns, sizes = Turns(), []
    for late in (True, True, True, True, True, False, False, False, False, False, False):
        sizes.append(turns.size(lane(), 8000))
        turns.ended(lane(), sizes[-1], late)
    assert sizes == [8000, 4000, 2000, 1000, 500, 500, 1000, 2000, 4000, 8000, 8000]
    turns.ended(lane(), 3, late=True)
    assert turns.size(lane(), 8000) == 3, "a rate that asks for less than a small chunk is kept"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=8))
def test_ranges_that_overlap_are_read_once(given_ranges: list[tuple[int, int]]) -> None:
    ranges = [(Position(1, start), Position(1, start + length)) for start, length in given_ranges]
    found = apart(ranges)
    assert found == sorted(found)
    assert all(before[1] < after[0] for before, after in pairwise(found))
    points = [Position(1, seq) for seq in range(50)]
    for point in points:
        assert any(start < point <= end for start, end in ranges) == any(start < point <= end for start, end in found)
