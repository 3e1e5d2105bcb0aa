"""Sending dead letters again: straight from where they are kept, in the order in which their lane would have sent them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection

from tidings import destinations
from tidings.delivery import dead_letters
from tidings.events.messages import PROJECT, Message, Verdict
from tidings.settings import Settings
from tidings.topics.model import is_subscription


@dataclass
class Redriven:
    sent: int = 0
    left: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


def redrive(
    connection: Connection, settings: Settings, letters: Sequence[dict[str, Any]], progress: Callable[[int, int], None]
) -> Redriven:
    """Send these; those that are taken are marked at once, so that nothing is sent twice if we are stopped."""
    done = Redriven()
    asyncio.run(_redrive(connection, settings, letters, done, progress))
    return done


async def _redrive(
    connection: Connection,
    settings: Settings,
    letters: Sequence[dict[str, Any]],
    done: Redriven,
    progress: Callable[[int, int], None],
) -> None:
    open_: dict[tuple[str, str], destinations.Destination] = {}
    try:
        for letter in letters:
            arn = letter["destination"]
            way = letter["project"], arn
            if way not in open_:
                open_[way] = destinations.connect_for(*way, settings)
            [outcome] = await open_[way].send([_message(letter)], settings.delivery.publish_timeout_seconds)
            if outcome.verdict is Verdict.SENT:
                dead_letters.end(connection, [letter["id"]], "sent")
                connection.commit()
                done.sent += 1
            else:
                done.left += 1
                done.reasons[outcome.reason] = done.reasons.get(outcome.reason, 0) + 1
            progress(done.sent + done.left, len(letters))
    finally:
        for destination in open_.values():
            await destination.close()


def _message(letter: dict[str, Any]) -> Message:
    label = letter["label"]
    attributes = _named(letter) | letter["attributes"] | {"redrive": "true"}
    return Message(letter["message"], letter["body"].encode(), attributes, None if label is None else label.encode())


def _named(letter: dict[str, Any]) -> dict[str, str]:
    """For a letter from before messages named their project.

    A subscription's lane is that of its topic's owner, and the change may be another project's: there it is left out.
    """
    return {} if is_subscription(letter["destination"]) else {PROJECT: letter["project"]}
