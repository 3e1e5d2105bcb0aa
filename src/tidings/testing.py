"""Fakes for tests, ours and yours. They keep the same contracts as the real things and pass the same suites."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tidings.events.messages import SENT, Message, Outcome, Verdict

Answer = Callable[[Message], Outcome]


def always_sent(_message: Message) -> Outcome:
    return SENT


class MemoryDestination:
    """A destination that remembers what it was sent, and answers as it is told.

    `answer` gives the outcome of each message; `delay` is how long every call takes.
    """

    max_batch = ahead = 1000
    max_bytes = 1_000_000

    def __init__(self, answer: Answer = always_sent, delay: float = 0.0) -> None:
        self.answer = answer
        self.delay = delay
        self.received: list[Message] = []
        self.calls: list[list[Message]] = []
        self.in_flight: list[Message] = []
        self.closed = False

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        self.calls.append(list(messages))
        self.in_flight.extend(messages)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.sleep(self.delay)
        except TimeoutError:
            return [Outcome(Verdict.RETRY, f"no answer within {timeout:g} s")] * len(messages)
        finally:
            for message in messages:
                self.in_flight.remove(message)
        outcomes = [self.answer(message) for message in messages]
        self.received.extend(m for m, outcome in zip(messages, outcomes, strict=True) if outcome is SENT)
        return outcomes

    async def close(self) -> None:
        self.closed = True
