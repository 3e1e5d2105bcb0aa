"""One lane's messages: order per key, one in flight, and what is left when something fails."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tidings.delivery.sending import MOST_DEAD, Care, LaneResult, Pending, send_lane
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.events.positions import Position
from tidings.testing import MemoryDestination

REFUSED = Outcome(Verdict.REJECTED, "INVALID_ARGUMENT: no")
WAITS = Outcome(Verdict.WAIT, "PERMISSION_DENIED: ask for it")
FAILED = Outcome(Verdict.RETRY, "UNAVAILABLE: try later")


def pending(slots: list[int]) -> Pending:
    """Message i has slot `slots[i]` and position (1, i + 1)."""
    messages = [Message(str(i), b"x" * 10) for i in range(len(slots))]
    count = len(slots)
    return Pending(slots, [1] * count, list(range(1, count + 1)), messages, [0] * count)


def send(destination: MemoryDestination, todo: Pending, budget: float = 5.0, care: Care = "none") -> LaneResult:
    result = LaneResult()
    asyncio.run(send_lane(destination, todo, result, budget, time.monotonic() + budget, care))
    return result


def test_many_keys_go_in_one_call() -> None:
    destination = MemoryDestination()
    assert send(destination, pending([1, 2, 3])).sent == 3
    assert [len(call) for call in destination.calls] == [3]


def test_two_messages_of_a_key_are_never_in_one_call() -> None:
    destination = MemoryDestination()
    send(destination, pending([7, 7, 7, 8]))
    assert [[message.id for message in call] for call in destination.calls] == [["0", "3"], ["1"], ["2"]]


def test_a_probe_sends_one_message_before_the_rest() -> None:
    destination = MemoryDestination()
    send(destination, pending([1, 2, 3]), care="probe")
    assert [len(call) for call in destination.calls] == [1, 2]


def test_a_probe_that_fails_sends_nothing_else() -> None:
    destination = MemoryDestination(lambda _: FAILED)
    result = send(destination, pending([1, 2, 3]), care="probe")
    assert (len(destination.calls), result.undelivered, result.error) == (1, Position(1, 1), FAILED.reason)


def test_a_slow_destination_is_late_and_not_failed_for_good() -> None:
    result = send(MemoryDestination(delay=1.0), pending([1, 2]), budget=0.05)
    assert (result.late, result.sent, result.undelivered) == (True, 0, Position(1, 1))


def test_who_does_not_answer_within_the_timeout_is_late_though_the_budget_lasts() -> None:
    result = LaneResult()
    slow = MemoryDestination(delay=1.0)
    asyncio.run(send_lane(slow, pending([1, 2]), result, timeout=0.05, deadline=time.monotonic() + 30))
    assert (result.late, result.undelivered) == (True, Position(1, 1))


def test_who_says_no_within_the_timeout_is_not_late() -> None:
    result = send(MemoryDestination(lambda _: FAILED), pending([1, 2]))
    assert (result.late, result.undelivered) == (False, Position(1, 1))


def test_a_key_with_many_changes_does_not_let_the_others_run_ahead() -> None:
    """Whatever is sent beyond the first message that is left is sent again when time runs out: one call's worth at most."""
    destination = MemoryDestination(delay=0.02)
    destination.max_batch = destination.ahead = 50
    result = send(destination, pending([0] * 100 + list(range(1, 1001))), budget=0.2)
    assert result.late
    assert result.undelivered is not None
    ahead = [message for message in destination.received if int(message.id) >= result.undelivered.seq]
    assert len(ahead) <= 50


def test_a_refused_message_is_a_dead_letter_and_the_rest_goes_on() -> None:
    destination = MemoryDestination(lambda message: REFUSED if message.id == "1" else SENT)
    result = send(destination, pending([1, 2, 3, 2]))
    assert (result.sent, result.undelivered) == (3, None)
    assert [(dead.position, dead.message.id, dead.reason) for dead in result.dead] == [(Position(1, 2), "1", REFUSED.reason)]


def test_a_lane_with_nothing_but_refusals_goes_on_later() -> None:
    result = send(MemoryDestination(lambda _: REFUSED), pending([7] * 300))
    assert (len(result.dead), result.late, result.undelivered) == (MOST_DEAD, True, Position(1, MOST_DEAD + 1))


def test_a_message_that_alone_fails_is_a_dead_letter_once_its_tries_are_spent() -> None:
    destination = MemoryDestination(lambda message: FAILED if message.id == "0" else SENT)
    todo = pending([1, 1, 2, 3])
    assert send(destination, todo, care="probe").undelivered == Position(1, 1)
    assert not destination.received
    result = send(destination, todo, care="suspect")
    assert (result.undelivered, result.sent) == (None, 3)
    [dead] = result.dead
    assert (dead.message.id, "fails again and again" in dead.reason) == ("0", True)
    assert [message.id for message in destination.received] == ["2", "1", "3"]


def test_a_message_that_never_gets_an_answer_is_one_too() -> None:
    """Each of its tries has a part of the time, so that there is some left to see whether others are answered."""

    class Hanging(MemoryDestination):
        async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
            if messages[0].id == "0":
                await asyncio.sleep(timeout)
                return [FAILED]
            return await super().send(messages, timeout)

    result = send(Hanging(), pending([1, 2]), budget=0.3, care="suspect")
    assert ([dead.message.id for dead in result.dead], result.undelivered, result.sent) == (["0"], None, 1)


def test_one_refusal_of_a_destination_that_just_came_back_costs_no_message() -> None:
    tries = Counter[str]()

    def answer(message: Message) -> Outcome:
        tries[message.id] += 1
        return FAILED if tries[message.id] == 1 and message.id == "0" else SENT

    for slots in ([1, 2, 1], [1, 1, 1]):
        tries.clear()
        destination = MemoryDestination(answer)
        result = send(destination, pending(slots), care="suspect")
        assert (result.dead, result.undelivered, result.sent) == ([], None, 3), slots
        of_key = [message.id for message in destination.received if slots[int(message.id)] == 1]
        assert of_key == sorted(of_key)


def test_who_asks_for_time_is_not_offered_another_message() -> None:
    busy = MemoryDestination(lambda message: Outcome(Verdict.RETRY, "429", after=30.0) if message.id == "0" else SENT)
    result = send(busy, pending([1, 2]), care="suspect")
    assert (result.dead, result.undelivered, result.after, len(busy.calls)) == ([], Position(1, 1), 30.0, 1)


def test_where_nothing_else_is_taken_it_is_the_destination_and_no_letter_dies() -> None:
    result = send(MemoryDestination(lambda _: FAILED), pending([1, 2, 3]), care="suspect")
    assert (result.dead, result.undelivered, result.waits) == ([], Position(1, 1), False)


def test_where_there_is_one_key_a_later_message_of_it_tells() -> None:
    alone = send(MemoryDestination(lambda message: FAILED if message.id == "0" else SENT), pending([1, 1]), care="suspect")
    assert ([dead.message.id for dead in alone.dead], alone.undelivered, alone.sent) == (["0"], None, 1)
    last = send(MemoryDestination(lambda _: FAILED), pending([1]), care="suspect")
    assert (last.dead, last.undelivered) == ([], Position(1, 1))


def test_a_message_that_waits_for_a_permission_is_never_a_dead_letter() -> None:
    destination = MemoryDestination(lambda message: WAITS if message.id == "0" else SENT)
    result = send(destination, pending([1, 2]), care="suspect")
    assert (result.dead, result.undelivered, result.waits) == ([], Position(1, 1), True)


def test_the_peer_s_own_wish_to_wait_is_kept() -> None:
    result = send(MemoryDestination(lambda _: Outcome(Verdict.RETRY, "429", after=30.0)), pending([1, 2]))
    assert result.after == 30.0


def test_no_call_is_larger_than_the_destination_allows() -> None:
    destination = MemoryDestination()
    destination.max_batch, destination.max_bytes = 4, 25
    send(destination, pending(list(range(9))))
    assert all(sum(len(m.body) for m in call) <= 25 and len(call) <= 4 for call in destination.calls)
    assert len(destination.received) == 9


@given(st.lists(st.integers(0, 4), max_size=40), st.sets(st.integers(0, 39)))
def test_whatever_fails_keys_stay_in_order_and_nothing_before_the_cursor_is_missing(slots: list[int], bad: set[int]) -> None:
    destination = MemoryDestination(lambda message: FAILED if int(message.id) in bad else SENT)
    destination.max_batch = destination.ahead = 3
    result = send(destination, pending(slots))
    arrived = [int(message.id) for message in destination.received]
    for slot in set(slots):
        mine = [i for i in arrived if slots[i] == slot]
        expected = [i for i in range(len(slots)) if slots[i] == slot]
        assert mine == expected[: len(mine)]
    owed_from = result.undelivered.seq - 1 if result.undelivered else len(slots)
    assert set(range(owed_from)) <= set(arrived)
    assert owed_from == len(slots) or owed_from not in arrived
    assert result.sent == len(arrived)
