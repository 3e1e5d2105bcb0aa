"""The log of the process that delivers: for development, to see what would be sent.

ARN        arn:tidings:log:::NAME
Guarantee  a message is sent when its line is handed to the log, at level INFO
Order      that of the calls
Batch      one line for each message
Limits     none; a body that is not UTF-8 has replacement characters in the line
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidings import log as logs
from tidings.events.arn import LogLine, parse
from tidings.events.messages import SENT, Message, Outcome
from tidings.settings import Settings

log = logging.getLogger(__name__)


def connect(arn: str, settings: Settings) -> Log:
    address = parse(arn)
    assert isinstance(address, LogLine)
    if not logging.getLogger().handlers:  # one of Spark's workers, which log nothing else
        logs.to_stderr(settings)
    return Log(address)


class Log:
    max_batch = ahead = 1000
    max_bytes = 16_000_000

    def __init__(self, address: LogLine) -> None:
        self._name = address.label

    async def send(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:  # noqa: ARG002 - nobody is waited for
        for message in messages:
            fields = {
                "destination": self._name,
                "message_id": message.id,
                "attributes": message.attributes,
                "key": message.key.decode(errors="replace") if message.key is not None else None,
                "body": message.body.decode(errors="replace"),
            }
            log.info("message", extra=fields)
        return [SENT] * len(messages)

    async def close(self) -> None:
        """Nothing to close."""
