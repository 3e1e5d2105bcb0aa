"""Where a chunk of catch-up leaves its lane, and how the rows of several tasks become one report."""

from __future__ import annotations

import pytest

from tidings.delivery.catchup import next_step, retry_after
from tidings.delivery.lanes import Lane, Report, Step, merge
from tidings.events.positions import Position
from tidings.settings import Settings

SETTINGS = Settings()
CURSOR, REACHED = Position(3, 10), Position(5, 99)


def lane(attempts: int = 0, slow: bool = False) -> Lane:
    return Lane(1, "behind", CURSOR, attempts, slow, due=True)


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 8), (50, 8)])
def test_waits_are_1_2_4_8_and_then_8_for_ever(attempts: int, seconds: float) -> None:
    assert retry_after(SETTINGS, attempts) == seconds


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
    assert not report.stuck


def test_no_answer_at_all_is_first_taken_for_slowness_then_for_failure() -> None:
    report = Report(1, 0, CURSOR, late=True, seconds=1.0)
    assert next_step(SETTINGS, lane(), report, REACHED, near=False) == Step(CURSOR, slow=True)
    assert next_step(SETTINGS, lane(1, slow=True), report, REACHED, near=False) == Step(
        CURSOR, slow=True, wait=2, error="no answer"
    )


def test_a_refusal_waits_for_the_next_try() -> None:
    report = Report(1, 2, Position(4, 1), error="NOT_FOUND: no topic")
    assert next_step(SETTINGS, lane(), report, REACHED, near=True) == Step(Position(4, 1), wait=1, error="NOT_FOUND: no topic")


def test_a_cursor_never_goes_back() -> None:
    report = Report(1, 0, Position(1, 1), error="x")
    assert next_step(SETTINGS, lane(), report, REACHED, near=False).cursor == CURSOR


def test_the_lowest_undelivered_position_of_all_tasks_decides() -> None:
    rows = [
        (1, 5, 7, 20, False, 0.2, "first"),
        (1, 3, 6, 90, True, 0.1, None),
        (2, 4, None, None, False, 0.3, None),
        (1, 2, None, None, False, 0.9, None),
    ]
    assert merge(rows) == [Report(1, 10, Position(6, 89), True, 0.9, "first"), Report(2, 4, None, False, 0.3, None)]
