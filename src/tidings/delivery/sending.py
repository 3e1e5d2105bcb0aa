"""Sending the messages of one lane. It stops at its first failure; what it owes from there on is left to a later try."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tidings.destinations import Destination
from tidings.events.messages import Message, Outcome, Verdict
from tidings.events.positions import Position


@dataclass
class LaneResult:
    """What became of one lane in one task."""

    sent: int = 0
    undelivered: Position | None = None
    late: bool = False
    seconds: float = 0.0
    error: str | None = None


@dataclass
class Pending:
    """The messages of one lane in one Arrow batch after `start`, in order of position."""

    start: Position
    slots: list[int] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


async def send_lane(
    destination: Destination, pending: Pending, result: LaneResult, timeout: float, deadline: float, probe: bool = False
) -> None:
    """Wave after wave: each wave holds the next message of each key, so that no key ever has two in flight.

    A wave reaches no further than the destination's `ahead` beyond the first message that is left. Otherwise a key with many
    changes would hold the cursor back while all others went far ahead of it, to be sent again when time runs out.
    A probe sends one message first: a destination that is still down gets no storm. `deadline` is a time.monotonic().
    """
    left: Sequence[int] = range(len(pending.messages))
    reach = 1 if probe else destination.ahead
    while left:
        wave, later = _next_wave(left, pending.slots, reach)
        reach = destination.ahead
        timeout = min(timeout, deadline - time.monotonic())
        if timeout <= 0:
            result.late, result.undelivered = True, pending.positions[left[0]]
            return
        began = time.monotonic()
        outcomes = await _send_wave(destination, wave, pending.messages, timeout)
        result.seconds = max(result.seconds, time.monotonic() - began)
        failed = [i for i, outcome in zip(wave, outcomes, strict=True) if outcome.verdict is not Verdict.SENT]
        result.sent += len(wave) - len(failed)
        if failed:
            result.undelivered = pending.positions[min(failed[0], later[0]) if later else failed[0]]
            result.late = time.monotonic() >= deadline
            result.error = next(outcome.reason for outcome in outcomes if outcome.verdict is not Verdict.SENT)
            return
        left = later


def _next_wave(left: Sequence[int], slots: list[int], reach: int) -> tuple[list[int], list[int]]:
    """Split what is left into the first message of each key within `reach`, and the rest; order is kept."""
    end = left[0] + reach
    wave: list[int] = []
    later: list[int] = []
    taken: set[int] = set()
    for i in left:
        if i >= end or slots[i] in taken:
            later.append(i)
        else:
            taken.add(slots[i])
            wave.append(i)
    return wave, later


async def _send_wave(destination: Destination, wave: list[int], messages: list[Message], timeout: float) -> list[Outcome]:
    """Send a wave in as many calls as the destination needs, side by side: all its keys are different."""
    chunks = _chunks(wave, messages, destination.max_batch, destination.max_bytes)
    calls = [destination.send([messages[i] for i in chunk], timeout) for chunk in chunks]
    return [outcome for outcomes in await asyncio.gather(*calls) for outcome in outcomes]


def _chunks(wave: list[int], messages: list[Message], max_batch: int, max_bytes: int) -> Iterator[list[int]]:
    chunk: list[int] = []
    room = max_bytes
    for i in wave:
        size = len(messages[i].body)
        if chunk and (len(chunk) == max_batch or size > room):
            yield chunk
            chunk, room = [], max_bytes
        chunk.append(i)
        room -= size
    if chunk:
        yield chunk
