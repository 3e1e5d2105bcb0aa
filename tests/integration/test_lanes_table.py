"""The two transactions that move lanes, in the real database: all or nothing, and only for the owner of the epoch."""

from __future__ import annotations

import psycopg
import pytest

from tidings.delivery import lanes
from tidings.delivery.catchup import Turns
from tidings.delivery.lanes import Lane, Report, Step
from tidings.errors import Superseded
from tidings.events.positions import Position

FROM, TO = Position(3, 30), Position(4, 40)


@pytest.fixture
def owned(database: psycopg.Connection) -> psycopg.Connection:
    """The stream at FROM in epoch 7, and three lanes: live, ready and behind."""
    database.execute("update stream set epoch = 7, win = 3, seq = 30")
    for name, state, cursor in (("one", "live", (None, None)), ("two", "ready", (2, 5)), ("three", "behind", (1, 9))):
        database.execute(
            "insert into lanes (project, destination, state, win, seq, attempts) values ('p', %s, %s, %s, %s, 2)",
            [name, state, *cursor],
        )
    return database


def state(database: psycopg.Connection) -> list[tuple[object, ...]]:
    return database.execute("select id, state, win, seq, attempts from lanes order by id").fetchall()


def position(database: psycopg.Connection) -> tuple[object, ...] | None:
    return database.execute("select win, seq from stream").fetchone()


def test_a_round_moves_position_failed_and_rejoined_lanes_together(owned: psycopg.Connection) -> None:
    ready = lanes.standing(owned).in_state("ready")
    lanes.end_round(owned, 7, FROM, TO, ready, [Report(1, 3, Position(4, 11), error="down"), Report(2, 5)], 1.0)
    assert position(owned) == TO
    assert state(owned) == [(1, "behind", 4, 11, 3), (2, "live", None, None, 0), (3, "behind", 1, 9, 2)]


@pytest.mark.parametrize(("epoch", "start"), [(6, FROM), (8, FROM), (7, Position(3, 29))])
def test_a_round_of_another_epoch_or_place_moves_nothing(owned: psycopg.Connection, epoch: int, start: Position) -> None:
    before = state(owned), position(owned)
    ready = lanes.standing(owned).in_state("ready")
    with pytest.raises(Superseded):
        lanes.end_round(owned, epoch, start, TO, ready, [Report(1, 0, Position(4, 1), error="x")], 1.0)
    assert (state(owned), position(owned)) == before


def test_a_round_moves_nothing_if_a_lane_is_not_as_it_was_read(owned: psycopg.Connection) -> None:
    ready = lanes.standing(owned).in_state("ready")
    owned.execute("update lanes set state = 'behind' where id = 2")
    before = state(owned), position(owned)
    with pytest.raises(Superseded):
        lanes.end_round(owned, 7, FROM, TO, ready, [], 1.0)
    assert (state(owned), position(owned)) == before


def test_a_late_lane_is_due_at_once_and_a_failed_one_waits(owned: psycopg.Connection) -> None:
    lanes.end_round(owned, 7, FROM, TO, [], [Report(1, 0, Position(4, 1), late=True, seconds=1.0)], 60.0)
    lane = next(lane for lane in lanes.standing(owned).lanes if lane.id == 1)
    assert (lane.due, lane.slow, lane.attempts) == (True, True, 2)
    [behind] = [lane for lane in lanes.standing(owned).lanes if lane.id == 3]
    assert lanes.end_catch_up(owned, 7, behind, Step(behind.cursor, wait=60.0, error="x"))
    assert not next(lane for lane in lanes.standing(owned).lanes if lane.id == 3).due


def test_catch_up_moves_only_the_lane_that_it_read_and_only_for_the_owner(owned: psycopg.Connection) -> None:
    [lane] = lanes.standing(owned).in_state("behind")
    assert not lanes.end_catch_up(owned, 6, lane, Step(TO))
    assert lanes.end_catch_up(owned, 7, lane, Step(Position(2, 2)))
    assert not lanes.end_catch_up(owned, 7, lane, Step(TO, ready=True))  # a second chunk with old knowledge
    assert state(owned)[2] == (3, "behind", 2, 2, 0)
    [lane] = lanes.standing(owned).in_state("behind")
    assert lanes.end_catch_up(owned, 7, lane, Step(TO, ready=True))
    assert state(owned)[2] == (3, "ready", 4, 40, 0)


def test_what_a_lane_is_owed_is_counted_from_its_cursor(owned: psycopg.Connection) -> None:
    assert [lane["owed"] for lane in lanes.listed(owned)] == [0, 0, 0]


def test_nobody_waits_for_ever_behind_strangers() -> None:
    group = [Lane(i, "behind", Position(i, 1), 1, True, True) for i in (1, 2, 3)]
    turns, led = Turns(), []
    for _ in range(6):
        leader = turns.leader(group)
        turns.served([leader])
        led.append(leader.id)
    assert led == [1, 2, 3, 1, 2, 3]
