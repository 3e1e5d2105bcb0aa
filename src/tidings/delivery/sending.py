"""Sending the messages of one lane. It stops at its first failure; what it owes from there on is left to a later try."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tidings.destinations import Destination
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.events.positions import Position

MOST_DEAD = 100
"""Dead letters of one lane in one task: they travel through the driver. A lane that has more goes on a moment later."""

_SUSPECTED = 3
"""Tries that a suspect chunk must have time for: that of a message which may be bad, of another, and of the bad one again."""

DELAYS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 3600.0, 86400.0)
"""Seconds from commit to delivered: the upper ends of the histogram's buckets. One more is for what took longer."""

UNREADY = "its messages have a format that is new here, or the filters of its project had no time left in the round"

Care = Literal["none", "probe", "suspect"]
"""How a lane is tried: as it comes; one message before the rest; or so that one bad message can be told from a destination
that is down."""


class Dead(NamedTuple):
    """A message that no retry can help, and why."""

    position: Position
    message: Message
    reason: str


@dataclass
class LaneResult:
    """What became of one lane in one task."""

    sent: int = 0
    bytes: int = 0
    undelivered: Position | None = None
    unready: Position | None = None
    """From here on there is no message yet."""
    late: bool = False
    waits: bool = False
    """What failed waits for somebody to act: it is no sign that the destination is down."""
    seconds: float = 0.0
    after: float = 0.0
    error: str | None = None
    dead: list[Dead] = field(default_factory=list)
    delays: list[int] = field(default_factory=lambda: [0] * (len(DELAYS) + 1))
    delay: float = 0.0
    """From the writing of each change to the word that its message was taken: how many for each of DELAYS, and the sum."""

    def end(self) -> None:
        """Stop where messages are not ready, if all before them were delivered."""
        if self.unready is not None and self.undelivered is None:
            self.late, self.undelivered, self.error = True, self.unready, UNREADY

    def add(self, sizes: Iterable[int], written: Sequence[int], now: float) -> None:
        """Messages that were sent: the sizes of their bodies, when their changes were written, and when the word came."""
        self.sent += len(written)
        self.bytes += sum(sizes)
        self.delay += len(written) * now - sum(written) / 1e6
        longest_first = sorted(written)
        before = 0
        for place in range(len(DELAYS), 0, -1):
            longer = bisect_left(longest_first, (now - DELAYS[place - 1]) * 1e6)
            self.delays[place] += longer - before
            before = longer
        self.delays[0] += len(written) - before


@dataclass
class Pending:
    """The messages of one lane in one Arrow batch, in order of position."""

    slots: list[int]
    windows: list[int]
    seqs: list[int]
    messages: list[Message]
    written: list[int]
    """When each change was written, in microseconds."""

    def position(self, i: int) -> Position:
        return Position(self.windows[i], self.seqs[i])


async def send_lane(
    destination: Destination, pending: Pending, result: LaneResult, timeout: float, deadline: float, care: Care = "none"
) -> None:
    """Wave after wave: each wave holds the next message of each key, so that no key ever has two in flight.

    A wave reaches no further than the destination's `ahead` beyond the first message that is left. Otherwise a key with many
    changes would hold the cursor back while all others went far ahead of it, to be sent again when time runs out.
    A probe sends one message first: a destination that is still down gets no storm. `deadline` is a time.monotonic().
    """
    left: Sequence[int] = range(len(pending.messages))
    reach = destination.ahead if care == "none" else 1
    while left:
        wave, later = _next_wave(left, pending.slots, reach)
        reach = destination.ahead
        began = time.monotonic()
        timeout = min(timeout, (deadline - began) / (_SUSPECTED if care == "suspect" else 1))
        if timeout <= 0 or len(result.dead) >= MOST_DEAD:
            result.late, result.undelivered = True, pending.position(left[0])
            return
        outcomes = await _send_wave(destination, wave, pending, result, timeout)
        failed = [i for i, outcome in outcomes.items() if outcome.verdict in (Verdict.RETRY, Verdict.WAIT)]
        if failed and care == "suspect" and _may_be_bad(outcomes[failed[0]]):
            passed = await _passed(destination, failed[0], later, pending, result, timeout)
            if passed is not None:
                later, failed = [i for i in later if i not in passed], []
        if failed:
            _stop(pending, result, failed, later, outcomes, began + timeout)
            return
        left, care = later, "none"


def _may_be_bad(outcome: Outcome) -> bool:
    """Whether it may be the message, and not the destination: who asks for time has none for any message."""
    return outcome.verdict is Verdict.RETRY and not outcome.after


async def _passed(
    destination: Destination, bad: int, later: Sequence[int], pending: Pending, result: LaneResult, timeout: float
) -> set[int] | None:
    """The later messages that were sent, if the bad one is no longer in the way: taken at last, or a dead letter. Else None.

    It is a dead letter only if it fails twice while the destination takes another: one that just came back may refuse one
    message and take the next. A message of another key is best; of its own key one is tried only after the second failure,
    or the bad one, if it was taken after all, would have been overtaken.
    """

    async def taken(i: int) -> bool:
        return not await _send_wave(destination, [i], pending, result, timeout)

    other = next((i for i in later if pending.slots[i] != pending.slots[bad]), None)
    if other is not None:
        if not await taken(other):
            return None
        if await taken(bad):
            return {other}
    else:
        if await taken(bad):
            return set()
        other = next(iter(later), None)
        if other is None or not await taken(other):
            return None
    _bury(pending, bad, result, "it fails again and again, while the destination takes other messages")
    return {other}


def _stop(
    pending: Pending,
    result: LaneResult,
    failed: list[int],
    later: Sequence[int],
    outcomes: dict[int, Outcome],
    given_up: float,
) -> None:
    first = outcomes[failed[0]]
    result.undelivered = pending.position(min(failed[0], later[0]) if later else failed[0])
    result.late = time.monotonic() >= given_up
    result.waits = all(outcomes[i].verdict is Verdict.WAIT for i in failed)
    result.after = max(outcomes[i].after or 0.0 for i in failed)
    result.error = first.reason


async def _send_wave(
    destination: Destination, wave: Sequence[int], pending: Pending, result: LaneResult, timeout: float
) -> dict[int, Outcome]:
    """Send a wave in as many calls as the destination needs, side by side: all its keys are different.

    Returns what became of those that were not sent.
    """
    began = time.monotonic()
    messages = pending.messages
    chunks = list(_chunks(wave, messages, destination.max_batch, destination.max_bytes))
    calls = [destination.send([messages[i] for i in chunk], timeout) for chunk in chunks]
    answers = await asyncio.gather(*calls)
    result.seconds = max(result.seconds, time.monotonic() - began)
    now = time.time()
    others: dict[int, Outcome] = {}
    for chunk, answer in zip(chunks, answers, strict=True):
        sent: Sequence[int] = chunk
        if answer.count(SENT) != len(chunk) or len(answer) != len(chunk):
            outcomes = dict(zip(chunk, answer, strict=True))
            sent = [i for i, outcome in outcomes.items() if outcome.verdict is Verdict.SENT]
            others |= {i: outcome for i, outcome in outcomes.items() if outcome.verdict is not Verdict.SENT}
        result.add([len(messages[i].body) for i in sent], [pending.written[i] for i in sent], now)
    for i, outcome in others.items():
        if outcome.verdict is Verdict.REJECTED:
            _bury(pending, i, result, outcome.reason)
    return others


def _bury(pending: Pending, i: int, result: LaneResult, reason: str) -> None:
    result.dead.append(Dead(pending.position(i), pending.messages[i], reason))


def _next_wave(left: Sequence[int], slots: list[int], reach: int) -> tuple[Sequence[int], Sequence[int]]:
    """Split what is left into the first message of each key within `reach`, and the rest; order is kept."""
    near = bisect_left(left, left[0] + reach)
    within = left[:near]
    if len({slots[i] for i in within}) == near:  # the usual case: nothing to choose
        return within, left[near:]
    wave: list[int] = []
    later: list[int] = []
    taken: set[int] = set()
    for i in within:
        if slots[i] in taken:
            later.append(i)
        else:
            taken.add(slots[i])
            wave.append(i)
    return wave, [*later, *left[near:]]


def _chunks(wave: Sequence[int], messages: list[Message], max_batch: int, max_bytes: int) -> Iterator[Sequence[int]]:
    most = min(max_batch, len(wave))
    if most * max(len(messages[i].body) for i in wave) <= max_bytes:  # the usual case: only their number counts
        for start in range(0, len(wave), most):
            yield wave[start : start + most]
        return
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
