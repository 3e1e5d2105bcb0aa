"""The breaker alone, with a clock of ours."""

from __future__ import annotations

from tidings.rules.breaker import FAILURES, REST_SECONDS, Breaker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for number in range(FAILURES):
        turn = breaker.enter()
        assert turn is not None
        assert breaker.failed(turn) is (number == FAILURES - 1), "it says once that it opened"
    return breaker


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(Clock())
    for _ in range(10):
        for _ in range(FAILURES - 1):
            assert not breaker.failed(breaker.enter() or 0)
        assert not breaker.succeeded(breaker.enter() or 0)
    assert not breaker.is_open


def test_nobody_asks_until_the_rest_is_over() -> None:
    clock = Clock()
    breaker = opened(clock)
    assert breaker.enter() is None
    clock.now = REST_SECONDS - 0.01
    assert breaker.enter() is None
    clock.now = REST_SECONDS
    assert breaker.enter() is not None


def test_one_at_a_time_tries_again_and_its_failure_is_another_rest() -> None:
    clock = Clock()
    breaker = opened(clock)
    for rest in range(1, 4):
        clock.now = rest * REST_SECONDS
        turn = breaker.enter()
        assert turn is not None
        assert breaker.enter() is None
        assert not breaker.failed(turn), "it was open before"
        assert breaker.enter() is None
    assert breaker.is_open


def test_one_success_closes_it_and_everybody_asks() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = REST_SECONDS
    turn = breaker.enter()
    assert turn is not None
    assert breaker.succeeded(turn)
    assert not breaker.is_open
    turns = [breaker.enter() for _ in range(5)]
    assert None not in turns
    assert not breaker.succeeded(turns[0] or 0), "it says once that it closed"


def test_a_try_that_was_abandoned_leaves_the_next_one_to_try() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = REST_SECONDS
    turn = breaker.enter()
    assert turn is not None
    breaker.abandoned(turn)
    assert breaker.enter() is not None


def test_what_was_under_way_when_it_opened_counts_for_nothing() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    turns = [breaker.enter() for _ in range(FAILURES + 3)]
    assert [breaker.failed(turn) for turn in turns[:FAILURES] if turn is not None].count(True) == 1
    clock.now = REST_SECONDS - 0.01
    early, late, gone = (turn for turn in turns[FAILURES:] if turn is not None)
    assert not breaker.failed(early), "the rest is not longer for it"
    assert not breaker.succeeded(late), "nor is it over"
    clock.now = REST_SECONDS
    trying = breaker.enter()
    assert trying is not None
    breaker.abandoned(gone)
    assert breaker.enter() is None, "it was not the one that tries"
    assert breaker.succeeded(trying)
