"""The two transactions that move lanes, in the real database: all or nothing, and only for the owner of the epoch."""

from __future__ import annotations

import psycopg
import pytest

from tidings.delivery import dead_letters, lanes, overview, steering
from tidings.delivery.catchup import Turns, retry_after
from tidings.delivery.lanes import Lane, Step
from tidings.delivery.reports import Report
from tidings.errors import OperatorError, Superseded
from tidings.events.positions import Position
from tidings.settings import Settings

FROM, TO = Position(3, 30), Position(4, 40)


@pytest.fixture
def owned(database: psycopg.Connection) -> psycopg.Connection:
    """The stream at FROM in epoch 7, and three lanes: live, ready and behind."""
    database.execute("update stream set epoch = 7, win = 3, seq = 30")
    database.execute("insert into projects (name, public_id) values ('p', 'p')")
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


def test_the_first_wait_of_a_lane_is_capped_as_those_of_catch_up_are(owned: psycopg.Connection) -> None:
    reports = [Report(1, 0, Position(4, 1), error="429", after=3600.0), Report(2, 0, Position(4, 1), error="429", after=60.0)]
    lanes.end_round(owned, 7, FROM, TO, lanes.standing(owned).in_state("ready"), reports, 1.0)
    # Both columns are the transaction's now: no clock of ours takes part.
    waits = owned.execute("select extract(epoch from next_try - since)::float8 from lanes where id < 3 order by id").fetchall()
    assert [seconds for (seconds,) in waits] == [retry_after(Settings().delivery, 1, asked=3600.0), 60.0]


@pytest.mark.parametrize(("epoch", "start"), [(6, FROM), (8, FROM), (7, Position(3, 29))])
def test_a_round_of_another_epoch_or_place_moves_nothing(owned: psycopg.Connection, epoch: int, start: Position) -> None:
    before = state(owned), position(owned)
    ready = lanes.standing(owned).in_state("ready")
    with pytest.raises(Superseded):
        lanes.end_round(owned, epoch, start, TO, ready, [Report(1, 0, Position(4, 1), error="x")], 1.0)
    assert (state(owned), position(owned)) == before


def test_a_lane_that_was_paused_meanwhile_stays_where_it_is_and_the_rest_moves(owned: psycopg.Connection) -> None:
    ready = lanes.standing(owned).in_state("ready")
    for lane in (1, 2):
        steering.pause(owned, lane)
    lanes.end_round(owned, 7, FROM, TO, ready, [Report(1, 3, Position(4, 11), error="down"), Report(2, 5)], 1.0)
    assert position(owned) == TO
    assert state(owned) == [(1, "paused", 3, 30, 2), (2, "paused", 2, 5, 2), (3, "behind", 1, 9, 2)]
    for lane in (1, 2):
        steering.resume(owned, lane)
    assert [row[1:4] for row in state(owned)[:2]] == [("behind", 3, 30), ("behind", 2, 5)]


def test_a_lane_skips_forward_only_and_not_past_the_stream(owned: psycopg.Connection) -> None:
    with pytest.raises(OperatorError, match="Lane 1 is live"):
        steering.skip(owned, 1, None, "")
    with pytest.raises(OperatorError, match="after the stream's position"):
        steering.skip(owned, 3, TO, "")
    assert steering.skip(owned, 3, Position(2, 1), "broken files") == (Position(1, 9), Position(2, 1))
    with pytest.raises(OperatorError, match="Lane 3 is behind at 2/1"):
        steering.skip(owned, 3, Position(1, 1), "")
    assert steering.skip(owned, 3, None, "")[1] == FROM
    log = owned.execute("select what, from_win, from_seq, to_win, to_seq, note from lane_log order by id").fetchall()
    assert log == [("skipped", 1, 9, 2, 1, "broken files"), ("skipped", 2, 1, 3, 30, "")]


def test_a_lane_without_a_rule_is_closed_by_the_owner_and_that_is_written_down(owned: psycopg.Connection) -> None:
    assert lanes.close_unused(owned, 6) == []
    assert lanes.close_unused(owned, 7) == [1, 2, 3]
    assert [row[1:4] for row in state(owned)] == [("closed", 3, 30), ("closed", 2, 5), ("closed", 1, 9)]
    assert lanes.standing(owned).lanes == ()
    assert lanes.close_unused(owned, 7) == []
    log = owned.execute("select lane, what, from_win, to_win from lane_log order by lane").fetchall()
    assert log == [(1, "closed", 3, 3), (2, "closed", 2, 3), (3, "closed", 1, 3)]


def test_one_try_speaks_for_all_lanes_of_a_peer(owned: psycopg.Connection) -> None:
    owned.execute("update lanes set state = 'behind', win = 1, seq = 9, peer = 'the same' where id in (1, 3)")
    mine, other = (lane for lane in lanes.standing(owned).lanes if lane.peer == "the same")
    assert lanes.end_catch_up(owned, 7, mine, Step(mine.cursor, wait=60.0, error="gone", down=True))
    found = {lane.id: lane for lane in lanes.standing(owned).lanes}
    assert (found[other.id].due, found[other.id].attempts) == (False, 3)
    assert lanes.end_catch_up(owned, 7, found[mine.id], Step(TO, ready=True))
    found = {lane.id: lane for lane in lanes.standing(owned).lanes}
    assert (found[other.id].due, found[other.id].attempts, found[other.id].cursor) == (True, 3, other.cursor)


def test_a_dead_letter_is_written_with_the_step_that_passes_it_or_not_at_all(owned: psycopg.Connection) -> None:
    letter = {"win": 3, "seq": 31, "message": "c.1", "body": "{}", "attributes": {"id": "c.1"}, "label": None, "reason": "no"}
    with pytest.raises(Superseded):
        lanes.end_round(owned, 6, FROM, TO, [], [Report(1, 0, dead=(letter,))], 1.0)
    assert dead_letters.listed(owned) == []
    lanes.end_round(owned, 7, FROM, TO, [], [Report(1, 0, dead=(letter,))], 1.0)
    [lane] = lanes.standing(owned).in_state("behind")
    assert not lanes.end_catch_up(owned, 6, lane, Step(TO), Report(3, 0, dead=(letter,)))
    assert lanes.end_catch_up(owned, 7, lane, Step(TO), Report(3, 0, dead=(letter, letter | {"message": "d.1"})))
    assert [(row["lane"], row["message"], row["reason"]) for row in dead_letters.listed(owned)] == [
        (1, "c.1", "no"),
        (3, "c.1", "no"),
        (3, "d.1", "no"),
    ]
    [first] = dead_letters.listed(owned, lane=1)
    assert dead_letters.end(owned, [first["id"]], "discarded") == 1
    assert dead_letters.count(owned) == 2
    assert dead_letters.forget(owned, days=1) == 0
    assert dead_letters.forget(owned, days=0) == 3


def test_a_late_lane_is_due_at_once_and_a_failed_one_waits(owned: psycopg.Connection) -> None:
    lanes.end_round(owned, 7, FROM, TO, [], [Report(1, 0, Position(4, 1), late=True, seconds=1.0)], 60.0)
    lane = next(lane for lane in lanes.standing(owned).lanes if lane.id == 1)
    assert (lane.due, lane.slow, lane.attempts) == (True, False, 2), "a round may have waited for a moment only"
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
    assert [lane["owed"] for lane in overview.lanes(owned)] == [0, 0, 0]


def test_nobody_waits_for_ever_behind_strangers() -> None:
    group = [Lane(i, "behind", Position(i, 1), 1, True, True) for i in (1, 2, 3)]
    turns, led = Turns(), []
    for _ in range(6):
        leader = turns.leader(group)
        turns.served([leader])
        led.append(leader.id)
    assert led == [1, 2, 3, 1, 2, 3]


def test_a_lane_whose_changes_are_gone_is_paused_and_says_so(owned: psycopg.Connection) -> None:
    """Nobody else waits for it. One that has read the oldest window to its end needs nothing of it."""
    for number in (2, 3):
        owned.execute(
            "insert into windows (id, snapshot, token, lo, hi, n) values (%s, '10:10:', 't', %s, %s, 5)",
            [number, number * 10, number * 10 + 9],
        )
    owned.execute("insert into lanes (project, destination, state, win, seq) values ('p', 'read', 'behind', 2, 29)")
    assert lanes.stop_lost(owned, 6) == []
    assert lanes.stop_lost(owned, 7) == [3]
    assert owned.execute("select state, error from lanes where id = 3").fetchone() == (
        "paused",
        "the changes after 1/9 are not kept any more: `tidings lanes skip` lets it go on",
    )
    assert lanes.stop_lost(owned, 7) == []
