"""Work beside its giver."""

from __future__ import annotations

import threading

import pytest

from tidings.consumers.inventory.turns import Turns


def fail() -> None:
    raise ValueError("it did not work")


def test_pieces_go_one_after_another_and_beside_their_giver() -> None:
    done: list[int] = []
    go = threading.Event()
    with Turns("test") as turns:
        turns.give(lambda: (go.wait(30), done.append(1))[1])
        assert done == []
        turns.check()  # still under way
        go.set()
        turns.give(lambda: done.append(2))
        turns.finish()
    assert done == [1, 2]


def test_nothing_is_done_after_a_piece_that_failed() -> None:
    done: list[int] = []
    with Turns("test") as turns:
        turns.give(fail)
        with pytest.raises(ValueError, match="did not work"):
            turns.give(lambda: done.append(1))
        with pytest.raises(ValueError, match="did not work"):
            turns.check()
        with pytest.raises(ValueError, match="did not work"):
            turns.finish()
    assert done == []
