"""The breaker of a subscription, with a clock of our own."""

from __future__ import annotations

from tidings.subscribers.breaker import Breaker


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_opens_after_so_many_failures_in_a_row_and_not_before() -> None:
    breaker = Breaker(3, 10.0, Clock())
    assert [breaker.failed(), breaker.failed()] == [False, False]
    breaker.succeeded()
    assert [breaker.failed(), breaker.failed()] == [False, False]
    assert breaker.state == "closed"
    assert breaker.failed()
    assert breaker.state == "open"


def test_after_the_rest_one_trial_decides() -> None:
    clock = Clock()
    breaker = Breaker(1, 10.0, clock)
    breaker.failed()
    clock.now += 9.9
    assert breaker.state == "open"
    clock.now += 0.1
    assert breaker.state == "half-open"
    assert not breaker.failed()  # it was open already
    assert breaker.state == "open"
    clock.now += 10
    assert breaker.state == "half-open"
    assert breaker.succeeded()
    assert breaker.state == "closed"


def test_after_it_closed_failures_are_counted_from_the_start() -> None:
    clock = Clock()
    breaker = Breaker(2, 10.0, clock)
    breaker.failed()
    breaker.failed()
    clock.now += 10
    breaker.succeeded()
    assert not breaker.failed()
    assert breaker.state == "closed"
