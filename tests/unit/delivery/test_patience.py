"""How long everybody waits for one answer."""

from __future__ import annotations

from tidings.delivery.patience import Patience
from tidings.delivery.reports import Report
from tidings.events.positions import Position


def took(seconds: float, sent: int = 10) -> Report:
    return Report(1, sent, seconds=seconds)


def settled(seconds: float = 0.01) -> Patience:
    patience = Patience(1.0)
    for _ in range(50):
        patience.learn([took(seconds)])
    return patience


def test_at_first_a_round_waits_as_long_as_it_may() -> None:
    assert Patience(1.0).seconds(10) == 1.0


def test_when_answers_are_quick_nobody_is_waited_for_long() -> None:
    assert settled().seconds(10) <= 0.2


def test_one_longer_answer_counts_at_once_and_is_forgotten_slowly() -> None:
    patience = settled()
    patience.learn([took(0.2), took(0.01)])
    assert patience.seconds(10) >= 0.6
    patience.learn([took(0.01)])
    assert patience.seconds(10) >= 0.4


def test_it_is_never_more_than_the_setting() -> None:
    assert settled(0.9).seconds(10) == 1.0


def test_a_lane_that_needs_more_than_the_setting_makes_nobody_wait_longer() -> None:
    patience = settled()
    before = patience.seconds(10)
    patience.learn([took(3.0)])
    assert patience.seconds(10) == before


def test_what_was_not_answered_teaches_nothing() -> None:
    patience = settled()
    before = patience.seconds(10)
    patience.learn([Report(1, 5, cursor=Position(1, 1), seconds=0.9, late=True), Report(2, 0, seconds=0.9)])
    assert patience.seconds(10) == before


def test_a_large_round_has_the_whole_setting_and_teaches_nothing() -> None:
    patience = settled()
    before = patience.seconds(10)
    patience.learn([took(0.9, sent=5000)])
    assert (patience.seconds(10), patience.seconds(20_000)) == (before, 1.0)
